
-- ---- whose turn it is -----------------------------------------------------------------------------

-- What src/core/turns.c says: what becomes of an execution that is to be claimed later while its lock has
-- another one, how those whose lock is held wait without being looked at, how many of a workflow may run.

CREATE FUNCTION holdfast.limit_workflow(p_workflow text, p_concurrency integer) RETURNS void LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    IF p_concurrency > 0 THEN
        PERFORM pg_advisory_xact_lock(1751869284, hashtext(p_workflow)); -- "hold"
    END IF;
END $$;
COMMENT ON FUNCTION holdfast.limit_workflow IS 'Until this transaction ends nobody else begins one of the workflow, where it has a limit';

CREATE FUNCTION holdfast.is_full(t holdfast.turn, w holdfast.wish) RETURNS boolean LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    x       holdfast.execution := t.found;
    whose   text := coalesce(x.workflow, w.workflow);
    most    integer := CASE WHEN w.claim OR x.state = 'PENDING' THEN x.concurrency ELSE w.concurrency END;
    running integer;
BEGIN
    IF most = 0 THEN
        RETURN false;
    END IF;
    PERFORM holdfast.limit_workflow(whose, most);
    SELECT count(*) INTO running
      FROM (SELECT FROM holdfast.running WHERE workflow = whose AND seq IS DISTINCT FROM x.seq LIMIT most) AS those;
    RETURN running >= most;
END $$;
COMMENT ON FUNCTION holdfast.is_full IS 'Has the workflow of what is to be begun as many RUNNING ones as it may?';

-- From priority to priority; whom others are about to claim is left to them.
CREATE FUNCTION holdfast.park_due(p_name text, p_now timestamptz) RETURNS void LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    rank integer;
    n    integer := 0;
    got  integer;
BEGIN
    SELECT max(priority) INTO rank FROM holdfast.pending WHERE lock = p_name AND NOT parked;
    WHILE rank IS NOT NULL AND n < 1000 LOOP
        WITH parks AS (
            UPDATE holdfast.pending SET parked = true
             WHERE seq = ANY (ARRAY(SELECT seq FROM holdfast.pending
                                     WHERE lock = p_name AND NOT parked AND priority = rank AND run_at <= p_now
                                     ORDER BY run_at, seq LIMIT 1000 - n FOR UPDATE SKIP LOCKED))
            RETURNING seq
        )
        UPDATE holdfast.execution AS x SET parked = true FROM parks AS p WHERE x.seq = p.seq;
        GET DIAGNOSTICS got = ROW_COUNT;
        n := n + got;
        SELECT max(priority) INTO rank FROM holdfast.pending WHERE lock = p_name AND NOT parked AND priority < rank;
    END LOOP;
END $$;
COMMENT ON FUNCTION holdfast.park_due IS 'Park what else of this lock is due, in its order, at most 1000: it would only find out the same';

CREATE FUNCTION holdfast.park(t holdfast.turn) RETURNS holdfast.turn LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    l holdfast.lock := t.row;
    x holdfast.execution := t.found;
BEGIN
    IF l.lock_id IS NOT NULL AND NOT x.parked AND x.run_at <= t.now THEN
        x.parked := true;
        PERFORM holdfast.keep_execution(x);
        PERFORM holdfast.park_due(l.name, t.now);
        t.found := x;
        l.parked := true;
        t.row := l;
    END IF;
    RETURN t;
END $$;
COMMENT ON FUNCTION holdfast.park IS 'A claim found its lock held: it is not looked at again before that is free, nor are the others';

-- ---- without a lease

CREATE TYPE holdfast.settled AS (
    t      holdfast.turn,
    before holdfast.lock,
    lines  text
);
COMMENT ON TYPE   holdfast.settled        IS 'A name that has been settled for a request without a lease';
COMMENT ON COLUMN holdfast.settled.t      IS 'The request at work';
COMMENT ON COLUMN holdfast.settled.before IS 'The row that was locked, as it was; its name is NULL: none was';
COMMENT ON COLUMN holdfast.settled.lines  IS 'Whom the caller must look at first; then nothing has been done';

