-- holdfast's schema for PostgreSQL, format 1. `holdfast init` runs it in one transaction; by hand:
--
--     psql -1 -v ON_ERROR_STOP=1 -f FILE
--
-- It creates everything in the schema "holdfast" and touches nothing else. A role of an application
-- that is not the owner needs:
--
--     GRANT USAGE ON SCHEMA holdfast TO app;
--     GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA holdfast TO app;
--     GRANT USAGE ON SEQUENCE holdfast.seq TO app;
--
-- How it works. A name has one row in `lock`. A grant gives it the next number of `seq` as its fence,
-- and the fence is part of the row's key. That is what the rest stands on:
--   - PostgreSQL lets a change of a key wait for every FOR KEY SHARE lock, but no other change: so
--     guard() keeps grants away until the guarded transaction ends, and never a renewal or a release.
--   - In REPEATABLE READ, where a snapshot hides what came after it, FOR KEY SHARE fails on a row
--     whose key has changed since, and not on one that was only renewed.
--   - Renewals and releases change no indexed column (they are HOT). Where an idle transaction keeps
--     vacuum from removing old versions, those of earlier grants have lower fences: who looks for the
--     newest fence first never meets them.
-- So nobody updates `fence` but a grant; a row is never deleted.
--
-- Order of locks, for all functions: the advisory ones of a claim's tokens and of a workflow with a limit,
-- lock, waiter, pending, running, execution, ended, denial. Every function works on one name, and
-- callers of many sort them by name: no deadlocks.
--
-- Time is the server's and is read by clock() alone. A lease is over when clock() >= locked_until.
-- Processes can be judged only where they run. Where a function has to know whether one of the
-- caller's own machine lives, it changes nothing and answers with code 100 and a list; the caller
-- looks and calls again. See `answer`.

DO $$
BEGIN
    IF to_regnamespace('holdfast') IS NULL THEN
        CREATE SCHEMA holdfast;
    END IF;
END $$;
COMMENT ON SCHEMA holdfast IS 'Holdfast: locks with leases, fences and waiters. Read lock and event; write only through the functions';

-- ---- tables ---------------------------------------------------------------------------------------

