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
-- Order of locks, for all functions: lock, waiter, execution, denial. Every function works on one
-- name, and callers of many sort them by name: no deadlocks.
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

-- Fixed sizes first: they need no padding, and what changes with a grant lies together.
CREATE TABLE holdfast.lock (
    fence         bigint  NOT NULL DEFAULT 0,
    locked_at     timestamptz,
    locked_until  timestamptz,
    told_at       timestamptz,
    ttl_ms        bigint,
    granted       bigint  NOT NULL DEFAULT 0,
    released      bigint  NOT NULL DEFAULT 0,
    release_lost  bigint  NOT NULL DEFAULT 0,
    taken_expired bigint  NOT NULL DEFAULT 0,
    taken_died    bigint  NOT NULL DEFAULT 0,
    forced        bigint  NOT NULL DEFAULT 0,
    lost          bigint  NOT NULL DEFAULT 0,
    tickets       bigint  NOT NULL DEFAULT 0,
    waiters       integer NOT NULL DEFAULT 0,
    offered       boolean NOT NULL DEFAULT false,
    name          text    NOT NULL COLLATE "C",
    lock_id       bytea,
    owner         text    COLLATE "C",
    note          text    COLLATE "C",
    processes     text    COLLATE "C",
    took          text    COLLATE "C",
    execution_id  uuid,
    ended         bytea   NOT NULL DEFAULT '',
    PRIMARY KEY (name, fence)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);
ALTER TABLE holdfast.lock ALTER COLUMN ended SET STORAGE PLAIN;
COMMENT ON TABLE  holdfast.lock               IS 'One row per name: who holds it. Free: lock_id is NULL. Kept for ever, since the next fence must be above the last';
COMMENT ON COLUMN holdfast.lock.name          IS 'What is locked';
COMMENT ON COLUMN holdfast.lock.fence         IS 'Number of the grant, or of the last one: only grows. Pass it to what you write to; see guard()';
COMMENT ON COLUMN holdfast.lock.lock_id       IS 'Hash of the holder''s token; NULL: free';
COMMENT ON COLUMN holdfast.lock.owner         IS 'Who holds it, for people';
COMMENT ON COLUMN holdfast.lock.note          IS 'What the holder wants people to know';
COMMENT ON COLUMN holdfast.lock.locked_at     IS 'When it was granted';
COMMENT ON COLUMN holdfast.lock.locked_until  IS 'When the lease ends unless it is renewed before; from then on whoever asks may have it';
COMMENT ON COLUMN holdfast.lock.ttl_ms        IS 'How long each renewal makes it last';
COMMENT ON COLUMN holdfast.lock.told_at       IS 'When an event last said that the holder is alive';
COMMENT ON COLUMN holdfast.lock.offered       IS 'Granted to a waiter that has not confirmed it yet: within 5 seconds, or the next one gets it';
COMMENT ON COLUMN holdfast.lock.processes     IS 'Processes that the lease ends with: BOOT-ID PID-NAMESPACE PID:START ...; empty: none, only the time ends it';
COMMENT ON COLUMN holdfast.lock.execution_id  IS 'The execution that runs under this lease, if any';
COMMENT ON COLUMN holdfast.lock.took          IS 'The stale lease that this grant took over: REASON LOCK_ID FENCE ACQUIRED_AT_MS HELD_FOR_MS TTL_MS OWNER; REASON 1: expired, 2: its processes died';
COMMENT ON COLUMN holdfast.lock.ended         IS 'The last 8 tokens that were given back (byte 1, lock_id) or lost (byte 2, lock_id), newest first: never granted again';
COMMENT ON COLUMN holdfast.lock.waiters       IS 'How many rows waiter has for this name';
COMMENT ON COLUMN holdfast.lock.tickets       IS 'How many have ever queued up';
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
CREATE TABLE holdfast.denial (
    name  text        NOT NULL COLLATE "C",
    since timestamptz NOT NULL,
    n     integer     NOT NULL,
    total bigint      NOT NULL,
    PRIMARY KEY (name, since)
) WITH (fillfactor = 50);
COMMENT ON TABLE  holdfast.denial       IS 'How often a name was refused. Apart from lock, so that a refusal never waits for, nor delays, the holder';
COMMENT ON COLUMN holdfast.denial.name  IS 'What was asked for';
COMMENT ON COLUMN holdfast.denial.since IS 'Beginning of the current window of a second, in which at most 16 refusals become events';
COMMENT ON COLUMN holdfast.denial.n     IS 'Refusals in this window';
COMMENT ON COLUMN holdfast.denial.total IS 'Refusals ever';

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
COMMENT ON COLUMN holdfast.event.kind         IS 'acquired, released, extended, denied, expired, taken-over, forced, lost, started, finished, skipped';
COMMENT ON COLUMN holdfast.event.name         IS 'What it happened to';
COMMENT ON COLUMN holdfast.event.owner        IS 'Whom it concerns';
COMMENT ON COLUMN holdfast.event.execution_id IS 'The execution under that lease, if any';
COMMENT ON COLUMN holdfast.event.reason       IS 'Why';
COMMENT ON COLUMN holdfast.event.detail       IS 'More, for people';

CREATE TABLE holdfast.execution (
    id               uuid        PRIMARY KEY,
    workflow         text        NOT NULL COLLATE "C",
    lock             text        NOT NULL COLLATE "C",
    state            text        NOT NULL COLLATE "C"
                     CHECK (state IN ('PENDING', 'RUNNING', 'SUCCESS', 'FAILED', 'ABORTED')),
    key              text        COLLATE "C",
    once             boolean     NOT NULL,
    input            bytea,
    run_at           timestamptz,
    priority         integer     NOT NULL DEFAULT 0,
    attempt          integer     NOT NULL,
    fence            bigint,
    owner            text        COLLATE "C",
    created_at       timestamptz NOT NULL,
    started_at       timestamptz,
    finished_at      timestamptz,
    spawned          boolean     NOT NULL DEFAULT false,
    cancel_requested boolean     NOT NULL DEFAULT false,
    exit_code        integer,
    reason           text        COLLATE "C",
    output_head      bytea,
    output_skipped   bigint,
    output_tail      bytea,
    retry_of         uuid
);
CREATE UNIQUE INDEX execution_key ON holdfast.execution (workflow, key)
    WHERE NOT once AND key IS NOT NULL;
CREATE UNIQUE INDEX execution_once ON holdfast.execution (workflow, key)
    WHERE once AND state IN ('PENDING', 'RUNNING', 'SUCCESS');