CREATE FUNCTION holdfast.settle_for(p_name text, w holdfast.wish, p_why text, p_here text, p_alive bytea[], p_dead bytea[]) RETURNS holdfast.settled LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    seen holdfast.lock;
    l    holdfast.lock;
    t    holdfast.turn;
    x    holdfast.execution;
    ret  holdfast.settled;
BEGIN
    SELECT * INTO seen FROM holdfast.lock WHERE name = p_name ORDER BY fence DESC LIMIT 1;
    x := holdfast.find_execution(w);
    t := holdfast.start_turn(seen, NULL, p_here, p_alive, p_dead, false);
    t.found := x;
    IF p_why = 'change' OR p_why = 'park' AND seen.lock_id IS NOT NULL AND x.id IS NULL
       OR holdfast.is_stale(t) > 0 OR seen.lock_id IS NULL AND seen.waiters > 0 OR holdfast.is_left(seen, p_name, x) THEN
        l := holdfast.take(p_name, 'change');
        t := holdfast.start_turn(l, NULL, p_here, p_alive, p_dead, false);
    END IF;
    ret.lines := holdfast.look(t, false, false);
    IF ret.lines = '' AND l.name IS NOT NULL THEN
        t := holdfast.find(holdfast.end_stale(t), w);
    END IF;
    ret.t := t;
    ret.before := l;
    RETURN ret;
END $$;
COMMENT ON FUNCTION holdfast.settle_for IS 'End what is over, and find the execution that is meant. The row is locked where that is needed, or the caller changes something (why: change; park: where the lock is held)';

CREATE FUNCTION holdfast.save_settled(s holdfast.settled) RETURNS holdfast.turn LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    IF (s.before).name IS NOT NULL THEN
        RETURN holdfast.save(s.t, s.before);
    END IF;
    RETURN s.t;
END $$;
COMMENT ON FUNCTION holdfast.save_settled IS 'Write the row back, if it was locked and differs';

-- ---- overlap

-- From priority to priority, so that what is not due yet is not walked through.
CREATE FUNCTION holdfast.first_waiting(p_name text, p_now timestamptz, p_replaceable boolean) RETURNS uuid LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    rank  integer;
    ready holdfast.pending;
    x     holdfast.pending;
BEGIN
    SELECT max(priority) INTO rank FROM holdfast.pending WHERE lock = p_name AND NOT parked;
    WHILE rank IS NOT NULL LOOP
        SELECT * INTO ready FROM holdfast.pending
         WHERE lock = p_name AND NOT parked AND priority = rank AND run_at <= p_now AND NOT (p_replaceable AND to_verify)
         ORDER BY run_at, seq LIMIT 1;
        EXIT WHEN FOUND;
        SELECT max(priority) INTO rank FROM holdfast.pending WHERE lock = p_name AND NOT parked AND priority < rank;
    END LOOP;
    SELECT * INTO x FROM holdfast.pending
     WHERE lock = p_name AND parked AND run_at <= p_now AND NOT (p_replaceable AND to_verify)
     ORDER BY priority DESC, run_at, seq LIMIT 1;
    RETURN CASE WHEN ready.id IS NULL OR (-x.priority, x.run_at, x.seq) < (-ready.priority, ready.run_at, ready.seq) THEN x.id ELSE ready.id END;
END $$;
COMMENT ON FUNCTION holdfast.first_waiting IS 'Which execution of this lock is due and goes first; replaceable: of those that are not to be verified';

CREATE FUNCTION holdfast.refuse_overlap(t holdfast.turn, p_name text, p_owner text, p_waiting uuid, p_skips boolean) RETURNS holdfast.answer LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    l   holdfast.lock := t.row;
    who uuid := coalesce(l.execution_id, p_waiting);
    ret holdfast.answer := holdfast.answer_of(t.row, t.now, -1, true);