CREATE TABLE holdfast.meta (
    one        boolean     PRIMARY KEY DEFAULT true CHECK (one),
    format     integer     NOT NULL,
    epoch      integer     NOT NULL DEFAULT 0,
    pruned_seq bigint      NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE  holdfast.meta            IS 'One row: what this schema is';
COMMENT ON COLUMN holdfast.meta.one        IS 'Always true: there is one row';
COMMENT ON COLUMN holdfast.meta.format     IS 'Version of this schema; programs refuse one that they do not know';
COMMENT ON COLUMN holdfast.meta.epoch      IS 'How often the fences were raised by holdfast init --bump-epoch';
COMMENT ON COLUMN holdfast.meta.pruned_seq IS 'Events up to this number have been removed because of their age';
COMMENT ON COLUMN holdfast.meta.created_at IS 'When this schema was made';
INSERT INTO holdfast.meta (format) VALUES (1);

CREATE SEQUENCE holdfast.seq MAXVALUE 9007199254740991;
COMMENT ON SEQUENCE holdfast.seq IS 'Numbers of events and fences: the fence of a grant is the number of its "acquired" event. Below 2^53';

CREATE TABLE holdfast.name (
    name text COLLATE "C" PRIMARY KEY
);
COMMENT ON TABLE  holdfast.name      IS 'Every name that was ever asked for: who adds it here adds its row to lock, so that there is only one';
COMMENT ON COLUMN holdfast.name.name IS 'What is locked';

-- What seldom changes first, and what each release changes last: only what lies between the first and the last
-- byte that differ is written to the log.
CREATE TABLE holdfast.lock (
    release_lost  bigint  NOT NULL DEFAULT 0,
    taken_expired bigint  NOT NULL DEFAULT 0,
    taken_died    bigint  NOT NULL DEFAULT 0,
    forced        bigint  NOT NULL DEFAULT 0,
    lost          bigint  NOT NULL DEFAULT 0,
    tickets       bigint  NOT NULL DEFAULT 0,
    waiters       integer NOT NULL DEFAULT 0,
    parked        boolean NOT NULL DEFAULT false,
    name          text    NOT NULL COLLATE "C",
    lost_fences   bigint[] NOT NULL,
    owner         text    COLLATE "C",
    note          text    COLLATE "C",
    processes     text    COLLATE "C",
    took          text    COLLATE "C",
    execution_id  uuid,
    ttl_ms        bigint,
    tidied        bigint  NOT NULL DEFAULT 0,
    fence         bigint  NOT NULL DEFAULT 0,
    granted       bigint  NOT NULL DEFAULT 0,
    locked_at     timestamptz,
    told_at       timestamptz,
    released      bigint  NOT NULL DEFAULT 0,
    offered       boolean NOT NULL DEFAULT false,
    locked_until  timestamptz,
    lock_id       bytea,
    ended         bytea   NOT NULL DEFAULT '',
    PRIMARY KEY (name, fence)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000, vacuum_truncate = false);
ALTER TABLE holdfast.lock ALTER COLUMN ended SET STORAGE PLAIN, ALTER COLUMN lost_fences SET STORAGE PLAIN;
-- Every lookup must go by the index, the newest fence first: where an idle transaction keeps vacuum from
-- removing old versions, any other plan reads them all. The planner has other ideas of a table of one page,
-- so there are some empty ones from the start; and of a row that was analyzed among a thousand old versions
-- of itself (they seem to lie in order), so nothing is noted of the key's columns.
ALTER TABLE holdfast.lock ALTER COLUMN name SET STATISTICS 0, ALTER COLUMN fence SET STATISTICS 0;
INSERT INTO holdfast.lock (name, lost_fences, ended) SELECT 'page ' || i, '{}', convert_to(repeat('-', 3500), 'UTF8') FROM generate_series(1, 32) AS i;
DELETE FROM holdfast.lock;
COMMENT ON TABLE  holdfast.lock               IS 'One row per name: who holds it. Free: lock_id is NULL; then what is said of the holder is of the last one. Kept for ever, since the next fence must be above the last';
COMMENT ON COLUMN holdfast.lock.name          IS 'What is locked';
COMMENT ON COLUMN holdfast.lock.fence         IS 'Number of the grant, or of the last one: only grows. Pass it to what you write to; see guard()';
COMMENT ON COLUMN holdfast.lock.lock_id       IS 'Hash of the holder''s token; NULL: free';
COMMENT ON COLUMN holdfast.lock.owner         IS 'Who holds it, for people';
COMMENT ON COLUMN holdfast.lock.note          IS 'What the holder wants people to know';
COMMENT ON COLUMN holdfast.lock.locked_at     IS 'When it was granted';
COMMENT ON COLUMN holdfast.lock.locked_until  IS 'When the lease ends unless it is renewed before; from then on whoever asks may have it. NULL: free';
COMMENT ON COLUMN holdfast.lock.ttl_ms        IS 'How long each renewal makes it last';
COMMENT ON COLUMN holdfast.lock.told_at       IS 'When an event last said that the holder is alive';
COMMENT ON COLUMN holdfast.lock.offered       IS 'Granted to a waiter that has not confirmed it yet: within 5 seconds, or the next one gets it';
COMMENT ON COLUMN holdfast.lock.processes     IS 'Processes that the lease ends with: BOOT-ID PID-NAMESPACE PID:START ...; empty: none, only the time ends it';
COMMENT ON COLUMN holdfast.lock.execution_id  IS 'The execution that runs under this lease, if any';
COMMENT ON COLUMN holdfast.lock.took          IS 'The stale lease that this grant took over: REASON LOCK_ID FENCE ACQUIRED_AT_MS HELD_FOR_MS TTL_MS OWNER; REASON 1: expired, 2: its processes died, 4: its execution was over';
COMMENT ON COLUMN holdfast.lock.ended         IS 'The last 8 tokens that were given back (byte 1, lock_id) or lost (byte 2, lock_id), newest first: never granted again';
COMMENT ON COLUMN holdfast.lock.lost_fences   IS 'Fences of the last 8 leases that were lost, newest first. Of those up to the last one nothing is known; every other lease was given back by its holder';
COMMENT ON COLUMN holdfast.lock.parked        IS 'Executions may be parked here: PENDING, and made ready when it is free';
COMMENT ON COLUMN holdfast.lock.waiters       IS 'How many rows waiter has for this name';
COMMENT ON COLUMN holdfast.lock.tickets       IS 'How many have ever queued up';
COMMENT ON COLUMN holdfast.lock.tidied        IS 'The fence up to which tidy() has gone over the index, or is about to';
COMMENT ON COLUMN holdfast.lock.granted       IS 'How often it was granted';
COMMENT ON COLUMN holdfast.lock.released      IS 'How often it was given back';
COMMENT ON COLUMN holdfast.lock.release_lost  IS 'How often somebody gave back what was no longer theirs';
COMMENT ON COLUMN holdfast.lock.taken_expired IS 'How often a lease was taken over because its time was up';
COMMENT ON COLUMN holdfast.lock.taken_died    IS 'How often a lease was taken over because its processes had died';
COMMENT ON COLUMN holdfast.lock.forced        IS 'How often an operator freed it by force';
COMMENT ON COLUMN holdfast.lock.lost          IS 'How often a holder reported that it had lost the lease';

CREATE TABLE holdfast.waiter (
    name      text        NOT NULL COLLATE "C",
    rank      bigint      NOT NULL,
    ticket    bigint      NOT NULL,
    ttl_ms    bigint      NOT NULL,
    until     timestamptz NOT NULL,
    seen_at   timestamptz NOT NULL,
    queued_at timestamptz NOT NULL,
    lock_id   bytea       NOT NULL,
    owner     text        NOT NULL COLLATE "C",
    note      text        NOT NULL COLLATE "C",
    processes text        NOT NULL COLLATE "C",
    channel   text        NOT NULL COLLATE "C",
    PRIMARY KEY (name, rank, ticket),
    UNIQUE (name, lock_id)
) WITH (fillfactor = 70);
COMMENT ON TABLE  holdfast.waiter           IS 'Who waits for a name: by rank, then ticket. Changed only by who has locked the name''s row in lock';
COMMENT ON COLUMN holdfast.waiter.name      IS 'What it waits for';
COMMENT ON COLUMN holdfast.waiter.rank      IS 'Its priority, negated: the lowest goes first';
COMMENT ON COLUMN holdfast.waiter.ticket    IS 'Its number in the order of coming, per name';
COMMENT ON COLUMN holdfast.waiter.lock_id   IS 'Hash of the waiter''s token';
COMMENT ON COLUMN holdfast.waiter.ttl_ms    IS 'How long its lease will last';
COMMENT ON COLUMN holdfast.waiter.until     IS 'When it gives up; infinity: never';
COMMENT ON COLUMN holdfast.waiter.seen_at   IS 'When it last asked; after 20 seconds without a word it is gone';
COMMENT ON COLUMN holdfast.waiter.queued_at IS 'When it began to wait';
COMMENT ON COLUMN holdfast.waiter.owner     IS 'Who waits, for people';
COMMENT ON COLUMN holdfast.waiter.note      IS 'What the waiter wants people to know';
COMMENT ON COLUMN holdfast.waiter.processes IS 'Processes that it ends with, as in lock';
COMMENT ON COLUMN holdfast.waiter.channel   IS 'Where it is told (NOTIFY) that it has been granted the lock; empty: it asks by itself';

-- The key moves with the window, so that beside an idle transaction the newest is found at once.
-- Refusals at the same time count in a row each.
CREATE TABLE holdfast.denial (
    name  text        NOT NULL COLLATE "C",
    since timestamptz NOT NULL,
    n     integer     NOT NULL,
    total bigint      NOT NULL,
    seq   bigint      GENERATED ALWAYS AS IDENTITY,
    PRIMARY KEY (name, since, seq)
) WITH (fillfactor = 50);
COMMENT ON TABLE  holdfast.denial       IS 'How often a name was refused. Apart from lock, so that a refusal never waits for, nor delays, the holder';
COMMENT ON COLUMN holdfast.denial.name  IS 'What was asked for';
COMMENT ON COLUMN holdfast.denial.since IS 'Beginning of the current window of a second, in which at most 16 refusals become events';
COMMENT ON COLUMN holdfast.denial.n     IS 'Refusals in this window';
COMMENT ON COLUMN holdfast.denial.total IS 'Refusals ever';
COMMENT ON COLUMN holdfast.denial.seq   IS 'Tells rows of the same name and time apart';
COMMENT ON SEQUENCE holdfast.denial_seq_seq IS 'Numbers of rows of denial';

CREATE TABLE holdfast.event (
    seq          bigint      PRIMARY KEY,
    at           timestamptz NOT NULL,
    fence        bigint      NOT NULL,
    kind         text        NOT NULL COLLATE "C",
    name         text        NOT NULL COLLATE "C",
    owner        text        NOT NULL COLLATE "C",
    execution_id uuid,
    reason       text        NOT NULL COLLATE "C",
    detail       text        NOT NULL COLLATE "C"
);
CREATE INDEX event_name ON holdfast.event (name, seq);
COMMENT ON TABLE  holdfast.event              IS 'What happened, for holdfast why and holdfast events. Removed after 30 days, or beyond a million';
COMMENT ON INDEX  holdfast.event_name         IS 'The story of one name';
COMMENT ON COLUMN holdfast.event.seq          IS 'Its number, from holdfast.seq; gaps are normal';
COMMENT ON COLUMN holdfast.event.at           IS 'When it happened';
COMMENT ON COLUMN holdfast.event.fence        IS 'Fence of the lease that it concerns';
COMMENT ON COLUMN holdfast.event.kind         IS 'acquired, released, extended, denied, expired, taken-over, forced, lost, started, finished, skipped, duplicate';
COMMENT ON COLUMN holdfast.event.name         IS 'What it happened to';
COMMENT ON COLUMN holdfast.event.owner        IS 'Whom it concerns';
COMMENT ON COLUMN holdfast.event.execution_id IS 'The execution under that lease, if any';
COMMENT ON COLUMN holdfast.event.reason       IS 'Why';
COMMENT ON COLUMN holdfast.event.detail       IS 'More, for people';

-- Changed only by who has locked the row of its lock. What changes with its state is in no index, so that a
-- claim and an end are cheap (HOT): who waits, runs and has ended is found in pending, running and ended. Input and output are
-- apart, so that a row is small and travels whole in an answer. What never changes first, for the log, as in lock. A
-- page holds what was recorded and, a third larger, what a claim of all of it makes of it.
CREATE TABLE holdfast.execution (
    seq              bigint      GENERATED ALWAYS AS IDENTITY,
    created_at       timestamptz NOT NULL,
    run_at           timestamptz NOT NULL,
    priority         integer     NOT NULL DEFAULT 0,
    max_attempts     integer     NOT NULL DEFAULT 0,
    on_lost          integer     NOT NULL DEFAULT 0,
    concurrency      integer     NOT NULL DEFAULT 0,
    retry_backoff_ms bigint      NOT NULL DEFAULT 0,
    once             boolean     NOT NULL DEFAULT false,
    id               uuid        PRIMARY KEY,
    retry_of         uuid,
    workflow         text        NOT NULL COLLATE "C",
    lock             text        NOT NULL COLLATE "C",
    key              text        COLLATE "C",
    started_at       timestamptz,
    fence            bigint,
    finished_at      timestamptz,
    attempt          integer     NOT NULL DEFAULT 0,
    spent            integer     NOT NULL DEFAULT 0,
    exit_code        integer,
    spawned          boolean     NOT NULL DEFAULT false,
    cancel_requested boolean     NOT NULL DEFAULT false,
    to_verify        boolean     NOT NULL DEFAULT false,
    parked           boolean     NOT NULL DEFAULT false,
    frees_key        boolean     NOT NULL DEFAULT false,
    state            text        NOT NULL COLLATE "C",
    owner            text        COLLATE "C",
    reason           text        COLLATE "C"
) WITH (fillfactor = 40, vacuum_truncate = false, autovacuum_vacuum_threshold = 1000, autovacuum_analyze_threshold = 500);
-- Some empty pages from the start, as lock has them, so that no plan is made that reads the whole table.
ALTER TABLE holdfast.execution ALTER COLUMN reason SET STORAGE PLAIN;
INSERT INTO holdfast.execution (run_at, created_at, id, state, workflow, lock, reason)
SELECT now(), now(), gen_random_uuid(), 'ABORTED', '', '', repeat('-', 3500) FROM generate_series(1, 64) AS i;
DELETE FROM holdfast.execution;
ALTER TABLE holdfast.execution ALTER COLUMN reason SET STORAGE EXTENDED, ALTER COLUMN seq RESTART;
CREATE UNIQUE INDEX execution_age ON holdfast.execution (seq);
CREATE UNIQUE INDEX execution_key ON holdfast.execution (workflow, key)
    WHERE NOT once AND key IS NOT NULL;
CREATE UNIQUE INDEX execution_once ON holdfast.execution (workflow, key)
    WHERE once AND NOT frees_key;
COMMENT ON SEQUENCE holdfast.execution_seq_seq IS 'Numbers of executions';
COMMENT ON TABLE  holdfast.execution                  IS 'Runs of workflows, and of commands that are to happen once (holdfast run --once). Removed 90 days after their end, or as retain has it';
COMMENT ON INDEX  holdfast.execution_age              IS 'The newest first, for lists';
COMMENT ON INDEX  holdfast.execution_key              IS 'An idempotency key belongs to one execution';
COMMENT ON INDEX  holdfast.execution_once             IS 'With --once only a run that may still succeed, or has, occupies its key';
COMMENT ON COLUMN holdfast.execution.seq              IS 'Its number in the order of being asked for';
COMMENT ON COLUMN holdfast.execution.id               IS 'Its id';
COMMENT ON COLUMN holdfast.execution.workflow         IS 'What runs; with --once the name of the lock';
COMMENT ON COLUMN holdfast.execution.lock             IS 'The name that is locked while it runs';
COMMENT ON COLUMN holdfast.execution.state            IS 'PENDING, RUNNING, SUCCESS, FAILED or ABORTED';
COMMENT ON COLUMN holdfast.execution.key              IS 'Idempotency key: the same key is the same execution; NULL: none';
COMMENT ON COLUMN holdfast.execution.once             IS 'The key is that of a run that is to happen once, and is free again after a failure';
COMMENT ON COLUMN holdfast.execution.frees_key        IS 'With once: it has failed or was aborted';
COMMENT ON COLUMN holdfast.execution.run_at           IS 'Not before this time';
COMMENT ON COLUMN holdfast.execution.priority         IS 'The higher goes first';
COMMENT ON COLUMN holdfast.execution.attempt          IS 'How often it was begun';
COMMENT ON COLUMN holdfast.execution.max_attempts     IS 'How often its command may be started; 0: no limit';
COMMENT ON COLUMN holdfast.execution.spent            IS 'How often its command was started';
COMMENT ON COLUMN holdfast.execution.retry_backoff_ms IS 'FAILED, it is PENDING again after so long, doubled each time, while attempts are left; 0: it is final';
COMMENT ON COLUMN holdfast.execution.concurrency      IS 'Of its workflow, so many at once may run; 0: any number';
COMMENT ON COLUMN holdfast.execution.on_lost          IS 'What becomes of it when its lease is lost after its command was started. 0: ABORTED; 1: PENDING again; 2: the same, but only after it was verified that it was not done';
COMMENT ON COLUMN holdfast.execution.fence            IS 'Fence of its latest attempt''s lease';
COMMENT ON COLUMN holdfast.execution.owner            IS 'Who runs it, for people';
COMMENT ON COLUMN holdfast.execution.created_at       IS 'When it was asked for';
COMMENT ON COLUMN holdfast.execution.started_at       IS 'When its last attempt began';
COMMENT ON COLUMN holdfast.execution.finished_at      IS 'When it ended';
COMMENT ON COLUMN holdfast.execution.spawned          IS 'Its command may have begun: what happened then is not repeated silently';
COMMENT ON COLUMN holdfast.execution.cancel_requested IS 'Somebody asked it to stop';
COMMENT ON COLUMN holdfast.execution.to_verify        IS 'It may have been done: whoever claims it looks into that first';
COMMENT ON COLUMN holdfast.execution.parked           IS 'PENDING, and its lock was held: not looked at before that is free';
COMMENT ON COLUMN holdfast.execution.exit_code        IS 'Of its command';
COMMENT ON COLUMN holdfast.execution.reason           IS 'Why it failed or was aborted, or why its last attempt was lost';
COMMENT ON COLUMN holdfast.execution.retry_of         IS 'The execution that it repeats';

CREATE TABLE holdfast.pending (
    seq         bigint      PRIMARY KEY,
    run_at      timestamptz NOT NULL,
    priority    integer     NOT NULL,
    concurrency integer     NOT NULL,
    to_verify   boolean     NOT NULL,
    parked      boolean     NOT NULL,
    id          uuid        NOT NULL,
    workflow    text        NOT NULL COLLATE "C",
    lock        text        NOT NULL COLLATE "C"
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000, autovacuum_analyze_threshold = 1000);
-- It is empty whenever all is done. Of a table that was empty when it was last analyzed the planner believes that
-- any way to read it is as good as another; so there are always some that are never due.
INSERT INTO holdfast.pending (seq, run_at, priority, concurrency, to_verify, parked, id, workflow, lock)
SELECT -i, 'infinity', -2147483648, 0, false, false, '00000000-0000-0000-0000-000000000000', '', '' FROM generate_series(1, 256) AS i;
CREATE INDEX pending_plain ON holdfast.pending (priority DESC, run_at, seq) WHERE NOT parked AND concurrency = 0 AND NOT to_verify;
CREATE INDEX pending_group ON holdfast.pending (workflow, concurrency, to_verify, priority DESC, run_at, seq) WHERE NOT parked;
CREATE INDEX pending_special ON holdfast.pending (workflow, concurrency, to_verify) WHERE NOT parked AND (concurrency > 0 OR to_verify);
CREATE INDEX pending_waiting ON holdfast.pending (lock, parked, priority DESC, run_at, seq);
CREATE INDEX pending_parked ON holdfast.pending (lock, workflow, concurrency, to_verify, priority DESC, run_at, seq) WHERE parked;
COMMENT ON TABLE  holdfast.pending             IS 'A row for each execution that is PENDING, so that who looks for work reads only those; and some with negative numbers that stand for none. Locked before its execution';
COMMENT ON INDEX  holdfast.pending_plain       IS 'What is ready to be run and concerns no limit, in the order in which it is claimed';
COMMENT ON INDEX  holdfast.pending_group       IS 'The same for each workflow: so one that runs as often as it may is passed over at once';
COMMENT ON INDEX  holdfast.pending_special     IS 'Of which workflows something is ready that is not in pending_plain';
COMMENT ON INDEX  holdfast.pending_waiting     IS 'What waits for each lock: ready, or parked until it is free';
COMMENT ON INDEX  holdfast.pending_parked      IS 'What is parked at each lock, by workflow: the first of each is made ready when it is free';
COMMENT ON COLUMN holdfast.pending.seq         IS 'As in execution';
COMMENT ON COLUMN holdfast.pending.run_at      IS 'As in execution';
COMMENT ON COLUMN holdfast.pending.priority    IS 'As in execution';
COMMENT ON COLUMN holdfast.pending.concurrency IS 'As in execution';
COMMENT ON COLUMN holdfast.pending.to_verify   IS 'As in execution';
COMMENT ON COLUMN holdfast.pending.parked      IS 'As in execution';
COMMENT ON COLUMN holdfast.pending.id          IS 'As in execution';
COMMENT ON COLUMN holdfast.pending.workflow    IS 'As in execution';
COMMENT ON COLUMN holdfast.pending.lock        IS 'As in execution';

CREATE TABLE holdfast.running (
    seq      bigint NOT NULL,
    workflow text   NOT NULL COLLATE "C",
    PRIMARY KEY (workflow, seq)
);
COMMENT ON TABLE  holdfast.running          IS 'A row for each execution that is RUNNING';
COMMENT ON COLUMN holdfast.running.seq      IS 'As in execution';
COMMENT ON COLUMN holdfast.running.workflow IS 'As in execution';

CREATE TABLE holdfast.ended (
    finished_at timestamptz NOT NULL,
    seq         bigint      NOT NULL,
    once        boolean     NOT NULL,
    workflow    text        NOT NULL COLLATE "C"
);
CREATE INDEX ended_of ON holdfast.ended (workflow, finished_at, seq) WHERE NOT once;
CREATE INDEX ended_once ON holdfast.ended (finished_at, seq) WHERE once;
COMMENT ON TABLE  holdfast.ended             IS 'A row for each execution that has ended, for who removes them';
COMMENT ON INDEX  holdfast.ended_of          IS 'Of each workflow the oldest first';
COMMENT ON INDEX  holdfast.ended_once        IS 'The same for runs that were to happen once, whatever their name';
COMMENT ON COLUMN holdfast.ended.finished_at IS 'As in execution';
COMMENT ON COLUMN holdfast.ended.seq         IS 'As in execution';
COMMENT ON COLUMN holdfast.ended.once        IS 'As in execution';
COMMENT ON COLUMN holdfast.ended.workflow    IS 'As in execution';

CREATE TABLE holdfast.execution_data (
    id             uuid   PRIMARY KEY,
    input          bytea,
    output_head    bytea,
    output_skipped bigint,
    output_tail    bytea
);
COMMENT ON TABLE  holdfast.execution_data                IS 'What an execution was given and has printed; no row: nothing of either. Removed with it';
COMMENT ON COLUMN holdfast.execution_data.id             IS 'Whose it is';
COMMENT ON COLUMN holdfast.execution_data.input          IS 'What it is given on stdin';
COMMENT ON COLUMN holdfast.execution_data.output_head    IS 'Beginning of what it printed';
COMMENT ON COLUMN holdfast.execution_data.output_skipped IS 'Bytes between head and tail that were not kept';
COMMENT ON COLUMN holdfast.execution_data.output_tail    IS 'End of what it printed';

CREATE TABLE holdfast.api_token (
    created_at timestamptz NOT NULL,
    expires_at timestamptz,
    id         text        PRIMARY KEY COLLATE "C",
    hash       bytea       NOT NULL,
    note       text        NOT NULL COLLATE "C",
    verbs      text        NOT NULL COLLATE "C",
    prefix     text        NOT NULL COLLATE "C"
);
COMMENT ON TABLE  holdfast.api_token            IS 'Who may use holdfast serve --require-token, and for what: see holdfast token';
COMMENT ON COLUMN holdfast.api_token.created_at IS 'When it was made';
COMMENT ON COLUMN holdfast.api_token.expires_at IS 'When it ends; NULL: never';
COMMENT ON COLUMN holdfast.api_token.id         IS 'The first digits of the hash, for people';
COMMENT ON COLUMN holdfast.api_token.hash       IS 'SHA-256 of the token, which is kept nowhere';
COMMENT ON COLUMN holdfast.api_token.note       IS 'What it is for';
COMMENT ON COLUMN holdfast.api_token.verbs      IS 'What it allows, separated by spaces';
COMMENT ON COLUMN holdfast.api_token.prefix     IS 'Only names that begin so; empty: all';

CREATE TABLE holdfast.sleeper (
    since     timestamptz NOT NULL,
    listener  integer     NOT NULL,
    id        bytea       PRIMARY KEY,
    channel   text        NOT NULL COLLATE "C",
    workflows text[]      COLLATE "C"
);
COMMENT ON TABLE  holdfast.sleeper          IS 'Workers that sleep until something is to be run: the one that has slept longest is told, and is taken out';
COMMENT ON COLUMN holdfast.sleeper.since     IS 'Since when; after 10 minutes without a word it is gone, whoever listens';
COMMENT ON COLUMN holdfast.sleeper.listener  IS 'Process id of its connection that listens: where that has ended, so has the worker';
COMMENT ON COLUMN holdfast.sleeper.id        IS 'Which one';
COMMENT ON COLUMN holdfast.sleeper.channel   IS 'Where it is told (NOTIFY)';
COMMENT ON COLUMN holdfast.sleeper.workflows IS 'Of which it would claim; NULL: of any';

-- ---- types ----------------------------------------------------------------------------------------

CREATE TYPE holdfast.answer AS (
    code            integer,
    queued          boolean,
    ahead           integer,
    freed           integer,
    now_ms          bigint,
    held            boolean,
    lock_id         bytea,
    fence           bigint,
    owner           text,
    note            text,
    execution_id    text,
    locked_at_ms    bigint,
    locked_until_ms bigint,
    ttl_ms          bigint,
    waiters         integer,
    processes       text,
    took            text,
    has_holder      boolean,
    look            text,
    duplicate       boolean,
    ready           text,
    execution       holdfast.execution
);
COMMENT ON TYPE   holdfast.answer                 IS 'What a function answers: an outcome, and the lock as it is then';
COMMENT ON COLUMN holdfast.answer.code            IS '0: done; -1: held by another; -2: not to be claimed any more; -3: lost, not yours; -4: not the current fence; -5: the key has another input; -9: no such execution; -11: too many are waiting; -19: already done; 100: nothing was done, look at the processes in look, put each lock_id, or the processes themselves, into alive or dead, call again';
COMMENT ON COLUMN holdfast.answer.queued          IS 'Refused, and now waiting in the queue';
COMMENT ON COLUMN holdfast.answer.ahead           IS 'So many wait ahead of it, counted up to 8';
COMMENT ON COLUMN holdfast.answer.freed           IS 'settle: a lease was ended that was 1: expired, 2: of dead processes, 4: of an execution that is over';
COMMENT ON COLUMN holdfast.answer.now_ms          IS 'The server''s clock; all times in ms since 1970';
COMMENT ON COLUMN holdfast.answer.held            IS 'It is held';
COMMENT ON COLUMN holdfast.answer.lock_id         IS 'Hash of the holder''s token';
COMMENT ON COLUMN holdfast.answer.fence           IS 'Fence of the holder, or the last one';
COMMENT ON COLUMN holdfast.answer.owner           IS 'The holder, for people';
COMMENT ON COLUMN holdfast.answer.note            IS 'The holder''s note';
COMMENT ON COLUMN holdfast.answer.execution_id    IS 'The execution under the lease, or empty';
COMMENT ON COLUMN holdfast.answer.locked_at_ms    IS 'When it was granted';
COMMENT ON COLUMN holdfast.answer.locked_until_ms IS 'When the lease ends';
COMMENT ON COLUMN holdfast.answer.ttl_ms          IS 'How long each renewal makes it last';
COMMENT ON COLUMN holdfast.answer.waiters         IS 'How many wait';
COMMENT ON COLUMN holdfast.answer.processes       IS 'The processes that the lease ends with, or empty';
COMMENT ON COLUMN holdfast.answer.took            IS 'What this grant took over, as in lock, or empty';
COMMENT ON COLUMN holdfast.answer.has_holder      IS 'The fields from held on are about who holds it, as an answer to people';
COMMENT ON COLUMN holdfast.answer.look            IS 'With code 100: a line for each, hex lock_id, space, processes. Queued: what ahead() says. release: channel of the new holder, which the caller is to tell, being on its machine';
COMMENT ON COLUMN holdfast.answer.duplicate       IS 'Nothing was begun: the execution was there before';
COMMENT ON COLUMN holdfast.answer.ready           IS 'Workflows, a line each, of which an execution became ready to be claimed, or may be: after the commit, call wake_idle()';
COMMENT ON COLUMN holdfast.answer.execution       IS 'The execution that was begun, found, ended or cancelled, if any';

-- A request at work, passed between the functions below.
CREATE TYPE holdfast.turn AS (
    row       holdfast.lock,
    now       timestamptz,
    asker     bytea,
    here      text,
    alive     bytea[],
    dead      bytea[],
    may_grant boolean,
    took      text,
    inherited boolean,
    in_window integer,
    ahead     integer,
    x         holdfast.execution,
    found     holdfast.execution,
    vacated   boolean,
    ready     text
);
COMMENT ON TYPE   holdfast.turn           IS 'A request at work, between the functions that share the work';
COMMENT ON COLUMN holdfast.turn.row       IS 'The name''s row, locked; saved at the end';
COMMENT ON COLUMN holdfast.turn.now       IS 'The time, read after the row was locked';
COMMENT ON COLUMN holdfast.turn.asker     IS 'lock_id of who asks, or NULL';
COMMENT ON COLUMN holdfast.turn.here      IS 'BOOT-ID PID-NAMESPACE of the caller: it can judge processes that begin so';
COMMENT ON COLUMN holdfast.turn.alive     IS 'Processes that the caller has seen alive, or lock_ids of theirs';
COMMENT ON COLUMN holdfast.turn.dead      IS 'Processes that the caller knows to be dead, or lock_ids of theirs';
COMMENT ON COLUMN holdfast.turn.may_grant IS 'The row is locked FOR UPDATE: no guard stands against a grant';
COMMENT ON COLUMN holdfast.turn.took      IS 'The stale lease that was ended in this request, for the grant that follows, as in lock; empty: none was';
COMMENT ON COLUMN holdfast.turn.inherited IS 'It was counted and told when it was offered to one who never confirmed it';
COMMENT ON COLUMN holdfast.turn.in_window IS 'How many of the first 8 in the queue are still there';
COMMENT ON COLUMN holdfast.turn.ahead     IS 'How many are ahead of the asker in the queue, counted up to 8';
COMMENT ON COLUMN holdfast.turn.x         IS 'The execution under the lease, or the one that ended with it; its id is NULL: none';
COMMENT ON COLUMN holdfast.turn.found     IS 'The execution that the request means; its id is NULL: none';
COMMENT ON COLUMN holdfast.turn.vacated   IS 'A lease ended in this request, or one that was ready to be claimed did: a parked one may be next';
COMMENT ON COLUMN holdfast.turn.ready     IS 'As in answer';
