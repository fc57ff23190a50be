/* work: claim executions that are due and run them. */
#include "cli.h"
#include "log.h"
#include "worker.h"

int cmd_work(struct cli *cli, int argc, char **argv)
{
    (void)argc, (void)argv;
    const struct cli_options *o = &cli->opts;
    struct hf_error err;
    struct hf_work_options opts = {.store_url = o->store_url,
                                   .config_path = o->config_path,
                                   .workflows = o->workflows.of,
                                   .n_workflows = o->workflows.n,
                                   .concurrency = o->concurrency,
                                   .max = o->max,
                                   .grace_ms = o->stop_grace_ms,
                                   .drain = o->drain,
                                   .quiet = o->quiet};
    log_open(o->log_json);
    return hf_work(&opts, &err) < 0 ? cli_fail(cli, &err) : 0;
}