BEGIN
    ret.execution_id := coalesce(who::text, '');
    IF holdfast.may_tell(p_name, t.now, 1) THEN
        INSERT INTO holdfast.event (seq, at, fence, kind, name, owner, execution_id, reason, detail)
        VALUES (nextval('holdfast.seq'), t.now, coalesce(l.fence, 0), CASE WHEN p_skips THEN 'skipped' ELSE 'denied' END, p_name,
                p_owner, who, CASE WHEN l.lock_id IS NULL THEN 'pending' ELSE 'held' END,
                CASE WHEN l.lock_id IS NULL THEN '' ELSE format('held by %s, fence %s', coalesce(l.owner, ''), l.fence) END);
    END IF;
    RETURN ret;
END $$;
COMMENT ON FUNCTION holdfast.refuse_overlap IS 'Nothing is recorded: its lock has one that runs or is about to';

CREATE FUNCTION holdfast.replace_waiting(t holdfast.turn, p_owner text, p_by uuid) RETURNS void LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    l       holdfast.lock := t.row;
    waiting uuid := holdfast.first_waiting(l.name, t.now, true);
BEGIN
    IF waiting IS NULL THEN
        RETURN;
    END IF;
    WITH gone AS (
        DELETE FROM holdfast.pending WHERE lock = l.name AND run_at <= t.now AND NOT to_verify RETURNING seq
    ), over AS (
        UPDATE holdfast.execution AS x
           SET state = 'ABORTED', parked = false, finished_at = t.now, reason = 'replaced by ' || p_by, frees_key = once
          FROM gone AS g
         WHERE x.seq = g.seq
        RETURNING x.seq, x.once, x.workflow
    )
    INSERT INTO holdfast.ended (finished_at, seq, once, workflow) SELECT t.now, o.seq, o.once, o.workflow FROM over AS o;
    INSERT INTO holdfast.event (seq, at, fence, kind, name, owner, execution_id, reason, detail)
    VALUES (nextval('holdfast.seq'), t.now, l.fence, 'finished', l.name, p_owner, waiting, 'replaced by ' || p_by, '');
END $$;
COMMENT ON FUNCTION holdfast.replace_waiting IS 'Those that wait for this lock and are due are ABORTED: another one is wanted in their stead';

-- ---- enqueue

CREATE FUNCTION holdfast.overlap_answers(t holdfast.turn, p_name text, p_owner text, p_id uuid, p_overlap integer, p_queue_limit integer)
RETURNS holdfast.answer LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    x       holdfast.execution := t.x;
    waiting uuid;
    n       integer;
BEGIN
    IF p_overlap IN (0, 2) THEN -- reject, skip
        waiting := holdfast.first_waiting(p_name, t.now, false);
        IF (t.row).lock_id IS NULL AND waiting IS NULL THEN
            RETURN NULL;
        END IF;
        RETURN holdfast.refuse_overlap(t, p_name, p_owner, waiting, p_overlap = 2);
    ELSIF p_overlap = 1 THEN -- queue
        IF p_queue_limit > 0 THEN
            SELECT count(*) INTO n FROM (SELECT FROM holdfast.pending
                                          WHERE lock = p_name AND run_at <= t.now LIMIT p_queue_limit) AS those;
            IF n >= p_queue_limit THEN
                PERFORM holdfast.deny(t.row, t.now, p_owner, 'queue full');
                RETURN holdfast.answer_of(t.row, t.now, -11, true);
            END IF;
        END IF;
        RETURN NULL;
    END IF;
    IF p_overlap = 4 AND x.state = 'RUNNING' THEN -- cancel
        x.cancel_requested := true;
        PERFORM holdfast.keep_execution(x);
    END IF;
    PERFORM holdfast.replace_waiting(t, p_owner, p_id);
    RETURN NULL;
