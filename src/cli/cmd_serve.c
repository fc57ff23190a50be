/* The service: serve, and the tokens of its clients. */
#include <string.h>

#include "cli.h"
#include "clock.h"
#include "error.h"
#include "serve.h"
#include "text.h"
#include "wire.h"

int cmd_serve(struct cli *cli, int argc, char **argv)
{
    (void)argc, (void)argv;
    const struct cli_options *o = &cli->opts;
    struct hf_error err;
    if (!o->tls_cert != !o->tls_key)
        return cli_usage(cli, "--tls-cert and --tls-key go together");
    struct serve_options opts = {.store_url = o->store_url,
                                 .listen = o->listen,
                                 .config_path = o->config_path,
                                 .tls_cert = o->tls_cert,
                                 .tls_key = o->tls_key,
                                 .require_token = o->require_token,
                                 .no_work = o->no_work,
                                 .concurrency = o->concurrency,
                                 .grace_ms = o->stop_grace_ms,
                                 .log_json = o->log_json,
                                 .log_requests = o->log_requests,
                                 .max_connections = o->max_connections,
                                 .max_body = o->max_body,
                                 .receive_ms = o->receive_ms};
    return serve(&opts, &err) < 0 ? cli_fail(cli, &err) : 0;
}

/* ---- tokens --------------------------------------------------------------------------------- */

static const struct hf_wire_field token_fields[] = {
#define F(member, name, type) HF_WIRE(struct hf_api_token, member, name, type)
    F(id, "id", HF_WIRE_STRING),
    F(note, "note", HF_WIRE_TEXT),
    F(verbs, "allow", HF_WIRE_STRING),
    F(prefix, "prefix", HF_WIRE_STRING),
    F(created_at_ms, "createdAt", HF_WIRE_TIME),
    F(expires_at_ms, "expiresAt", HF_WIRE_TIME),
#undef F
};
enum { N_TOKEN_FIELDS = sizeof token_fields / sizeof *token_fields };

/* "a,b" becomes "a b"; an unknown verb is refused. */
static int check_verbs(const char *text, char ret[HF_VERBS_MAX + 1], struct hf_error *err)
{
#define X(name, text) text,
    static const char *const known[] = {VERB_MAP(X) NULL};
#undef X
#define X(name, text) ", " text
    static const char list[] = VERB_MAP(X);
#undef X
    snprintf(ret, HF_VERBS_MAX + 1, "%s", text);
    for (char *at = ret; *at;) {
        size_t n = strcspn(at, ", "), i = 0;
        while (known[i] && (strlen(known[i]) != n || strncmp(known[i], at, n) != 0))
            i++;
        if (!known[i])
            return hf_fail(err, HF_INVALID, "'%.*s' is no verb; known are %s", (int)n, at,
                           list + 2);
        at += n;
        if (*at)
            *at++ = ' ';
    }
    return 0;
}

static int create(struct cli *cli, struct hf *hf)
{
    const struct cli_options *o = &cli->opts;
    struct hf_api_token token = {0};
    char secret[HF_API_TOKEN_LEN + 1];
    struct hf_error err;
    if (!o->allow)
        return cli_usage(cli, "token create needs --allow, e.g. --allow locks:read,locks:write");
    if (check_verbs(o->allow, token.verbs, &err) < 0)
        return cli_usage(cli, "--allow: %s", err.message);
    snprintf(token.note, sizeof token.note, "%s", o->note ? o->note : "");
    snprintf(token.prefix, sizeof token.prefix, "%s", o->prefix ? o->prefix : "");
    token.expires_at_ms = o->expires_ms ? hf_clock_wall_ms() + o->expires_ms : 0;
    if (hf_api_token_create(hf, &token, secret, &err) < 0)
        return cli_fail(cli, &err);
    if (!o->json) {
        puts(secret);
        return 0;
    }
    struct hf_buf json = HF_BUF(CLI_JSON_MAX);
    hf_wire_write(&json, &token, token_fields, N_TOKEN_FIELDS);
    json.len--; /* the closing brace */
    hf_buf_printf(&json, ",\"token\":\"%s\"}", secret);
    return cli_put_json(&json);
}

struct listing {
    struct cli_table table;
    bool json;
    int code;
};

static int list_one(void *arg, const struct hf_api_token *t)
{
    struct listing *l = arg;
    char expires[HF_TIME_LEN + 1] = "never", made[HF_TIME_LEN + 1];
    if (l->json) {
        struct hf_buf json = HF_BUF(CLI_JSON_MAX);
        hf_wire_write(&json, t, token_fields, N_TOKEN_FIELDS);
        l->code = cli_put_json(&json);
        return l->code;
    }
    hf_format_time(t->created_at_ms, made);
    if (t->expires_at_ms)
        hf_format_time(t->expires_at_ms, expires);
    const char *const cells[] = {t->id, t->verbs, t->prefix[0] ? t->prefix : "-",
                                 made,  expires,  t->note[0] ? t->note : "-"};
    cli_table_row(&l->table, CLI_PLAIN, cells);
    return 0;
}

static int list(struct cli *cli, struct hf *hf)
{
    static const char *const heads[] = {"ID", "ALLOW", "PREFIX", "CREATED", "EXPIRES", "NOTE"};
    struct listing l = {.table = {.heads = heads, .n_columns = sizeof heads / sizeof *heads},
                        .json = cli->opts.json};
    struct hf_error err;
    int r = hf_api_tokens(hf, list_one, &l, &err);
    cli_table_end(&l.table);
    return r < 0 ? cli_fail(cli, &err) : l.code;
}

static int revoke(struct cli *cli, struct hf *hf, const char *id)
{
    struct hf_error err;
    if (hf_api_token_revoke(hf, id, &err) < 0)
        return cli_fail(cli, &err);
    if (cli->opts.json)
        puts("{\"revoked\":true}");
    else if (!cli->opts.quiet)
        cli_say(CLI_PLAIN, "revoked; services that run take notice within seconds");
    return 0;
}

int cmd_token(struct cli *cli, int argc, char **argv)
{
    bool revokes = strcmp(argv[0], "revoke") == 0;
    struct hf *hf;
    if (argc != (revokes ? 2 : 1) ||
        (!revokes && strcmp(argv[0], "create") != 0 && strcmp(argv[0], "list") != 0))
        return cli_usage(cli, "expected create, list or revoke ID");
    int code = cli_open(cli, &hf);
    if (code)
        return code;
    if (revokes)
        return revoke(cli, hf, argv[1]);
    return strcmp(argv[0], "create") == 0 ? create(cli, hf) : list(cli, hf);
}