CREATE INDEX execution_finished ON holdfast.execution (finished_at) WHERE finished_at IS NOT NULL;
COMMENT ON TABLE  holdfast.execution                  IS 'Runs of workflows, and of commands that are to happen once (holdfast run --once). Removed 90 days after their end';
COMMENT ON INDEX  holdfast.execution_key              IS 'An idempotency key belongs to one execution';
COMMENT ON INDEX  holdfast.execution_once             IS 'With --once only a run that may still succeed, or has, occupies its key';
COMMENT ON INDEX  holdfast.execution_finished         IS 'The oldest first, to be removed';
COMMENT ON COLUMN holdfast.execution.id               IS 'Its id';
COMMENT ON COLUMN holdfast.execution.workflow         IS 'What runs; with --once the name of the lock';
COMMENT ON COLUMN holdfast.execution.lock             IS 'The name that is locked while it runs';
COMMENT ON COLUMN holdfast.execution.state            IS 'PENDING, RUNNING, SUCCESS, FAILED or ABORTED';
COMMENT ON COLUMN holdfast.execution.key              IS 'Idempotency key: the same key is the same execution';
COMMENT ON COLUMN holdfast.execution.once             IS 'The key is that of a run that is to happen once, and is free again after a failure';
COMMENT ON COLUMN holdfast.execution.input            IS 'What it is given on stdin';
COMMENT ON COLUMN holdfast.execution.run_at           IS 'Not before this time';
COMMENT ON COLUMN holdfast.execution.priority         IS 'The higher goes first';
COMMENT ON COLUMN holdfast.execution.attempt          IS 'How often it was begun';
COMMENT ON COLUMN holdfast.execution.fence            IS 'Fence of its lease';
COMMENT ON COLUMN holdfast.execution.owner            IS 'Who runs it, for people';
COMMENT ON COLUMN holdfast.execution.created_at       IS 'When it was asked for';
COMMENT ON COLUMN holdfast.execution.started_at       IS 'When its last attempt began';
COMMENT ON COLUMN holdfast.execution.finished_at      IS 'When it ended';
COMMENT ON COLUMN holdfast.execution.spawned          IS 'Its command may have begun: what happened then is not repeated silently';
COMMENT ON COLUMN holdfast.execution.cancel_requested IS 'Somebody asked it to stop';
COMMENT ON COLUMN holdfast.execution.exit_code        IS 'Of its command';
COMMENT ON COLUMN holdfast.execution.reason           IS 'Why it failed or was aborted';
COMMENT ON COLUMN holdfast.execution.output_head      IS 'Beginning of what it printed';
COMMENT ON COLUMN holdfast.execution.output_skipped   IS 'Bytes between head and tail that were not kept';
COMMENT ON COLUMN holdfast.execution.output_tail      IS 'End of what it printed';
COMMENT ON COLUMN holdfast.execution.retry_of         IS 'The execution that it repeats';

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
    look            text
);
COMMENT ON TYPE   holdfast.answer                 IS 'What a function answers: an outcome, and the lock as it is then';
COMMENT ON COLUMN holdfast.answer.code            IS '0: done; -1: held by another; -3: lost, not yours; -4: not the current fence; -19: already done; 100: nothing was done, look at the processes in look, put each lock_id into alive or dead, call again';
COMMENT ON COLUMN holdfast.answer.queued          IS 'Refused, and now waiting in the queue';
COMMENT ON COLUMN holdfast.answer.ahead           IS 'So many wait ahead of it, counted up to 8';
COMMENT ON COLUMN holdfast.answer.freed           IS 'settle: a lease was ended that was 1: expired, 2: of dead processes';
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
COMMENT ON COLUMN holdfast.answer.look            IS 'With code 100: a line for each, hex lock_id, space, processes';

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
    ahead     integer
);
COMMENT ON TYPE   holdfast.turn           IS 'A request at work, between the functions that share the work';
COMMENT ON COLUMN holdfast.turn.row       IS 'The name''s row, locked; saved at the end';
COMMENT ON COLUMN holdfast.turn.now       IS 'The time, read after the row was locked';
COMMENT ON COLUMN holdfast.turn.asker     IS 'lock_id of who asks, or NULL';
COMMENT ON COLUMN holdfast.turn.here      IS 'BOOT-ID PID-NAMESPACE of the caller: it can judge processes that begin so';
COMMENT ON COLUMN holdfast.turn.alive     IS 'lock_ids whose processes the caller has seen alive';
COMMENT ON COLUMN holdfast.turn.dead      IS 'lock_ids whose processes the caller knows to be dead';
COMMENT ON COLUMN holdfast.turn.may_grant IS 'The row is locked FOR UPDATE: no guard stands against a grant';
COMMENT ON COLUMN holdfast.turn.took      IS 'The stale lease that was ended in this request, for the grant that follows, as in lock; empty: none was';
COMMENT ON COLUMN holdfast.turn.inherited IS 'It was counted and told when it was offered to one who never confirmed it';
COMMENT ON COLUMN holdfast.turn.in_window IS 'How many of the first 8 in the queue are still there';
COMMENT ON COLUMN holdfast.turn.ahead     IS 'How many are ahead of the asker in the queue, counted up to 8';

-- ---- small pieces ---------------------------------------------------------------------------------

CREATE FUNCTION holdfast.clock() RETURNS timestamptz LANGUAGE sql VOLATILE
AS $$ SELECT date_trunc('milliseconds', clock_timestamp()) $$;
COMMENT ON FUNCTION holdfast.clock IS 'The time that leases are measured by, in whole milliseconds. Not that of the transaction''s beginning';

-- STABLE as what it calls, or it would not be inlined.
CREATE FUNCTION holdfast.ms(t timestamptz) RETURNS bigint LANGUAGE sql STABLE
AS $$ SELECT (date_part('epoch', t) * 1000)::bigint $$;
COMMENT ON FUNCTION holdfast.ms IS 'Milliseconds since 1970';

CREATE FUNCTION holdfast.died(processes text, lock_id bytea, here text, alive bytea[], dead bytea[])
RETURNS boolean LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE WHEN processes = '' OR NOT starts_with(processes, here || ' ') THEN false
                WHEN lock_id = ANY (dead) THEN true
                WHEN lock_id = ANY (alive) THEN false
           END
$$;
COMMENT ON FUNCTION holdfast.died IS 'Are these processes certainly dead? NULL: the caller can tell, and must look first';

-- Newest first; a match off the boundary of an entry would be a collision of random bytes.
CREATE FUNCTION holdfast.how_ended(ended bytea, lock_id bytea) RETURNS integer LANGUAGE sql IMMUTABLE
AS $$ SELECT CASE WHEN position(lock_id IN ended) > 1 THEN get_byte(ended, position(lock_id IN ended) - 2) ELSE 0 END $$;
COMMENT ON FUNCTION holdfast.how_ended IS 'How this token''s lease ended earlier: 1 given back, 2 lost, 0 not known';

CREATE FUNCTION holdfast.tell(l holdfast.lock, p_at timestamptz, p_kind text, p_owner text, p_reason text, p_detail text)
RETURNS void LANGUAGE sql VOLATILE
AS $$
    INSERT INTO holdfast.event (seq, at, fence, kind, name, owner, execution_id, reason, detail)
    VALUES (nextval('holdfast.seq'), p_at, l.fence, p_kind, l.name, coalesce(p_owner, ''), l.execution_id,
            coalesce(p_reason, ''), p_detail)
$$;
COMMENT ON FUNCTION holdfast.tell IS 'Record an event about a lock as it is';

CREATE FUNCTION holdfast.answer_of(l holdfast.lock, p_now timestamptz, p_code integer, p_has_holder boolean)
RETURNS holdfast.answer LANGUAGE sql STABLE
AS $$
    SELECT ROW(p_code, false, 0, 0, holdfast.ms(p_now), l.lock_id IS NOT NULL, l.lock_id, coalesce(l.fence, 0),
               coalesce(l.owner, ''), coalesce(l.note, ''), coalesce(l.execution_id::text, ''),
               coalesce(holdfast.ms(l.locked_at), 0), coalesce(holdfast.ms(l.locked_until), 0), coalesce(l.ttl_ms, 0),
               coalesce(l.waiters, 0), coalesce(l.processes, ''), coalesce(l.took, ''), p_has_holder,
               '')::holdfast.answer
$$;
COMMENT ON FUNCTION holdfast.answer_of IS 'An answer with the lock as it is';

CREATE FUNCTION holdfast.to_look_at(lines text) RETURNS holdfast.answer LANGUAGE sql STABLE
AS $$
    SELECT ROW(100, false, 0, 0, holdfast.ms(holdfast.clock()), false, NULL, 0, '', '', '', 0, 0, 0, 0, '', '', false,
               lines)::holdfast.answer
$$;
COMMENT ON FUNCTION holdfast.to_look_at IS 'The answer that asks the caller to look at processes first';

-- ---- durability -----------------------------------------------------------------------------------

-- A refusal need not survive a crash. But where it shares a transaction with something that must,
-- whichever comes first, the whole transaction is synchronous.
CREATE FUNCTION holdfast.commit_lazily() RETURNS void LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    IF pg_current_xact_id_if_assigned() IS NULL THEN
        PERFORM set_config('holdfast.commit_before', current_setting('synchronous_commit'), true),
                set_config('synchronous_commit', 'off', true);
    END IF;
END $$;
COMMENT ON FUNCTION holdfast.commit_lazily IS 'Do not let this transaction wait for the disk, if it has changed nothing yet';

CREATE FUNCTION holdfast.commit_durably() RETURNS void LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    IF current_setting('holdfast.commit_before', true) <> '' THEN
        PERFORM set_config('synchronous_commit', current_setting('holdfast.commit_before'), true),
                set_config('holdfast.commit_before', '', true);
    END IF;
END $$;
COMMENT ON FUNCTION holdfast.commit_durably IS 'Take back commit_lazily: something has changed that must not be lost';