END $$;
COMMENT ON FUNCTION holdfast.overlap_answers IS 'What becomes of one that is wanted now while its lock has another one. NULL: it is recorded. Overlap 0: reject, 1: queue, 2: skip, 3: replace, 4: cancel';

CREATE FUNCTION holdfast.record_execution(s holdfast.settled, w holdfast.wish, p_name text) RETURNS holdfast.answer LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    t   holdfast.turn := s.t;
    l   holdfast.lock := t.row;
    x   holdfast.execution := holdfast.new_execution(w, p_name, t.now);
    ret holdfast.answer;
BEGIN
    PERFORM holdfast.commit_durably();
    IF l.lock_id IS NOT NULL AND x.run_at <= t.now THEN
        x.parked := true;
        l.parked := true;
        t.row := l;
    ELSE
        t.ready := t.ready || x.workflow || E'\n';
    END IF;
    PERFORM holdfast.add_execution(w, x);
    ret := holdfast.answer_of(t.row, t.now, 0, false);
    ret.execution := x;
    s.t := t;
    t := holdfast.save_settled(s);
    ret.ready := t.ready;
    RETURN ret;
END $$;
COMMENT ON FUNCTION holdfast.record_execution IS 'Keep a new execution for whoever claims it: parked where its lock is held, else ready';

CREATE FUNCTION holdfast.enqueue_execution(p_name text, p_owner text, p_priority integer, p_workflow text, p_key text, p_once boolean, p_input bytea, p_id uuid, p_retry_of uuid, p_run_at_ms bigint, p_on_lost integer, p_max_attempts integer, p_backoff_ms bigint, p_concurrency integer, p_overlap integer, p_queue_limit integer, p_here text, p_alive bytea[], p_dead bytea[])
RETURNS holdfast.answer LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    w       holdfast.wish := ROW(p_workflow, p_key, p_once, p_input, p_id, p_retry_of, to_timestamp(nullif(p_run_at_ms, 0) / 1000.0),
                                 p_priority, p_on_lost, p_max_attempts, p_backoff_ms, p_concurrency, false, false);
    decides boolean := p_run_at_ms = 0 AND (p_overlap <> 1 OR p_queue_limit > 0); -- its overlap, and for one at a time
    s       holdfast.settled := holdfast.settle_for(p_name, w, CASE WHEN decides THEN 'change' ELSE 'park' END, p_here, p_alive, p_dead);
    t       holdfast.turn := s.t;
    x       holdfast.execution := t.found;
    state   text := holdfast.key_state(w, x);
    ret     holdfast.answer;
BEGIN
    IF s.lines <> '' THEN
        RETURN holdfast.to_look_at(s.lines);
    END IF;
    IF x.id = p_id THEN
        ret := holdfast.answer_of(t.row, t.now, 0, false);
        ret.execution := x; -- the reply to the first enqueue was lost: it is done
    ELSIF state <> 'free' THEN
        ret := holdfast.answer_key(t, p_name, p_owner, w, x, CASE state WHEN 'pending' THEN 'duplicate' ELSE state END);
    ELSIF decides THEN
        ret := holdfast.overlap_answers(t, p_name, p_owner, p_id, p_overlap, p_queue_limit);
    END IF;
    IF ret.code IS NULL THEN
        RETURN holdfast.record_execution(s, w, p_name);
    END IF;
    t := holdfast.save_settled(s);
    ret.ready := t.ready;
    RETURN ret;
END $$;
COMMENT ON FUNCTION holdfast.enqueue_execution IS 'Record an execution for whoever claims it. What has the key already answers as it would answer begin_execution; then, without run_at, what is there of its lock (overlap, as in overlap_answers)';

