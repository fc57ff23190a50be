/* What happened: why, events. */
#include <string.h>

#include "cli.h"
#include "clock.h"
#include "text.h"
#include "wire.h"

enum { SENTENCE_MAX = 2 * HF_MESSAGE_MAX, FOLLOW_POLL_MS = 200, STORY_EVENTS = 200 };

/* Print an event as a sentence behind `lead`. */
static void say_event(const struct hf_event *event, const char *lead)
{
    static const enum cli_style styles[HF_EV_COUNT] = {[HF_EV_TAKEN_OVER] = CLI_BAD,
                                                       [HF_EV_FORCED] = CLI_BAD,
                                                       [HF_EV_LOST] = CLI_BAD,
                                                       [HF_EV_EXTENDED] = CLI_FAINT};
    struct hf_buf sentence = HF_BUF(SENTENCE_MAX);
    cli_tell_event(event, &sentence);
    cli_say(styles[event->kind], "%s%s", lead, sentence.failed ? "" : sentence.data);
    hf_buf_clear(&sentence);
}

/* ---- why ------------------------------------------------------------------------------------ */

struct story {
    int64_t n_told;
    char day[sizeof "2026-11-15"]; /* of the event told last */
};

static int tell_one(void *arg, const struct hf_event *event)
{
    struct story *story = arg;
    char at[HF_TIME_LEN + 1], lead[16];
    hf_format_time(event->at_ms, at);
    if (strncmp(story->day, at, sizeof story->day - 1) != 0) {
        snprintf(story->day, sizeof story->day, "%.10s", at);
        cli_say(CLI_BOLD, "%s (UTC)", story->day);
    }
    snprintf(lead, sizeof lead, "  %.8s  ", at + 11);
    say_event(event, lead);
    story->n_told++;
    return ferror(stdout);
}

static int tell_one_json(void *arg, const struct hf_event *event)
{
    struct story *story = arg;
    struct hf_buf json = HF_BUF(CLI_JSON_MAX);
    hf_wire_event(&json, event);
    if (!json.failed)
        printf("%s%s", story->n_told++ ? "," : "", json.data);
    hf_buf_clear(&json);
    return ferror(stdout);
}

/* NAME as a shell takes it. */
static void quote(const char *name, struct hf_buf *out)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "_./:@%+=,-";
    if (name[0] != '-' && !name[strspn(name, plain)]) {
        hf_buf_puts(out, name);
        return;
    }
    hf_buf_puts(out, name[0] == '-' ? "-- '" : "'");
    for (; *name; name++)
        if (*name == '\'')
            hf_buf_puts(out, "'\\''");
        else
            hf_buf_putc(out, *name);
    hf_buf_putc(out, '\'');
}

/* What is true now, and what to do next. */
static void say_now(const struct hf_status *s)
{
    char now[HF_MESSAGE_MAX];
    struct hf_buf name = HF_BUF(5 * HF_NAME_MAX);
    quote(s->name, &name);
    const char *quoted = name.failed ? s->name : name.data;
    hf_describe_status(s, now, sizeof now);
    cli_say(CLI_BOLD, "Now: %s%s", now,
            s->state == HF_STATE_STALE ? "; it is stale and may be taken over" : "");
    if (s->waiters)
        cli_say(CLI_PLAIN, "     %u waiting for it", s->waiters);
    if (s->state == HF_STATE_FREE)
        cli_say(CLI_PLAIN, "Next: take it with holdfast run %s -- COMMAND", quoted);
    else if (s->state == HF_STATE_STALE)
        cli_say(CLI_PLAIN, "Next: nothing needs doing, the next to ask takes it over; or free it "
                           "now with holdfast sweep");
    else
        cli_say(CLI_PLAIN,
                "Next: wait for it with --wait=5m; if you know that the holder is dead: holdfast "
                "release --force --fence %lld %s",
                (long long)s->fence, quoted);
    hf_buf_clear(&name);
}

static int why_json(const struct cli *cli, struct hf *hf, const struct hf_status *status,
                    const struct hf_event_query *query)
{
    struct story story = {0};
    struct hf_error err;
    struct hf_buf json = HF_BUF(CLI_JSON_MAX);
    hf_wire_status(&json, status);
    printf("{\"status\":%s,\"events\":[", json.failed ? "null" : json.data);
    hf_buf_clear(&json);
    int r = hf_events(hf, query, tell_one_json, &story, &err);
    puts("]}");
    return r < 0 ? cli_fail(cli, &err) : 0;
}

int cmd_why(struct cli *cli, int argc, char **argv)
{
    (void)argc;
    struct hf_event_query query = HF_EVENT_QUERY_INIT;
    struct story story = {0};
    struct hf_status status;
    struct hf_error err;
    struct hf *hf;
    int code = cli_open(cli, &hf);
    if (code)
        return code;
    query.name = argv[0];
    if (hf_status_of(hf, argv[0], &status, &err) < 0)
        return cli_fail(cli, &err);
    if (cli->opts.json)
        return why_json(cli, hf, &status, &query);
    query.limit = STORY_EVENTS;
    if (hf_events(hf, &query, tell_one, &story, &err) < 0)
        return cli_fail(cli, &err);
    if (!story.n_told)
        cli_say(CLI_PLAIN, "nothing is remembered of %s", argv[0]);
    else if (story.n_told == STORY_EVENTS)
        cli_say(CLI_FAINT, "(the newest %d; holdfast events --name shows all)", STORY_EVENTS);
    say_now(&status);
    return 0;
}

/* ---- events --------------------------------------------------------------------------------- */

struct feed {
    bool json;
    int64_t last_seq;
    int code;
};

static int feed_one(void *arg, const struct hf_event *event)
{
    struct feed *feed = arg;
    feed->last_seq = event->seq;
    if (feed->json) {
        struct hf_buf json = HF_BUF(CLI_JSON_MAX);
        hf_wire_event(&json, event);
        feed->code = cli_put_json(&json);
    } else {
        char at[HF_TIME_LEN + 1], lead[HF_TIME_LEN + HF_NAME_MAX + 8];
        hf_format_time(event->at_ms, at);
        snprintf(lead, sizeof lead, "%s  %s: ", at, event->name);
        say_event(event, lead);
    }
    return feed->code || ferror(stdout);
}

int cmd_events(struct cli *cli, int argc, char **argv)
{
    (void)argc, (void)argv;
    const struct cli_options *opts = &cli->opts;
    struct hf_event_query query = HF_EVENT_QUERY_INIT;
    struct feed feed = {.json = opts->json};
    struct hf_error err;
    struct hf *hf;
    int code = cli_open(cli, &hf);
    if (code)
        return code;
    query.name = opts->name;
    if (opts->since_ms)
        query.since_ms = hf_clock_wall_ms() - opts->since_ms;
    if (opts->follow)
        cli_hold_signals();
    do {
        query.after_seq = feed.last_seq;
        if (hf_events(hf, &query, feed_one, &feed, &err) < 0)
            return cli_fail(cli, &err);
        code = feed.code ? feed.code : cli_flush();
    } while (!code && opts->follow && !cli_pause(FOLLOW_POLL_MS));
    return code;
}