-- ---- locking a name's row -------------------------------------------------------------------------

-- 'grant' waits for guards, at most 2 s (then SQLSTATE 55P03); 'change' waits for no guard and allows no
-- grant; 'try' is for a grant, and answers NULL where a guard, or anybody, is in the way.
CREATE FUNCTION holdfast.take(p_name text, p_strength text) RETURNS holdfast.lock LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    l            holdfast.lock;
    timeout      text;
BEGIN
    LOOP
        IF p_strength = 'grant' THEN
            timeout := current_setting('lock_timeout');
            PERFORM set_config('lock_timeout', '2s', true);
            SELECT * INTO l FROM holdfast.lock WHERE name = p_name ORDER BY fence DESC LIMIT 1 FOR UPDATE;
            PERFORM set_config('lock_timeout', timeout, true);
        ELSIF p_strength = 'change' THEN
            SELECT * INTO l FROM holdfast.lock WHERE name = p_name ORDER BY fence DESC LIMIT 1 FOR NO KEY UPDATE;
        ELSE
            SELECT * INTO l FROM holdfast.lock WHERE name = p_name ORDER BY fence DESC LIMIT 1 FOR UPDATE SKIP LOCKED;
            RETURN l;
        END IF;
        IF l.name IS NOT NULL THEN
            RETURN l;
        END IF;
        -- Not seen before. Only who adds the name, or has its row there, may add it here.
        INSERT INTO holdfast.name VALUES (p_name) ON CONFLICT (name) DO UPDATE SET name = excluded.name;
        INSERT INTO holdfast.lock (name)
            SELECT p_name WHERE NOT EXISTS (SELECT FROM holdfast.lock WHERE name = p_name);
    END LOOP;
END $$;
COMMENT ON FUNCTION holdfast.take IS 'Lock the row of a name, which is made where there is none. Strength grant: for a grant, waiting for guards up to 2 seconds; change: for a change beside guards; try: for a grant, or NULL where anybody is in the way';

CREATE FUNCTION holdfast.begin(l holdfast.lock, p_asker bytea, p_here text, p_alive bytea[], p_dead bytea[], p_may_grant boolean)
RETURNS holdfast.turn LANGUAGE sql VOLATILE
AS $$
    SELECT ROW(l, holdfast.clock(), p_asker, p_here, p_alive, p_dead, p_may_grant, '', false, least(l.waiters, 8), 0)::holdfast.turn
$$;
COMMENT ON FUNCTION holdfast.begin IS 'The request is at work from here on: this is when the time is read';

CREATE FUNCTION holdfast.is_stale(t holdfast.turn) RETURNS integer LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE WHEN (t.row).lock_id IS NULL THEN 0
                WHEN (t.row).lock_id = t.asker THEN (t.now >= (t.row).locked_until)::integer
                ELSE CASE holdfast.died((t.row).processes, (t.row).lock_id, t.here, t.alive, t.dead)
                         WHEN true THEN 2
                         WHEN false THEN (t.now >= (t.row).locked_until)::integer
                     END
           END
$$;
COMMENT ON FUNCTION holdfast.is_stale IS 'Is the lease over? 0: no, or it is free; 1: its time is up; 2: its processes died; NULL: the caller must look first. Who asks with the holder''s own token is alive';

CREATE FUNCTION holdfast.strengthen(t holdfast.turn) RETURNS holdfast.turn LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    IF NOT t.may_grant THEN
        PERFORM FROM holdfast.lock WHERE name = (t.row).name AND fence = (t.row).fence FOR UPDATE SKIP LOCKED;
        t.may_grant := FOUND;
    END IF;
    RETURN t;
END $$;
COMMENT ON FUNCTION holdfast.strengthen IS 'Who has locked the row for a change locks it for a grant, unless a guard is in the way. Called before the row''s fence changes';

CREATE FUNCTION holdfast.save(t holdfast.turn, p_before holdfast.lock) RETURNS void LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    l holdfast.lock := t.row;
BEGIN
    PERFORM holdfast.commit_durably();
    IF l IS NOT DISTINCT FROM p_before THEN
        RETURN;
    END IF;
    UPDATE holdfast.lock
       SET fence = l.fence, locked_at = l.locked_at, locked_until = l.locked_until, told_at = l.told_at,
           ttl_ms = l.ttl_ms, granted = l.granted, released = l.released, release_lost = l.release_lost,
           taken_expired = l.taken_expired, taken_died = l.taken_died, forced = l.forced, lost = l.lost,
           tickets = l.tickets, waiters = l.waiters, offered = l.offered, lock_id = l.lock_id, owner = l.owner,
           note = l.note, processes = l.processes, took = l.took, execution_id = l.execution_id, ended = l.ended
     WHERE name = p_before.name AND fence = p_before.fence;
END $$;
COMMENT ON FUNCTION holdfast.save IS 'Write the row back, if it differs from what was read';

-- ---- granting and ending --------------------------------------------------------------------------

CREATE FUNCTION holdfast.grant_to(t holdfast.turn, p_lock_id bytea, p_owner text, p_note text, p_ttl_ms bigint, p_processes text, p_offer boolean, p_detail text)
RETURNS holdfast.turn LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    l           holdfast.lock := t.row;
    is_takeover boolean := t.took <> '' AND NOT t.inherited;
    reason      integer := nullif(split_part(t.took, ' ', 1), '')::integer;
    told        bigint;
BEGIN
    IF is_takeover THEN
        told := nextval('holdfast.seq');
    END IF;
    l.fence := nextval('holdfast.seq');
    IF l.fence <= (t.row).fence THEN
        RAISE EXCEPTION 'the fence % of % would not be above its last one, %', l.fence, l.name, (t.row).fence
              USING HINT = 'holdfast.seq was set back; run: holdfast init --bump-epoch';
    END IF;
    l.lock_id := p_lock_id;
    l.owner := p_owner;
    l.note := p_note;
    l.processes := p_processes;
    l.took := t.took;
    l.execution_id := NULL;
    l.offered := p_offer;
    l.ttl_ms := p_ttl_ms;
    l.locked_at := t.now;
    l.told_at := t.now;
    l.locked_until := t.now + CASE WHEN p_offer THEN least(p_ttl_ms, 5000) ELSE p_ttl_ms END * interval '1 millisecond';
    l.granted := l.granted + 1;
    IF is_takeover THEN
        l.taken_expired := l.taken_expired + (reason = 1)::integer;
        l.taken_died := l.taken_died + (reason = 2)::integer;
        INSERT INTO holdfast.event (seq, at, fence, kind, name, owner, reason, detail)
        VALUES (told, t.now, l.fence, 'taken-over', l.name, p_owner, (ARRAY['expired', 'holder-died'])[reason],
                format('from %s, fence %s', substr(t.took, length(substring(t.took FROM '^(?:[^ ]* ){6}')) + 1),
                       split_part(t.took, ' ', 3)));
    END IF;
    INSERT INTO holdfast.event (seq, at, fence, kind, name, owner, reason, detail)
    VALUES (l.fence, t.now, l.fence, 'acquired', l.name, p_owner, '', p_detail);
    t.row := l;
    RETURN t;
END $$;
COMMENT ON FUNCTION holdfast.grant_to IS 'Grant the lock with the next fence, and with what was taken over. An offer lasts 5 seconds at most';

CREATE FUNCTION holdfast.end_grant(t holdfast.turn, p_how integer, p_outcome integer, p_exit_code integer, p_reason text)
RETURNS holdfast.turn LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    l holdfast.lock := t.row;
BEGIN
    IF l.execution_id IS NOT NULL THEN
        UPDATE holdfast.execution
           SET state = (ARRAY['SUCCESS', 'FAILED', 'ABORTED'])[CASE p_outcome WHEN 0 THEN 3 ELSE p_outcome END],
               exit_code = p_exit_code, reason = p_reason, finished_at = t.now
         WHERE id = l.execution_id AND state = 'RUNNING';
    END IF;
    l.ended := substr(set_byte('\x00', 0, p_how) || l.lock_id || l.ended, 1, 8 * 17);
    IF l.offered THEN
        -- Nobody has announced the takeover that it came from: the next one does.
        t.took := l.took;
        t.inherited := true;
    END IF;
    l.lock_id := NULL;
    l.owner := NULL;
    l.note := NULL;
    l.processes := NULL;
    l.took := NULL;
    l.execution_id := NULL;
    l.offered := false;
    l.ttl_ms := NULL;
    l.locked_at := NULL;
    l.locked_until := NULL;
    l.told_at := NULL;
    t.row := l;
    RETURN t;