CREATE FUNCTION holdfast.cancel_execution(p_name text, p_id uuid, p_owner text, p_here text, p_alive bytea[], p_dead bytea[])
RETURNS holdfast.answer LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    w   holdfast.wish := ROW(NULL, NULL, false, NULL, p_id, NULL, NULL, 0, 0, 0, 0, 0, false, false);
    s   holdfast.settled := holdfast.settle_for(p_name, w, 'change', p_here, p_alive, p_dead);
    t   holdfast.turn := s.t;
    x   holdfast.execution := t.found;
    ret holdfast.answer := holdfast.answer_of(t.row, t.now, 0, false);
BEGIN
    IF s.lines <> '' THEN
        RETURN holdfast.to_look_at(s.lines);
    END IF;
    IF x.lock IS DISTINCT FROM p_name THEN
        ret := holdfast.answer_of(t.row, t.now, -9, true);
    ELSE
        IF x.state IN ('PENDING', 'RUNNING') THEN
            x.cancel_requested := true;
            IF x.state = 'PENDING' THEN
                t.vacated := t.vacated OR NOT x.parked;
                x.state := 'ABORTED';
                x.parked := false;
                x.finished_at := t.now;
                x.reason := 'cancelled';
                INSERT INTO holdfast.event (seq, at, fence, kind, name, owner, execution_id, reason, detail)
                VALUES (nextval('holdfast.seq'), t.now, (t.row).fence, 'finished', p_name, p_owner, x.id, x.reason, '');
            END IF;
            PERFORM holdfast.keep_execution(x);
        END IF;
        ret.execution := x;
    END IF;
    s.t := t;
    t := holdfast.save_settled(s);
    ret.ready := t.ready;
    RETURN ret;
END $$;
COMMENT ON FUNCTION holdfast.cancel_execution IS 'Somebody wants it to stop: PENDING, it is ABORTED at once; RUNNING, its runner learns of it with its next extend; over, it stays as it is. -9: this lock has no such execution';

CREATE FUNCTION holdfast.settle_execution(p_name text, p_id uuid, p_here text, p_alive bytea[], p_dead bytea[])
RETURNS holdfast.answer LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    w   holdfast.wish := ROW(NULL, NULL, false, NULL, p_id, NULL, NULL, 0, 0, 0, 0, 0, false, false);
    s   holdfast.settled := holdfast.settle_for(p_name, w, '', p_here, p_alive, p_dead);
    t   holdfast.turn := s.t;
    ret holdfast.answer := holdfast.answer_of(t.row, t.now, 0, true);
BEGIN
    IF s.lines <> '' THEN
        RETURN holdfast.to_look_at(s.lines);
    END IF;
    t := holdfast.save_settled(s);
    ret.ready := t.ready;
    IF NOT t.inherited THEN
        ret.freed := coalesce(nullif(split_part(t.took, ' ', 1), '')::integer, 0);
    END IF;
    RETURN ret;
END $$;
COMMENT ON FUNCTION holdfast.settle_execution IS 'settle, and end the attempt of this execution if it is RUNNING without the lease of its lock';

-- ---- what is to be claimed

CREATE TYPE holdfast.place AS (
    priority integer,
    run_at   timestamptz,
    seq      bigint
);
COMMENT ON TYPE   holdfast.place          IS 'Where an execution stands in the order of claiming';
COMMENT ON COLUMN holdfast.place.priority IS 'The higher goes first';
COMMENT ON COLUMN holdfast.place.run_at   IS 'Then the longer due';
COMMENT ON COLUMN holdfast.place.seq      IS 'Then the older';

-- From priority to priority, so that what is not due yet is not walked through.
CREATE FUNCTION holdfast.plain_due(p_now timestamptz, p_max bigint) RETURNS SETOF holdfast.place LANGUAGE plpgsql STABLE
AS $$
DECLARE
    rank integer;
    n    bigint := 0;
    got  bigint;