END $$;
COMMENT ON FUNCTION holdfast.end_grant IS 'End the lease: its token is spent (how: 1 given back, 2 lost), and its execution is over in the same step';

CREATE FUNCTION holdfast.renew(t holdfast.turn, p_ttl_ms bigint) RETURNS holdfast.turn LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    l holdfast.lock := t.row;
BEGIN
    IF p_ttl_ms <> 0 THEN
        l.ttl_ms := p_ttl_ms;
    END IF;
    l.locked_until := t.now + l.ttl_ms * interval '1 millisecond';
    l.offered := false;
    IF t.now - l.told_at >= interval '5 minutes' THEN
        l.told_at := t.now;
        PERFORM holdfast.tell(l, t.now, 'extended', l.owner, '', '');
    END IF;
    t.row := l;
    RETURN t;
END $$;
COMMENT ON FUNCTION holdfast.renew IS 'Renew the lease; token and fence stay. An event says so every 5 minutes';

-- ---- the queue ------------------------------------------------------------------------------------

CREATE FUNCTION holdfast.is_gone(w holdfast.waiter, t holdfast.turn) RETURNS boolean LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE WHEN t.now >= w.until OR t.now >= w.seen_at + interval '20 s' OR t.now <= w.seen_at - interval '20 s' THEN true
                ELSE holdfast.died(w.processes, w.lock_id, t.here, t.alive, t.dead)
           END
$$;
COMMENT ON FUNCTION holdfast.is_gone IS 'Has the waiter given up, fallen silent or died? NULL: the caller must look first';

CREATE FUNCTION holdfast.drop_waiter(t holdfast.turn, p_lock_id bytea) RETURNS holdfast.turn LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    l holdfast.lock := t.row;
BEGIN
    DELETE FROM holdfast.waiter WHERE name = l.name AND lock_id = p_lock_id;
    IF FOUND THEN
        l.waiters := greatest(l.waiters - 1, 0);
        t.row := l;
    END IF;
    RETURN t;
END $$;
COMMENT ON FUNCTION holdfast.drop_waiter IS 'Let a waiter leave the queue, if it is in it';

CREATE FUNCTION holdfast.offer(t holdfast.turn) RETURNS holdfast.turn LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    w holdfast.waiter;
BEGIN
    IF (t.row).lock_id IS NOT NULL OR (t.row).waiters = 0 THEN
        RETURN t;
    END IF;
    FOR w IN SELECT * FROM holdfast.waiter WHERE name = (t.row).name ORDER BY rank, ticket LOOP
        IF w.lock_id IS DISTINCT FROM t.asker AND holdfast.is_gone(w, t) THEN
            t := holdfast.drop_waiter(t, w.lock_id);
            t.in_window := t.in_window - 1;
            IF t.in_window = 0 THEN
                t.in_window := least((t.row).waiters, 8);
            END IF;
            CONTINUE;
        END IF;
        IF t.may_grant THEN
            t := holdfast.grant_to(t, w.lock_id, w.owner, w.note, w.ttl_ms, w.processes, true,
                                   format('after waiting %s ms', holdfast.ms(t.now) - holdfast.ms(w.queued_at)));
            t := holdfast.drop_waiter(t, w.lock_id);
            t.in_window := t.in_window - 1;
        END IF;
        -- Where a guard is in the way, its own acquire waits for that.
        IF w.channel <> '' AND w.lock_id IS DISTINCT FROM t.asker THEN
            PERFORM pg_notify(w.channel, encode(w.lock_id, 'hex'));
        END IF;
        RETURN t;
    END LOOP;
    RETURN t;
END $$;
COMMENT ON FUNCTION holdfast.offer IS 'Offer a free lock to the first waiter that is still there, and tell it; those that are gone leave the queue';

-- The order is that of offer(). p_live: how many that are there concern the request. p_frees: if the
-- asker waits itself, it will hand on what it gets.
CREATE FUNCTION holdfast.waiters_to_look_at(t holdfast.turn, p_live integer, p_frees boolean) RETURNS text LANGUAGE plpgsql STABLE
AS $$
DECLARE
    w     holdfast.waiter;
    gone  boolean;
    lines text := '';
    n     integer := 0;
    live  integer := 0;
BEGIN
    IF (t.row).waiters = 0 THEN
        RETURN '';
    END IF;
    FOR w IN SELECT * FROM holdfast.waiter WHERE name = (t.row).name ORDER BY rank, ticket LOOP
        IF w.lock_id = t.asker THEN
            EXIT WHEN NOT p_frees;
            CONTINUE;
        END IF;
        gone := holdfast.is_gone(w, t);
        IF gone IS NULL THEN
            lines := lines || format(E'%s %s\n', encode(w.lock_id, 'hex'), w.processes);
            n := n + 1;
        ELSIF NOT gone THEN
            live := live + 1;
        END IF;
        EXIT WHEN n = 8 OR live = p_live;
    END LOOP;
    RETURN lines;
END $$;
COMMENT ON FUNCTION holdfast.waiters_to_look_at IS 'Waiters whom the caller must look at, a line for each and at most 8; empty: none';

CREATE FUNCTION holdfast.deny(l holdfast.lock, p_now timestamptz, p_owner text, p_reason text) RETURNS void LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    in_window integer;
BEGIN
    LOOP
        UPDATE holdfast.denial
           SET since = CASE WHEN p_now >= since AND p_now < since + interval '1 s' THEN since ELSE p_now END,
               n = CASE WHEN p_now >= since AND p_now < since + interval '1 s' THEN n + 1 ELSE 1 END,
               total = total + 1
         WHERE name = l.name AND since = (SELECT max(since) FROM holdfast.denial WHERE name = l.name)
        RETURNING n INTO in_window;
        EXIT WHEN FOUND;
        -- The first ever; or its window has just moved. Two firsts at once are two rows: a sum all the same.
        IF NOT EXISTS (SELECT FROM holdfast.denial WHERE name = l.name) THEN
            INSERT INTO holdfast.denial VALUES (l.name, p_now, 0, 0) ON CONFLICT (name, since) DO NOTHING;
        END IF;
    END LOOP;
    IF in_window <= 16 THEN
        PERFORM holdfast.tell(l, p_now, 'denied', p_owner, p_reason,
                              format('held by %s, fence %s', coalesce(l.owner, ''), l.fence));
    END IF;
END $$;
COMMENT ON FUNCTION holdfast.deny IS 'Count somebody who did not get it; an event says so, unless there were too many of late';

-- ---- settling -------------------------------------------------------------------------------------

-- p_frees: the request itself will end the lease, so that waiters are judged in any case. p_waits: it
-- will queue up, and learn how many are ahead of it among the first 8, when one has been granted it.
CREATE FUNCTION holdfast.look(t holdfast.turn, p_frees boolean, p_waits boolean) RETURNS text LANGUAGE plpgsql STABLE
AS $$
DECLARE
    stale integer := holdfast.is_stale(t);
    live  integer := CASE WHEN p_waits THEN 9 ELSE 1 END;
BEGIN
    IF stale IS NULL THEN
        RETURN format(E'%s %s\n', encode((t.row).lock_id, 'hex'), (t.row).processes)
               || holdfast.waiters_to_look_at(t, live, p_frees);
    ELSIF stale > 0 OR (t.row).lock_id IS NULL OR p_frees OR p_waits THEN
        RETURN holdfast.waiters_to_look_at(t, live, p_frees);
    END IF;
    RETURN '';
END $$;
COMMENT ON FUNCTION holdfast.look IS 'Whom the caller must look at before this request can be decided, a line for each; empty: nobody';

CREATE FUNCTION holdfast.end_stale(t holdfast.turn) RETURNS holdfast.turn LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    l     holdfast.lock := t.row;
    stale integer := holdfast.is_stale(t);
    why   text := (ARRAY['expired', 'holder-died'])[stale];
BEGIN
    IF stale > 0 OR l.lock_id IS NULL AND l.waiters > 0 THEN
        t := holdfast.strengthen(t);
        IF NOT t.may_grant THEN
            RETURN t; -- a guard is in the way: the next request will do it
        END IF;
    END IF;
    IF stale > 0 THEN
        PERFORM holdfast.tell(l, t.now, 'expired', l.owner, why,
                              CASE WHEN l.offered THEN 'a waiter did not confirm it in time' ELSE '' END);
        t.took := format('%s %s %s %s %s %s %s', stale, encode(l.lock_id, 'hex'), l.fence, holdfast.ms(l.locked_at),
                         holdfast.ms(t.now) - holdfast.ms(l.locked_at), l.ttl_ms, l.owner);
        t := holdfast.end_grant(t, 2, 3, 0, why);
    END IF;
    RETURN holdfast.offer(t);
END $$;
COMMENT ON FUNCTION holdfast.end_stale IS 'End a lease that is over and offer the lock to the first who waits. Whoever had to be looked at has been';

CREATE FUNCTION holdfast.is_holder(t holdfast.turn, p_fence bigint) RETURNS boolean LANGUAGE sql IMMUTABLE
AS $$
    SELECT coalesce((t.row).lock_id = t.asker AND t.now < (t.row).locked_until AND p_fence IN (0, (t.row).fence), false)
$$;
COMMENT ON FUNCTION holdfast.is_holder IS 'Is the lease the asker''s, not over, and of this fence (0: of any)?';

-- ---- acquire --------------------------------------------------------------------------------------

CREATE FUNCTION holdfast.enqueue(t holdfast.turn, p_ttl_ms bigint, p_wait_ms bigint, p_owner text, p_note text, p_priority integer, p_processes text, p_channel text)
RETURNS holdfast.turn LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    l        holdfast.lock := t.row;
    self     holdfast.waiter;
    w        holdfast.waiter;
    ahead    holdfast.waiter[] := '{}';
    gives_up timestamptz := CASE WHEN p_wait_ms BETWEEN 0 AND 10000000000000 THEN t.now + p_wait_ms * interval '1 millisecond'
                                 ELSE 'infinity' END;
BEGIN
    SELECT * INTO self FROM holdfast.waiter WHERE name = l.name AND lock_id = t.asker;
    FOR w IN SELECT * FROM holdfast.waiter WHERE name = l.name ORDER BY rank, ticket LIMIT t.in_window LOOP
        EXIT WHEN (w.rank, w.ticket) >= (coalesce(self.rank, -p_priority::bigint), coalesce(self.ticket, l.tickets + 1));
        ahead := ahead || w;
    END LOOP;
    IF self.name IS NULL THEN
        l.tickets := l.tickets + 1;
        l.waiters := l.waiters + 1;
        INSERT INTO holdfast.waiter (name, rank, ticket, ttl_ms, until, seen_at, queued_at, lock_id, owner, note, processes, channel)
        VALUES (l.name, -p_priority::bigint, l.tickets, p_ttl_ms, gives_up, t.now, t.now, t.asker, p_owner, p_note, p_processes, p_channel);
    ELSE
        UPDATE holdfast.waiter SET seen_at = t.now, until = gives_up, channel = coalesce(nullif(p_channel, ''), channel)
         WHERE name = l.name AND rank = self.rank AND ticket = self.ticket;
    END IF;
    t.row := l;
    t.ahead := cardinality(ahead);
    -- Whoever stands just ahead is whom the waiter looks after: it must not be one of the gone.
    WHILE t.ahead > 0 AND holdfast.is_gone(ahead[t.ahead], t) LOOP
        t := holdfast.drop_waiter(t, ahead[t.ahead].lock_id);
        t.ahead := t.ahead - 1;
    END LOOP;
    RETURN t;
END $$;
COMMENT ON FUNCTION holdfast.enqueue IS 'Refuse one who waits: it joins the queue, or keeps its place there';

-- Who has just been granted the lock is the only one that can be running under it. The same id may
-- come again: one that ended starts anew.
CREATE FUNCTION holdfast.start_execution(t holdfast.turn, p_key text, p_execution_id uuid) RETURNS holdfast.turn LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    l holdfast.lock := t.row;
BEGIN
    l.execution_id := p_execution_id;
    PERFORM holdfast.tell(l, t.now, 'started', l.owner, '', format('key %s', p_key));
    UPDATE holdfast.execution SET state = 'ABORTED', finished_at = t.now, reason = 'its lease was gone'
     WHERE workflow = l.name AND key = p_key AND once AND state = 'RUNNING' AND id <> p_execution_id;
    INSERT INTO holdfast.execution AS x (id, workflow, lock, state, key, once, attempt, fence, owner, created_at, started_at)
    VALUES (p_execution_id, l.name, l.name, 'RUNNING', p_key, true, 1, l.fence, l.owner, t.now, t.now)
    ON CONFLICT (id) DO UPDATE
       SET state = 'RUNNING', attempt = x.attempt + 1, fence = excluded.fence, owner = excluded.owner,
           started_at = excluded.started_at, finished_at = NULL, exit_code = NULL, reason = NULL
     WHERE x.state IN ('FAILED', 'ABORTED');
    t.row := l;
    RETURN t;
END $$;
COMMENT ON FUNCTION holdfast.start_execution IS 'The lease is that of a run that is to happen once';

CREATE FUNCTION holdfast.acquire_locked(t holdfast.turn, p_ttl_ms bigint, p_wait_ms bigint, p_owner text, p_note text, p_priority integer, p_processes text, p_channel text, p_once_key text, p_execution_id uuid)
RETURNS holdfast.answer LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    before    holdfast.lock := t.row;
    ret       holdfast.answer;
    lines     text;
    mine      boolean;
    done      uuid; -- the execution that has done what is to happen once
BEGIN
    IF p_once_key IS NOT NULL THEN
        SELECT id INTO done FROM holdfast.execution
         WHERE workflow = before.name AND key = p_once_key AND once AND state = 'SUCCESS';
    END IF;
    lines := holdfast.look(t, done IS NOT NULL, p_wait_ms <> 0 AND before.lock_id IS DISTINCT FROM t.asker);
    IF lines <> '' THEN
        RETURN holdfast.to_look_at(lines);
    END IF;
    t := holdfast.end_stale(t);
    mine := holdfast.is_holder(t, 0);
    IF done IS NOT NULL AND NOT (mine AND (t.row).execution_id IS NOT NULL) THEN
        ret := holdfast.answer_of(t.row, t.now, -19, true);
        INSERT INTO holdfast.event (seq, at, fence, kind, name, owner, execution_id, reason, detail)
        VALUES (nextval('holdfast.seq'), t.now, (t.row).fence, 'skipped', before.name, p_owner, done, 'already done', format('key %s', p_once_key));
        IF mine THEN -- an offer that came too late: hand it on
            t := holdfast.offer(holdfast.end_grant(holdfast.strengthen(t), 1, 0, 0, ''));
        ELSE
            t := holdfast.drop_waiter(t, t.asker);
        END IF;
    ELSIF NOT mine AND holdfast.how_ended((t.row).ended, t.asker) <> 0 THEN
        ret := holdfast.answer_of(t.row, t.now, -3, true);
    ELSIF mine OR (t.row).lock_id IS NULL AND (holdfast.strengthen(t)).may_grant THEN
        IF mine THEN
            t := holdfast.renew(t, p_ttl_ms);
        ELSE
            t := holdfast.grant_to(t, t.asker, p_owner, p_note, p_ttl_ms, p_processes, false, '');
        END IF;
        IF p_once_key IS NOT NULL AND (t.row).execution_id IS NULL THEN
            t := holdfast.start_execution(t, p_once_key, p_execution_id);
        END IF;
        ret := holdfast.answer_of(t.row, t.now, 0, false);
    ELSIF p_wait_ms <> 0 THEN
        t := holdfast.enqueue(t, p_ttl_ms, p_wait_ms, p_owner, p_note, p_priority, p_processes, p_channel);
        ret := holdfast.answer_of(t.row, t.now, -1, true);
        ret.queued := true;
        ret.ahead := t.ahead;
    ELSE
        PERFORM FROM holdfast.waiter WHERE name = before.name AND lock_id = t.asker;
        PERFORM holdfast.deny(t.row, t.now, p_owner, CASE WHEN FOUND THEN 'gave up waiting' ELSE 'held' END);
        t := holdfast.drop_waiter(t, t.asker);
        ret := holdfast.answer_of(t.row, t.now, -1, true);
    END IF;
    PERFORM holdfast.save(t, before);
    RETURN ret;