BEGIN
    SELECT max(priority) INTO rank FROM holdfast.pending
     WHERE NOT parked AND concurrency = 0 AND NOT to_verify;
    WHILE rank IS NOT NULL AND n < p_max LOOP
        RETURN QUERY SELECT priority, run_at, seq FROM holdfast.pending
                      WHERE NOT parked AND concurrency = 0 AND NOT to_verify AND priority = rank AND run_at <= p_now
                      ORDER BY run_at, seq LIMIT p_max - n;
        GET DIAGNOSTICS got = ROW_COUNT;
        n := n + got;
        SELECT max(priority) INTO rank FROM holdfast.pending
         WHERE NOT parked AND concurrency = 0 AND NOT to_verify AND priority < rank;
    END LOOP;
END $$;
COMMENT ON FUNCTION holdfast.plain_due IS 'The first that are due of those that concern no limit and need not be verified';

CREATE FUNCTION holdfast.group_due(p_workflow text, p_concurrency integer, p_to_verify boolean, p_now timestamptz, p_max bigint) RETURNS SETOF holdfast.place LANGUAGE plpgsql STABLE
AS $$
DECLARE
    rank    integer;
    n       bigint := 0;
    got     bigint;
    running integer;
BEGIN
    IF p_concurrency > 0 THEN
        SELECT count(*) INTO running
          FROM (SELECT FROM holdfast.running WHERE workflow = p_workflow LIMIT p_concurrency) AS those;
        IF running >= p_concurrency THEN
            RETURN;
        END IF;
    END IF;
    SELECT max(priority) INTO rank FROM holdfast.pending
     WHERE NOT parked AND workflow = p_workflow AND concurrency = p_concurrency AND to_verify = p_to_verify;
    WHILE rank IS NOT NULL AND n < p_max LOOP
        RETURN QUERY SELECT priority, run_at, seq FROM holdfast.pending
                      WHERE NOT parked AND workflow = p_workflow AND concurrency = p_concurrency
                        AND to_verify = p_to_verify AND priority = rank AND run_at <= p_now
                      ORDER BY run_at, seq LIMIT p_max - n;
        GET DIAGNOSTICS got = ROW_COUNT;
        n := n + got;
        SELECT max(priority) INTO rank FROM holdfast.pending
         WHERE NOT parked AND workflow = p_workflow AND concurrency = p_concurrency AND to_verify = p_to_verify
           AND priority < rank;
    END LOOP;
END $$;
COMMENT ON FUNCTION holdfast.group_due IS 'The first that are due of a workflow with this limit; none where so many run already';

CREATE TYPE holdfast.workgroup AS (
    workflow    text,
    concurrency integer,
    to_verify   boolean
);
COMMENT ON TYPE   holdfast.workgroup             IS 'Executions that are ready, and of which all or none may be claimed';
COMMENT ON COLUMN holdfast.workgroup.workflow    IS 'As in execution';
COMMENT ON COLUMN holdfast.workgroup.concurrency IS 'As in execution';
COMMENT ON COLUMN holdfast.workgroup.to_verify   IS 'As in execution';

-- From one to the next, by index. What concerns no limit need not be looked for, where all workflows are.
CREATE FUNCTION holdfast.workgroups(p_workflows text[]) RETURNS SETOF holdfast.workgroup LANGUAGE plpgsql STABLE
AS $$
DECLARE
    g    holdfast.workgroup;
    name text;
BEGIN
    IF p_workflows IS NULL THEN
        g := ROW('', 0, false);
        LOOP
            SELECT workflow, concurrency, to_verify INTO g FROM holdfast.pending
             WHERE NOT parked AND (concurrency > 0 OR to_verify)
               AND (workflow, concurrency, to_verify) > (g.workflow, g.concurrency, g.to_verify)
             ORDER BY workflow, concurrency, to_verify LIMIT 1;
            EXIT WHEN NOT FOUND;
            RETURN NEXT g;
        END LOOP;
        RETURN;
    END IF;
    FOREACH name IN ARRAY p_workflows LOOP
        g := ROW(name, -1, false);
        LOOP
            SELECT workflow, concurrency, to_verify INTO g FROM holdfast.pending
             WHERE NOT parked AND workflow = name AND (concurrency, to_verify) > (g.concurrency, g.to_verify)
             ORDER BY concurrency, to_verify LIMIT 1;
            EXIT WHEN NOT FOUND;
            RETURN NEXT g;
        END LOOP;
    END LOOP;