END $$;
COMMENT ON FUNCTION holdfast.acquire_locked IS 'acquire, once the row is locked';

CREATE FUNCTION holdfast.acquire_otherwise(p_name text, p_lock_id bytea, p_ttl_ms bigint, p_wait_ms bigint, p_owner text, p_note text, p_priority integer, p_processes text, p_channel text, p_once_key text, p_execution_id uuid, p_here text, p_alive bytea[], p_dead bytea[])
RETURNS holdfast.answer LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    l     holdfast.lock;
    t     holdfast.turn;
    stale integer;
    free  boolean := false;
BEGIN
    SELECT * INTO l FROM holdfast.lock WHERE name = p_name ORDER BY fence DESC LIMIT 1;
    t := holdfast.begin(l, p_lock_id, p_here, p_alive, p_dead, false);
    stale := holdfast.is_stale(t);
    IF stale IS NULL THEN
        RETURN holdfast.to_look_at(holdfast.look(t, false, p_wait_ms <> 0));
    END IF;
    IF stale = 0 AND l.lock_id <> p_lock_id AND p_wait_ms = 0 AND p_once_key IS NULL
       AND holdfast.how_ended(l.ended, p_lock_id) = 0
       AND (l.waiters = 0 OR NOT EXISTS (SELECT FROM holdfast.waiter WHERE name = p_name AND lock_id = p_lock_id)) THEN
        -- Another holds it: refused without a lock, and without waiting for the disk.
        PERFORM holdfast.commit_lazily();
        PERFORM holdfast.deny(l, t.now, p_owner, 'held');
        RETURN holdfast.answer_of(l, t.now, -1, true);
    END IF;
    IF stale > 0 OR l.lock_id IS NULL THEN
        BEGIN
            l := holdfast.take(p_name, 'grant');
            free := true;
        EXCEPTION WHEN lock_not_available THEN
            l := holdfast.take(p_name, 'change'); -- a guard is in the way: refused, or queued
        END;
    ELSE
        l := holdfast.take(p_name, 'change');
    END IF;
    RETURN holdfast.acquire_locked(holdfast.begin(l, p_lock_id, p_here, p_alive, p_dead, free), p_ttl_ms, p_wait_ms,
                                   p_owner, p_note, p_priority, p_processes, p_channel, p_once_key, p_execution_id);
END $$;
COMMENT ON FUNCTION holdfast.acquire_otherwise IS 'acquire, where the lock is not simply free';

-- In one statement what is by far the most common: it is free, nobody waits, no guard is or was in the
-- way (xmax), the token is new. PostgreSQL judges the row again when it had to wait for it.
CREATE FUNCTION holdfast.acquire(p_name text, p_lock_id bytea, p_ttl_ms bigint, p_wait_ms bigint, p_owner text, p_note text, p_priority integer, p_processes text, p_channel text, p_once_key text, p_execution_id uuid, p_here text, p_alive bytea[], p_dead bytea[])
RETURNS holdfast.answer LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    now       timestamptz := holdfast.clock();
    until     timestamptz := now + p_ttl_ms * interval '1 millisecond';
    new_fence bigint;
BEGIN
    UPDATE holdfast.lock
       SET fence = nextval('holdfast.seq'), lock_id = p_lock_id, owner = p_owner, note = p_note, processes = p_processes,
           took = '', ttl_ms = p_ttl_ms, locked_at = now, told_at = now, locked_until = until, granted = granted + 1
     WHERE name = p_name AND fence = (SELECT max(fence) FROM holdfast.lock WHERE name = p_name)
       AND lock_id IS NULL AND waiters = 0 AND xmax = 0 AND p_once_key IS NULL AND position(p_lock_id IN ended) = 0
    RETURNING fence INTO new_fence;
    IF NOT FOUND THEN
        RETURN holdfast.acquire_otherwise(p_name, p_lock_id, p_ttl_ms, p_wait_ms, p_owner, p_note, p_priority, p_processes,
                                          p_channel, p_once_key, p_execution_id, p_here, p_alive, p_dead);
    END IF;
    INSERT INTO holdfast.event (seq, at, fence, kind, name, owner, reason, detail)
    VALUES (new_fence, now, new_fence, 'acquired', p_name, p_owner, '', '');
    IF current_setting('holdfast.commit_before', true) <> '' THEN
        PERFORM holdfast.commit_durably();
    END IF;
    RETURN ROW(0, false, 0, 0, holdfast.ms(now), true, p_lock_id, new_fence, p_owner, p_note, '', holdfast.ms(now),
               holdfast.ms(until), p_ttl_ms, 0, p_processes, '', false, '')::holdfast.answer;
END $$;
COMMENT ON FUNCTION holdfast.acquire IS 'Take a lock; where it is held, be refused, or with wait_ms <> 0 queue up (negative: for ever). The same lock_id again is the same acquire, and confirms an offer. To be called in a transaction of its own';

-- ---- extend ---------------------------------------------------------------------------------------

CREATE FUNCTION holdfast.extend_otherwise(p_name text, p_lock_id bytea, p_fence bigint, p_ttl_ms bigint, p_here text, p_alive bytea[], p_dead bytea[])
RETURNS holdfast.answer LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    l     holdfast.lock;
    t     holdfast.turn;
    lines text;
    ret   holdfast.answer;
BEGIN
    SELECT * INTO l FROM holdfast.lock WHERE name = p_name ORDER BY fence DESC LIMIT 1;
    t := holdfast.begin(l, p_lock_id, p_here, p_alive, p_dead, false);
    IF l.name IS NULL OR l.lock_id <> p_lock_id AND holdfast.is_stale(t) = 0 THEN
        l.name := p_name;
        t.row := l;
        RETURN holdfast.answer_of(t.row, t.now, -3, true);
    END IF;
    l := holdfast.take(p_name, 'change');
    t := holdfast.begin(l, p_lock_id, p_here, p_alive, p_dead, false);
    lines := holdfast.look(t, false, false);
    IF lines <> '' THEN
        RETURN holdfast.to_look_at(lines);
    END IF;
    t := holdfast.end_stale(t);
    IF holdfast.is_holder(t, p_fence) THEN
        t := holdfast.renew(t, p_ttl_ms);
        ret := holdfast.answer_of(t.row, t.now, 0, false);
    ELSE
        ret := holdfast.answer_of(t.row, t.now, -3, true);
    END IF;
    PERFORM holdfast.save(t, l);
    RETURN ret;
END $$;
COMMENT ON FUNCTION holdfast.extend_otherwise IS 'extend, where the lease is not simply the asker''s, or an event is due';

CREATE FUNCTION holdfast.extend(p_name text, p_lock_id bytea, p_fence bigint, p_ttl_ms bigint, p_here text, p_alive bytea[], p_dead bytea[])
RETURNS holdfast.answer LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    now timestamptz := holdfast.clock();
    l   holdfast.lock;
BEGIN
    UPDATE holdfast.lock
       SET ttl_ms = coalesce(nullif(p_ttl_ms, 0), ttl_ms), offered = false,
           locked_until = now + coalesce(nullif(p_ttl_ms, 0), ttl_ms) * interval '1 millisecond'
     WHERE name = p_name AND fence = coalesce(nullif(p_fence, 0), (SELECT max(fence) FROM holdfast.lock WHERE name = p_name))
       AND lock_id = p_lock_id AND locked_until > holdfast.clock() AND told_at > now - interval '5 minutes'
    RETURNING * INTO l;
    IF NOT FOUND THEN
        RETURN holdfast.extend_otherwise(p_name, p_lock_id, p_fence, p_ttl_ms, p_here, p_alive, p_dead);
    END IF;
    IF current_setting('holdfast.commit_before', true) <> '' THEN
        PERFORM holdfast.commit_durably();
    END IF;
    RETURN holdfast.answer_of(l, now, 0, false);
END $$;
COMMENT ON FUNCTION holdfast.extend IS 'Renew a lease (fence 0: whatever it is; ttl_ms 0: as before); -3: it was lost. Never waits for a guard';

-- ---- release --------------------------------------------------------------------------------------

CREATE FUNCTION holdfast.release_own(t holdfast.turn, p_outcome integer, p_exit_code integer, p_reason text)
RETURNS holdfast.turn LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    l holdfast.lock := t.row;
BEGIN
    PERFORM holdfast.tell(l, t.now, CASE p_outcome WHEN 0 THEN 'released' ELSE 'finished' END, l.owner,
                          CASE WHEN p_outcome = 1 THEN 'succeeded'
                               WHEN p_outcome = 2 AND p_reason = '' THEN format('failed with exit code %s', p_exit_code)
                               ELSE p_reason END,
                          format('held for %s ms', holdfast.ms(t.now) - holdfast.ms(l.locked_at)));
    IF l.waiters > 0 THEN
        t := holdfast.strengthen(t);
    END IF;
    t := holdfast.end_grant(t, 1, p_outcome, p_exit_code, p_reason);
    l := t.row;
    l.released := l.released + 1;
    t.row := l;
    RETURN holdfast.offer(t);
END $$;
COMMENT ON FUNCTION holdfast.release_own IS 'Give back the asker''s own lease, and offer it to the first who waits. Outcome 1: success, 2: failed, 3: aborted, 0: not that of an execution';

CREATE FUNCTION holdfast.release_otherwise(p_name text, p_lock_id bytea, p_fence bigint, p_outcome integer, p_exit_code integer, p_reason text, p_here text, p_alive bytea[], p_dead bytea[])
RETURNS holdfast.answer LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    l     holdfast.lock := holdfast.take(p_name, 'change');
    t     holdfast.turn := holdfast.begin(l, p_lock_id, p_here, p_alive, p_dead, false);
    lines text := holdfast.look(t, l.lock_id = p_lock_id OR EXISTS (SELECT FROM holdfast.waiter WHERE name = p_name AND lock_id = p_lock_id), false);
    after holdfast.lock;
    ret   holdfast.answer;
BEGIN
    IF lines <> '' THEN
        RETURN holdfast.to_look_at(lines);
    END IF;
    t := holdfast.end_stale(t);
    IF holdfast.is_holder(t, p_fence) THEN
        t := holdfast.release_own(t, p_outcome, p_exit_code, p_reason);
        ret := holdfast.answer_of(t.row, t.now, 0, false);
    ELSIF NOT holdfast.is_holder(t, 0) AND holdfast.how_ended((t.row).ended, p_lock_id) = 1 THEN
        ret := holdfast.answer_of(t.row, t.now, 0, false); -- the reply to the first release was lost: it is done
    ELSE
        ret := holdfast.answer_of(t.row, t.now, -3, true);
        after := t.row;
        after.release_lost := after.release_lost + 1;
        t.row := after;
    END IF;
    PERFORM holdfast.save(t, l);
    RETURN ret;
END $$;
COMMENT ON FUNCTION holdfast.release_otherwise IS 'release, where it is not simply the asker''s, or somebody waits';

CREATE FUNCTION holdfast.release(p_name text, p_lock_id bytea, p_fence bigint, p_outcome integer, p_exit_code integer, p_reason text, p_here text, p_alive bytea[], p_dead bytea[])
RETURNS holdfast.answer LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    now   timestamptz := holdfast.clock();
    since timestamptz;
    whose text;
    which bigint;
BEGIN
    -- What is given back stays in the row for a moment: RETURNING shows the row as it is then.
    UPDATE holdfast.lock AS l
       SET lock_id = NULL, owner = NULL, note = NULL, processes = NULL, took = NULL, offered = false, ttl_ms = NULL,
           locked_at = NULL, locked_until = NULL, told_at = NULL, released = l.released + 1,
           ended = substr('\x01'::bytea || p_lock_id || l.ended, 1, 136)
      FROM holdfast.lock AS o
     WHERE l.name = p_name AND l.fence = coalesce(nullif(p_fence, 0), (SELECT max(fence) FROM holdfast.lock WHERE name = p_name))
       AND l.lock_id = p_lock_id AND l.waiters = 0 AND l.locked_until > holdfast.clock() AND l.execution_id IS NULL AND p_outcome = 0
       AND o.name = l.name AND o.fence = l.fence
    RETURNING o.locked_at, o.owner, o.fence INTO since, whose, which;
    IF NOT FOUND THEN
        RETURN holdfast.release_otherwise(p_name, p_lock_id, p_fence, p_outcome, p_exit_code, p_reason, p_here, p_alive, p_dead);
    END IF;
    INSERT INTO holdfast.event (seq, at, fence, kind, name, owner, reason, detail)
    VALUES (nextval('holdfast.seq'), now, which, 'released', p_name, whose, p_reason,
            'held for ' || holdfast.ms(now) - holdfast.ms(since) || ' ms');
    IF current_setting('holdfast.commit_before', true) <> '' THEN
        PERFORM holdfast.commit_durably();
    END IF;
    RETURN ROW(0, false, 0, 0, holdfast.ms(now), false, NULL, which, '', '', '', 0, 0, 0, 0, '', '', false, '')::holdfast.answer;
END $$;
COMMENT ON FUNCTION holdfast.release IS 'Give a lock back (fence 0: whatever it is), with the outcome of its execution; -3: it was no longer the asker''s, and nobody else''s was touched. Never waits for a guard';

-- ---- the other requests ---------------------------------------------------------------------------

CREATE FUNCTION holdfast.withdraw(p_name text, p_lock_id bytea, p_here text, p_alive bytea[], p_dead bytea[])
RETURNS holdfast.answer LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    l     holdfast.lock := holdfast.take(p_name, 'change');
    t     holdfast.turn := holdfast.begin(l, p_lock_id, p_here, p_alive, p_dead, false);
    lines text := holdfast.look(t, true, false);
    whose text;
BEGIN
    IF lines <> '' THEN
        RETURN holdfast.to_look_at(lines);
    END IF;
    t := holdfast.end_stale(t);
    IF holdfast.is_holder(t, 0) THEN
        t := holdfast.release_own(t, 0, 0, 'gave up waiting');
    ELSE
        SELECT owner INTO whose FROM holdfast.waiter WHERE name = p_name AND lock_id = p_lock_id;
        IF FOUND THEN
            PERFORM holdfast.deny(t.row, t.now, whose, 'gave up waiting');
            t := holdfast.drop_waiter(t, p_lock_id);
        END IF;
    END IF;
    PERFORM holdfast.save(t, l);
    RETURN holdfast.answer_of(t.row, t.now, 0, false);
END $$;
COMMENT ON FUNCTION holdfast.withdraw IS 'Leave the queue, and give back what was offered meanwhile. Always done';

CREATE FUNCTION holdfast.force(p_name text, p_fence bigint, p_owner text, p_reason text, p_here text, p_alive bytea[], p_dead bytea[])
RETURNS holdfast.answer LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    l     holdfast.lock := holdfast.take(p_name, 'grant');
    t     holdfast.turn := holdfast.begin(l, NULL, p_here, p_alive, p_dead, true);
    lines text := holdfast.look(t, l.fence = p_fence, false);
    after holdfast.lock;
    ret   holdfast.answer;
BEGIN
    IF lines <> '' THEN
        RETURN holdfast.to_look_at(lines);
    END IF;
    t := holdfast.end_stale(t);
    IF t.took <> '' AND split_part(t.took, ' ', 3)::bigint = p_fence THEN
        ret := holdfast.answer_of(t.row, t.now, 0, false); -- it was stale, and has been freed just now
    ELSIF (t.row).lock_id IS NULL OR (t.row).fence <> p_fence THEN
        ret := holdfast.answer_of(t.row, t.now, -4, true);
    ELSE
        ret := holdfast.answer_of(t.row, t.now, 0, true);
        PERFORM holdfast.tell(t.row, t.now, 'forced', (t.row).owner, p_reason, format('by %s', p_owner));
        t := holdfast.end_grant(t, 2, 3, 0, 'forced');
        after := t.row;
        after.forced := after.forced + 1;
        t.row := after;
        t := holdfast.offer(t);
    END IF;
    PERFORM holdfast.save(t, l);
    RETURN ret;