END $$;
COMMENT ON FUNCTION holdfast.workgroups IS 'What is ready of these workflows; NULL: of any, without what concerns no limit and need not be verified';

CREATE FUNCTION holdfast.due_places(p_workflows text[], p_verifies boolean, p_now timestamptz, p_max bigint) RETURNS SETOF holdfast.place LANGUAGE plpgsql STABLE
AS $$
DECLARE
    g holdfast.workgroup;
BEGIN
    IF p_workflows IS NULL THEN
        RETURN QUERY SELECT * FROM holdfast.plain_due(p_now, p_max);
    END IF;
    FOR g IN SELECT * FROM holdfast.workgroups(p_workflows) LOOP
        IF p_verifies OR NOT g.to_verify THEN
            RETURN QUERY SELECT * FROM holdfast.group_due(g.workflow, g.concurrency, g.to_verify, p_now, p_max);
        END IF;
    END LOOP;
END $$;
COMMENT ON FUNCTION holdfast.due_places IS 'Those that may be claimed, among them the first so many; in no order';

CREATE FUNCTION holdfast.due(p_workflows text[], p_verifies boolean, p_skip bigint, p_limit bigint) RETURNS SETOF holdfast.execution LANGUAGE plpgsql STABLE
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off
AS $$
BEGIN
    RETURN QUERY
        SELECT x.* FROM (SELECT p.seq FROM holdfast.due_places(p_workflows, p_verifies, holdfast.clock(), p_skip + p_limit) AS p
                          ORDER BY p.priority DESC, p.run_at, p.seq OFFSET p_skip LIMIT p_limit) AS first
          JOIN holdfast.execution AS x USING (seq)
         ORDER BY x.priority DESC, x.run_at, x.seq;
END $$;
COMMENT ON FUNCTION holdfast.due IS 'What is to be claimed: PENDING, due, not parked, not to be verified (unless asked for), of these workflows (NULL: of any) where they may run; by priority, then run_at, then age; without the first so many, at most so many';

-- ---- workers that sleep

CREATE FUNCTION holdfast.next_due(p_workflows text[], p_now timestamptz) RETURNS timestamptz LANGUAGE plpgsql STABLE
AS $$
DECLARE
    g    holdfast.workgroup;
    rank integer;
    next timestamptz;
    ret  timestamptz;
BEGIN
    IF p_workflows IS NULL THEN
        SELECT max(priority) INTO rank FROM holdfast.pending
         WHERE NOT parked AND concurrency = 0 AND NOT to_verify;
    END IF;
    WHILE rank IS NOT NULL LOOP
        SELECT min(run_at) INTO next FROM holdfast.pending
         WHERE NOT parked AND concurrency = 0 AND NOT to_verify AND priority = rank AND run_at > p_now;
        ret := least(ret, next);
        SELECT max(priority) INTO rank FROM holdfast.pending
         WHERE NOT parked AND concurrency = 0 AND NOT to_verify AND priority < rank;
    END LOOP;
    FOR g IN SELECT * FROM holdfast.workgroups(p_workflows) LOOP
        SELECT max(priority) INTO rank FROM holdfast.pending
         WHERE NOT parked AND workflow = g.workflow AND concurrency = g.concurrency AND to_verify = g.to_verify;
        WHILE rank IS NOT NULL LOOP
            SELECT min(run_at) INTO next FROM holdfast.pending
             WHERE NOT parked AND workflow = g.workflow AND concurrency = g.concurrency AND to_verify = g.to_verify
               AND priority = rank AND run_at > p_now;
            ret := least(ret, next);
            SELECT max(priority) INTO rank FROM holdfast.pending
             WHERE NOT parked AND workflow = g.workflow AND concurrency = g.concurrency AND to_verify = g.to_verify
               AND priority < rank;
        END LOOP;
    END LOOP;
    RETURN nullif(ret, 'infinity');