END $$;
COMMENT ON FUNCTION holdfast.force IS 'Free a lock without its token: the operator''s word that the holder is dead. The fence is the one that the operator saw; -4: it is not current. Waits for guards up to 2 seconds (SQLSTATE 55P03)';

CREATE FUNCTION holdfast.settle(p_name text, p_here text, p_alive bytea[], p_dead bytea[])
RETURNS holdfast.answer LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    l     holdfast.lock;
    seen  holdfast.lock;
    t     holdfast.turn;
    lines text;
    ret   holdfast.answer;
BEGIN
    SELECT * INTO seen FROM holdfast.lock WHERE name = p_name ORDER BY fence DESC LIMIT 1;
    t := holdfast.begin(seen, NULL, p_here, p_alive, p_dead, true);
    IF holdfast.is_stale(t) > 0 OR seen.lock_id IS NULL AND seen.waiters > 0 THEN
        l := holdfast.take(p_name, 'try'); -- where anybody is in the way, there is no hurry
        IF l.name IS NOT NULL THEN
            t := holdfast.begin(l, NULL, p_here, p_alive, p_dead, true);
        END IF;
    END IF;
    lines := holdfast.look(t, false, false);
    IF lines <> '' THEN
        RETURN holdfast.to_look_at(lines);
    END IF;
    IF l.name IS NOT NULL THEN
        t := holdfast.end_stale(t);
        PERFORM holdfast.save(t, l);
    END IF;
    ret := holdfast.answer_of(t.row, t.now, 0, true);
    IF NOT t.inherited THEN
        ret.freed := coalesce(nullif(split_part(t.took, ' ', 1), '')::integer, 0);
    END IF;
    RETURN ret;
END $$;
COMMENT ON FUNCTION holdfast.settle IS 'End the lease if it is over, for holdfast sweep. Takes no lock where nothing is to be done, and never waits for one';

CREATE FUNCTION holdfast.report_lost(p_name text, p_fence bigint, p_owner text, p_reason text, p_here text, p_alive bytea[], p_dead bytea[])
RETURNS holdfast.answer LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    l     holdfast.lock := holdfast.take(p_name, 'change');
    t     holdfast.turn := holdfast.begin(l, NULL, p_here, p_alive, p_dead, false);
    lines text := holdfast.look(t, false, false);
    after holdfast.lock;
BEGIN
    IF lines <> '' THEN
        RETURN holdfast.to_look_at(lines);
    END IF;
    t := holdfast.end_stale(t);
    after := t.row;
    after.lost := after.lost + 1;
    t.row := after;
    INSERT INTO holdfast.event (seq, at, fence, kind, name, owner, execution_id, reason, detail)
    VALUES (nextval('holdfast.seq'), t.now, p_fence, 'lost', p_name, p_owner, after.execution_id, p_reason, '');
    PERFORM holdfast.save(t, l);
    RETURN holdfast.answer_of(t.row, t.now, 0, false);
END $$;
COMMENT ON FUNCTION holdfast.report_lost IS 'A holder''s own word that it had to stop';

-- ---- looking --------------------------------------------------------------------------------------

CREATE FUNCTION holdfast.status(p_name text) RETURNS holdfast.answer LANGUAGE plpgsql STABLE
AS $$
DECLARE
    l holdfast.lock;
BEGIN
    SELECT * INTO l FROM holdfast.lock WHERE name = p_name ORDER BY fence DESC LIMIT 1;
    RETURN holdfast.answer_of(l, holdfast.clock(), 0, true);
END $$;
COMMENT ON FUNCTION holdfast.status IS 'Who holds it';

CREATE FUNCTION holdfast.ahead(p_name text, p_lock_id bytea) RETURNS text LANGUAGE plpgsql STABLE
AS $$
DECLARE
    self holdfast.waiter;
    ret  text;
BEGIN
    SELECT * INTO self FROM holdfast.waiter WHERE name = p_name AND lock_id = p_lock_id;
    IF self.name IS NULL THEN
        RETURN '';
    END IF;
    SELECT processes INTO ret FROM holdfast.waiter
     WHERE name = p_name AND (rank, ticket) < (self.rank, self.ticket) ORDER BY rank DESC, ticket DESC LIMIT 1;
    IF NOT FOUND THEN
        SELECT processes INTO ret FROM holdfast.lock WHERE name = p_name ORDER BY fence DESC LIMIT 1;
    END IF;
    RETURN coalesce(ret, '');
END $$;
COMMENT ON FUNCTION holdfast.ahead IS 'Processes of the one just ahead of this waiter, or of the holder; empty: none are known';

-- ---- guarding -------------------------------------------------------------------------------------

-- A later grant has changed the row's key: then it is not found, or, where an older snapshot still
-- shows it, can't be locked (40001). An older snapshot may not show the latest renewal: there the lease
-- must have been live when the transaction began. Its lock keeps every grant away from here on.
CREATE FUNCTION holdfast.guard(name text, fence bigint) RETURNS void LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    is_current boolean;
BEGIN
    IF current_setting('transaction_isolation') = 'read committed' THEN
        SELECT l.lock_id IS NOT NULL AND l.locked_until > holdfast.clock() INTO is_current
          FROM holdfast.lock AS l WHERE l.name = guard.name AND l.fence = guard.fence FOR KEY SHARE;
    ELSE
        BEGIN
            SELECT l.lock_id IS NOT NULL AND l.locked_until > transaction_timestamp() INTO is_current
              FROM holdfast.lock AS l WHERE l.name = guard.name AND l.fence = guard.fence FOR KEY SHARE;
        EXCEPTION WHEN serialization_failure THEN
            is_current := false;
        END;
    END IF;
    IF is_current IS NOT TRUE THEN
        RAISE EXCEPTION 'the fence % of % is not current', guard.fence, guard.name
              USING ERRCODE = 'HF001', HINT = 'The lease has ended or was taken over: stop this work.';
    END IF;
END $$;
COMMENT ON FUNCTION holdfast.guard IS 'For your own transactions: raises HF001 unless the fence is that of the current lease, and keeps it so until the transaction ends. Never delays the holder''s renewals; takeovers wait';

-- ---- pruning --------------------------------------------------------------------------------------

CREATE FUNCTION holdfast.prune(max integer) RETURNS integer LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    too_old     timestamptz := holdfast.clock() - interval '30 days';
    is_too_many boolean := greatest(pg_stat_get_live_tuples('holdfast.event'::regclass),
                                    (SELECT reltuples FROM pg_class WHERE oid = 'holdfast.event'::regclass)) > 1000000;
    last        bigint;
    events      integer;
    executions  integer;
BEGIN
    PERFORM holdfast.commit_lazily();
    -- Who finds another at it leaves it to that one. It goes on from where the last one stopped: what
    -- was deleted before may still be in the index.
    SELECT pruned_seq INTO last FROM holdfast.meta FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    WITH old AS (
        SELECT seq FROM (SELECT seq, at FROM holdfast.event WHERE seq > last ORDER BY seq LIMIT prune.max) AS oldest
         WHERE is_too_many OR at < too_old
    ), gone AS (
        DELETE FROM holdfast.event WHERE seq IN (SELECT seq FROM old) RETURNING seq
    )
    SELECT count(*), max(seq) INTO events, last FROM gone;
    IF events > 0 THEN
        UPDATE holdfast.meta SET pruned_seq = last;
    END IF;
    WITH old AS (
        SELECT id FROM holdfast.execution WHERE finished_at < holdfast.clock() - interval '90 days'
         ORDER BY finished_at LIMIT prune.max FOR UPDATE SKIP LOCKED
    ), gone AS (
        DELETE FROM holdfast.execution WHERE id IN (SELECT id FROM old) RETURNING id
    )
    SELECT count(*) INTO executions FROM gone;
    RETURN events + executions;
END $$;
COMMENT ON FUNCTION holdfast.prune IS 'Remove at most so many events that are older than 30 days or beyond a million, and as many executions that ended 90 days ago. Called now and then after a grant';