END $$;
COMMENT ON FUNCTION holdfast.next_due IS 'When the next execution of these workflows (NULL: of any) that is not parked falls due; NULL: there is none';

CREATE FUNCTION holdfast.sleep(p_id bytea, p_channel text, p_listener integer, p_workflows text[]) RETURNS bigint LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    PERFORM holdfast.commit_lazily();
    IF p_channel <> '' THEN
        INSERT INTO holdfast.sleeper (since, listener, id, channel, workflows)
        VALUES (clock_timestamp(), p_listener, p_id, p_channel, p_workflows)
        ON CONFLICT (id) DO UPDATE SET since = excluded.since, listener = excluded.listener, channel = excluded.channel,
                                       workflows = excluded.workflows;
    END IF;
    RETURN holdfast.ms(holdfast.next_due(p_workflows, holdfast.clock()));
END $$;
COMMENT ON FUNCTION holdfast.sleep IS 'This worker sleeps: it is told once that something of these workflows (NULL: of any) is to be run. When the next execution of them falls due; NULL: none does';

CREATE FUNCTION holdfast.awake(p_id bytea) RETURNS void LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    PERFORM holdfast.commit_lazily();
    DELETE FROM holdfast.sleeper WHERE id = p_id;
END $$;
COMMENT ON FUNCTION holdfast.awake IS 'This worker is awake, for whatever reason: the next one is told instead';

-- A transaction of its own, after the commit: who falls asleep meanwhile has seen what was committed, and a
-- NOTIFY, which lets commits wait for each other, never waits for the disk.
CREATE FUNCTION holdfast.wake_idle(p_ready text) RETURNS integer LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    s    holdfast.sleeper;
    w    text;
    told integer := 0;
BEGIN
    IF NOT EXISTS (SELECT FROM holdfast.sleeper) THEN
        RETURN 0;
    END IF;
    PERFORM holdfast.commit_lazily();
    FOREACH w IN ARRAY string_to_array(rtrim(p_ready, E'\n'), E'\n') LOOP
        LOOP
            DELETE FROM holdfast.sleeper
             WHERE id = (SELECT id FROM holdfast.sleeper WHERE workflows IS NULL OR w = ANY (workflows)
                          ORDER BY since LIMIT 1 FOR UPDATE SKIP LOCKED)
            RETURNING * INTO s;
            EXIT WHEN NOT FOUND;
            IF s.since > clock_timestamp() - interval '10 minutes' AND EXISTS (SELECT FROM pg_stat_get_activity(s.listener)) THEN
                PERFORM pg_notify(s.channel, encode(s.id, 'hex'));
                told := told + 1;
                EXIT;
            END IF;
        END LOOP;
    END LOOP;
    RETURN told;
END $$;
COMMENT ON FUNCTION holdfast.wake_idle IS 'For each of these workflows, a line each, tell a worker that sleeps and would claim of it, the one that has slept longest first. Those that are gone are passed over';

-- For those who do not yet know what has become of them: it is sent together with what records them.
CREATE FUNCTION holdfast.wake_for(p_ids uuid[]) RETURNS integer LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM holdfast.sleeper) THEN
        RETURN 0;
    END IF;
    RETURN holdfast.wake_idle((SELECT coalesce(string_agg(workflow || E'\n', ''), '') FROM holdfast.execution
                                WHERE id = ANY (p_ids) AND state = 'PENDING' AND NOT parked));
END $$;
COMMENT ON FUNCTION holdfast.wake_for IS 'wake_idle, for as many as are ready of these executions';
