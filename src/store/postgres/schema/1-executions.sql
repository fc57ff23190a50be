
-- ---- executions -----------------------------------------------------------------------------------

-- What becomes of an execution is what src/core/execution.c says. Only who has locked the row of its lock
-- changes it. Two that ask for one key at once under different locks meet in its unique index: the second
-- one fails with 40001, and finds the first when it asks again.

CREATE TYPE holdfast.wish AS (
    workflow     text,
    key          text,
    once         boolean,
    input        bytea,
    id           uuid,
    retry_of     uuid,
    run_at       timestamptz,
    priority     integer,
    on_lost      integer,
    max_attempts integer,
    backoff_ms   bigint,
    concurrency  integer,
    claim        boolean,
    verifies     boolean
);
COMMENT ON TYPE   holdfast.wish              IS 'The execution that a request wants';
COMMENT ON COLUMN holdfast.wish.workflow     IS 'As in execution';
COMMENT ON COLUMN holdfast.wish.key          IS 'As in execution; it is looked for first';
COMMENT ON COLUMN holdfast.wish.once         IS 'As in execution';
COMMENT ON COLUMN holdfast.wish.input        IS 'As in execution_data; NULL: nothing';
COMMENT ON COLUMN holdfast.wish.id           IS 'What a new one is to be called; else which one is meant';
COMMENT ON COLUMN holdfast.wish.retry_of     IS 'As in execution';
COMMENT ON COLUMN holdfast.wish.run_at       IS 'As in execution; NULL: now';
COMMENT ON COLUMN holdfast.wish.priority     IS 'As in execution';
COMMENT ON COLUMN holdfast.wish.on_lost      IS 'As in execution';
COMMENT ON COLUMN holdfast.wish.max_attempts IS 'As in execution';
COMMENT ON COLUMN holdfast.wish.backoff_ms   IS 'As retry_backoff_ms in execution';
COMMENT ON COLUMN holdfast.wish.concurrency  IS 'As in execution';
COMMENT ON COLUMN holdfast.wish.claim        IS 'Only the one with this id, and only if it is PENDING';
COMMENT ON COLUMN holdfast.wish.verifies     IS 'With claim: also if it may have been done';

-- ---- what is found, and kept

CREATE FUNCTION holdfast.execution_of(p_id uuid) RETURNS holdfast.execution LANGUAGE plpgsql STABLE
AS $$
DECLARE
    x holdfast.execution;
BEGIN
    SELECT * INTO x FROM holdfast.execution WHERE id = p_id;
    RETURN x;
END $$;
COMMENT ON FUNCTION holdfast.execution_of IS 'The execution with this id; of NULLs where there is none';

CREATE FUNCTION holdfast.execution_at(p_seq bigint) RETURNS holdfast.execution LANGUAGE plpgsql STABLE
AS $$
DECLARE
    x holdfast.execution;
BEGIN
    SELECT * INTO x FROM holdfast.execution WHERE seq = p_seq;
    RETURN x;
END $$;
COMMENT ON FUNCTION holdfast.execution_at IS 'The execution with this number; of NULLs where there is none';

CREATE FUNCTION holdfast.find_execution(w holdfast.wish) RETURNS holdfast.execution LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    x holdfast.execution;
BEGIN
    IF w.key IS NOT NULL AND w.once THEN
        SELECT * INTO x FROM holdfast.execution
         WHERE workflow = w.workflow AND key = w.key AND once AND NOT frees_key;
    ELSIF w.key IS NOT NULL THEN
        SELECT * INTO x FROM holdfast.execution WHERE workflow = w.workflow AND key = w.key AND NOT once;
    END IF;
    IF x.id IS NULL AND w.id IS NOT NULL THEN
        SELECT * INTO x FROM holdfast.execution WHERE id = w.id;
    END IF;
    RETURN x;
END $$;
COMMENT ON FUNCTION holdfast.find_execution IS 'The execution that has the key, else the one with the id; of NULLs where there is none';

CREATE FUNCTION holdfast.add_execution(w holdfast.wish, x holdfast.execution) RETURNS void LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    INSERT INTO holdfast.execution (run_at, created_at, started_at, fence, priority, attempt, max_attempts, on_lost, concurrency,
                                    retry_backoff_ms, once, parked, id, retry_of, state, workflow, lock, key, owner)
    VALUES (x.run_at, x.created_at, x.started_at, x.fence, x.priority, x.attempt, x.max_attempts, x.on_lost, x.concurrency,
            x.retry_backoff_ms, x.once, x.parked, x.id, x.retry_of, x.state, x.workflow, x.lock, x.key, x.owner)
    ON CONFLICT DO NOTHING
    RETURNING seq INTO x.seq;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'another execution has been given the key % of % just now', x.key, x.workflow
              USING ERRCODE = 'serialization_failure', HINT = 'Ask again: it will be found.';
    END IF;
    IF x.state = 'PENDING' THEN
        INSERT INTO holdfast.pending (seq, run_at, priority, concurrency, to_verify, parked, id, workflow, lock)
        VALUES (x.seq, x.run_at, x.priority, x.concurrency, false, x.parked, x.id, x.workflow, x.lock);
    ELSE
        INSERT INTO holdfast.running (seq, workflow) VALUES (x.seq, x.workflow);
    END IF;
    IF w.input IS NOT NULL THEN
        INSERT INTO holdfast.execution_data (id, input) VALUES (x.id, w.input);
    END IF;
END $$;
COMMENT ON FUNCTION holdfast.add_execution IS 'Keep a new execution, with its input';

CREATE FUNCTION holdfast.keep_execution(x holdfast.execution) RETURNS void LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    IF x.state = 'PENDING' THEN
        INSERT INTO holdfast.pending (seq, run_at, priority, concurrency, to_verify, parked, id, workflow, lock)
        VALUES (x.seq, x.run_at, x.priority, x.concurrency, x.to_verify, x.parked, x.id, x.workflow, x.lock)
        ON CONFLICT (seq) DO UPDATE SET parked = excluded.parked;
    ELSE
        DELETE FROM holdfast.pending WHERE seq = x.seq;
    END IF;
    IF x.state = 'RUNNING' THEN
        INSERT INTO holdfast.running (seq, workflow) VALUES (x.seq, x.workflow) ON CONFLICT DO NOTHING;
    ELSE
        DELETE FROM holdfast.running WHERE workflow = x.workflow AND seq = x.seq;
    END IF;
    UPDATE holdfast.execution
       SET state = x.state, attempt = x.attempt, fence = x.fence, owner = x.owner, started_at = x.started_at,
           finished_at = x.finished_at, exit_code = x.exit_code, reason = x.reason, cancel_requested = x.cancel_requested,
           spawned = x.spawned, to_verify = x.to_verify, run_at = x.run_at, spent = x.spent, parked = x.parked,
           frees_key = x.once AND x.state IN ('FAILED', 'ABORTED')
     WHERE seq = x.seq;
    IF x.finished_at IS NOT NULL THEN
        INSERT INTO holdfast.ended (finished_at, seq, once, workflow) VALUES (x.finished_at, x.seq, x.once, x.workflow);
    END IF;
END $$;
COMMENT ON FUNCTION holdfast.keep_execution IS 'Keep what has become of an execution';

CREATE FUNCTION holdfast.keep_output(p_id uuid, p_head bytea, p_skipped bigint, p_tail bytea) RETURNS void LANGUAGE sql VOLATILE
AS $$
    INSERT INTO holdfast.execution_data (id, output_head, output_skipped, output_tail) VALUES (p_id, p_head, p_skipped, p_tail)
    ON CONFLICT (id) DO UPDATE
       SET output_head = excluded.output_head, output_skipped = excluded.output_skipped, output_tail = excluded.output_tail
$$;
COMMENT ON FUNCTION holdfast.keep_output IS 'Keep what an execution has printed so far';

-- ---- an execution's life

CREATE FUNCTION holdfast.new_execution(w holdfast.wish, p_lock text, p_now timestamptz) RETURNS holdfast.execution LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    x holdfast.execution;
BEGIN
    x.id := w.id;
    x.workflow := w.workflow;
    x.lock := p_lock;
    x.key := w.key;
    x.once := w.once;
    x.state := 'PENDING';
    x.run_at := coalesce(w.run_at, p_now);
    x.created_at := p_now;
    x.priority := w.priority;
    x.attempt := 0;
    x.max_attempts := w.max_attempts;
    x.on_lost := w.on_lost;
    x.retry_backoff_ms := w.backoff_ms;
    x.concurrency := w.concurrency;
    x.spent := 0;
    x.parked := false;
    x.retry_of := w.retry_of;
    x.spawned := false;
    x.cancel_requested := false;
    x.to_verify := false;
    RETURN x;
END $$;
COMMENT ON FUNCTION holdfast.new_execution IS 'A new execution, PENDING, as it is wished for';

CREATE FUNCTION holdfast.start_execution(t holdfast.turn, w holdfast.wish) RETURNS holdfast.turn LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    l        holdfast.lock := t.row;
    x        holdfast.execution := t.found;
    -- A once-run that failed and is asked for again by its own id goes on as the same one.
    takes_up boolean := coalesce(x.state = 'PENDING' OR x.id = w.id, false);
BEGIN
    IF NOT takes_up THEN
        x := holdfast.new_execution(w, l.name, t.now);
    END IF;
    x.state := 'RUNNING';
    x.attempt := x.attempt + 1;
    x.fence := l.fence;
    x.owner := l.owner;
    x.started_at := t.now;
    x.finished_at := NULL;
    x.spawned := x.spawned AND x.to_verify;
    x.cancel_requested := false;
    x.parked := false;
    x.exit_code := NULL;
    x.reason := NULL;
    IF takes_up THEN
        PERFORM holdfast.keep_execution(x);
    ELSE
        PERFORM holdfast.add_execution(w, x);
    END IF;
    l.execution_id := x.id;
    PERFORM holdfast.tell(l, t.now, 'started', l.owner, '', coalesce('key ' || x.key, ''));
    t.row := l;
    t.x := x;
    RETURN t;
END $$;
COMMENT ON FUNCTION holdfast.start_execution IS 'The lock is granted and confirmed: begin the next attempt of what was found and may be taken up, else a new execution';

-- From its id and not by chance, as core/execution.c has it.
CREATE FUNCTION holdfast.backoff(x holdfast.execution) RETURNS interval LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    most_ms  bigint := greatest(x.retry_backoff_ms, 3600000);
    delay_ms bigint := x.retry_backoff_ms;
    hash     bigint := x.spent;
BEGIN
    FOR i IN 2..x.spent LOOP
        EXIT WHEN delay_ms >= most_ms;
        delay_ms := CASE WHEN delay_ms > most_ms / 2 THEN most_ms ELSE 2 * delay_ms END;
    END LOOP;
    FOR i IN 1..36 LOOP
        hash := (hash * 31 + ascii(substr(x.id::text, i, 1))) % 1000003;
    END LOOP;
    RETURN (delay_ms + delay_ms * (hash % 1000) / 4000) * interval '1 millisecond';
END $$;
COMMENT ON FUNCTION holdfast.backoff IS 'How long after its failure it is tried again: doubled with each attempt, up to an hour, and up to a quarter more';

CREATE FUNCTION holdfast.has_attempts_left(x holdfast.execution) RETURNS boolean LANGUAGE sql IMMUTABLE
AS $$ SELECT x.max_attempts = 0 OR x.spent < x.max_attempts $$;
COMMENT ON FUNCTION holdfast.has_attempts_left IS 'May its command be started once more?';

CREATE FUNCTION holdfast.wakes(x holdfast.execution) RETURNS text LANGUAGE sql IMMUTABLE
AS $$
    SELECT repeat(x.workflow || E'\n', (x.state = 'PENDING')::integer + (x.concurrency > 0)::integer)
$$;
COMMENT ON FUNCTION holdfast.wakes IS 'Of one that is no longer RUNNING: its workflow, where it may be claimed again, and where it leaves room for another one';

CREATE FUNCTION holdfast.finish(t holdfast.turn, p_outcome integer, p_exit_code integer, p_reason text) RETURNS holdfast.turn LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    x holdfast.execution := t.x;
BEGIN
    IF x.state IS DISTINCT FROM 'RUNNING' THEN
        RETURN t;
    END IF;
    IF p_outcome = 2 AND NOT x.spawned THEN
        x.spent := x.spent + 1; -- its runner does not tell when it starts: it must not fail for ever
    END IF;
    IF p_outcome = 4 THEN
        x := holdfast.lost_execution(x, p_reason, t.now);
    ELSIF p_outcome = 2 AND x.retry_backoff_ms > 0 AND holdfast.has_attempts_left(x)
       AND NOT x.once AND NOT x.cancel_requested AND NOT x.to_verify THEN
        x.state := 'PENDING';
        x.started_at := NULL;
        x.owner := NULL;
        x.run_at := t.now + holdfast.backoff(x);
    ELSE
        x.state := CASE p_outcome WHEN 1 THEN 'SUCCESS' WHEN 2 THEN 'FAILED' ELSE 'ABORTED' END;
        x.finished_at := t.now;
    END IF;
    x.exit_code := p_exit_code;
    x.reason := p_reason;
    PERFORM holdfast.keep_execution(x);
    t.ready := t.ready || holdfast.wakes(x);
    t.x := x;
    RETURN t;
END $$;
COMMENT ON FUNCTION holdfast.finish IS 'End the execution under the lease, if there is one, as its runner tells it; PENDING again where it is to be retried. Outcome 1: success, 2: failed, 4: its runner gives it up, and on_lost decides; else aborted';

CREATE FUNCTION holdfast.lost_execution(x holdfast.execution, p_reason text, p_now timestamptz) RETURNS holdfast.execution LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    IF x.once OR x.cancel_requested -- there is nobody to run it, or nobody wants it
       OR x.spawned AND NOT (x.on_lost = 2 OR x.on_lost = 1 AND holdfast.has_attempts_left(x)) THEN
        x.state := 'ABORTED';
        x.finished_at := p_now;
    ELSE
        x.to_verify := x.spawned AND x.on_lost = 2;
        x.state := 'PENDING';
        x.started_at := NULL;
        x.owner := NULL;
    END IF;
    x.reason := p_reason;
    RETURN x;
END $$;
COMMENT ON FUNCTION holdfast.lost_execution IS 'What becomes of a RUNNING execution whose lease ended without its own word';

CREATE FUNCTION holdfast.lose(t holdfast.turn, x holdfast.execution, p_reason text) RETURNS holdfast.turn LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    x := holdfast.lost_execution(x, p_reason, t.now);
    PERFORM holdfast.keep_execution(x);
    t.ready := t.ready || holdfast.wakes(x);
    IF (t.found).id = x.id THEN
        t.found := x;
    END IF;
    RETURN t;
END $$;
COMMENT ON FUNCTION holdfast.lose IS 'End the attempt of a RUNNING execution without its own word';

CREATE FUNCTION holdfast.lose_grant(t holdfast.turn, p_reason text) RETURNS holdfast.turn LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    IF (t.x).state = 'RUNNING' THEN
        t := holdfast.lose(t, t.x, p_reason);
    END IF;
    t.x := NULL;
    RETURN holdfast.end_grant(t, 2);
END $$;
COMMENT ON FUNCTION holdfast.lose_grant IS 'The lease is taken away: so ends its execution''s attempt';

CREATE FUNCTION holdfast.is_left(l holdfast.lock, p_name text, x holdfast.execution) RETURNS boolean LANGUAGE sql IMMUTABLE
AS $$
    SELECT coalesce(x.state = 'RUNNING' AND x.lock = p_name, false) AND (l.lock_id IS NULL OR l.execution_id IS DISTINCT FROM x.id)
$$;
COMMENT ON FUNCTION holdfast.is_left IS 'Is the execution RUNNING without the lease of its lock?';

CREATE FUNCTION holdfast.find(t holdfast.turn, w holdfast.wish) RETURNS holdfast.turn LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    t.found := holdfast.find_execution(w);
    IF holdfast.is_left(t.row, (t.row).name, t.found) THEN
        t := holdfast.lose(t, t.found, 'its lease was gone');
    END IF;
    RETURN t;
END $$;
COMMENT ON FUNCTION holdfast.find IS 'Find the execution that is meant. One that is RUNNING without the lease of its lock has lost it';

-- ---- keys

CREATE FUNCTION holdfast.key_state(w holdfast.wish, x holdfast.execution) RETURNS text LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    by_key boolean := coalesce(x.key = w.key AND x.once = w.once AND x.workflow = w.workflow, false);
BEGIN
    IF w.claim THEN
        RETURN CASE WHEN x.state = 'PENDING' AND (NOT x.to_verify OR w.verifies) THEN 'pending' ELSE 'raced' END;
    ELSIF x.id IS NULL THEN
        RETURN 'free';
    ELSIF by_key AND w.once THEN
        RETURN CASE WHEN x.state = 'SUCCESS' THEN 'done'
                    WHEN x.state = 'RUNNING' THEN 'busy'
                    WHEN x.state = 'PENDING' THEN 'pending'
                    ELSE 'free' END;
    ELSIF by_key AND w.input IS DISTINCT FROM (SELECT input FROM holdfast.execution_data WHERE id = x.id) THEN
        RETURN 'reused';
    END IF;
    -- What may have been done already is not begun again before that was looked into.
    RETURN CASE WHEN x.state = 'PENDING' AND NOT x.to_verify THEN 'pending' ELSE 'duplicate' END;
END $$;
COMMENT ON FUNCTION holdfast.key_state IS 'What the execution that was found means for a wish. free: there is none that counts; pending: take it up; busy, done: of what is to happen once; duplicate: it is the answer; reused: its key has another input; raced: it is not to be claimed';

CREATE FUNCTION holdfast.key_decides(w holdfast.wish, x holdfast.execution, l holdfast.lock, p_name text) RETURNS text LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    state text := holdfast.key_state(w, x);
BEGIN
    IF state = 'free' OR state = 'pending' AND x.lock = p_name
       OR state = 'busy' AND l.lock_id IS NOT NULL AND l.execution_id = x.id THEN -- it refuses as any holder does
        RETURN NULL;
    ELSIF state = 'pending' THEN
        RETURN CASE WHEN w.claim THEN 'raced' ELSE 'duplicate' END; -- it waits for another lock
    END IF;
    RETURN state;
END $$;
COMMENT ON FUNCTION holdfast.key_decides IS 'How what was found answers a wish to begin, whoever holds the lock; NULL: the lock decides';

CREATE FUNCTION holdfast.answer_key(t holdfast.turn, p_name text, p_owner text, w holdfast.wish, x holdfast.execution, p_state text)
RETURNS holdfast.answer LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    code integer := CASE p_state WHEN 'done' THEN -19 WHEN 'busy' THEN -1 WHEN 'reused' THEN -5 WHEN 'raced' THEN -2 ELSE 0 END;
    ret  holdfast.answer := holdfast.answer_of(t.row, t.now, code, p_state NOT IN ('duplicate', 'raced'));
BEGIN
    IF p_state = 'raced' THEN
        RETURN ret;
    ELSIF p_state = 'busy' THEN
        ret.execution_id := x.id::text;
    ELSIF p_state = 'done' OR holdfast.may_tell(p_name, t.now, 0) THEN
        INSERT INTO holdfast.event (seq, at, fence, kind, name, owner, execution_id, reason, detail)
        VALUES (nextval('holdfast.seq'), t.now, coalesce((t.row).fence, 0),
                CASE p_state WHEN 'duplicate' THEN 'duplicate' ELSE 'skipped' END, p_name, p_owner, x.id,
                CASE p_state WHEN 'done' THEN 'already done' WHEN 'reused' THEN 'its key has another input' ELSE x.state END,
                coalesce('key ' || w.key, ''));
    END IF;
    ret.duplicate := p_state = 'duplicate';
    ret.execution := x;
    RETURN ret;
END $$;
COMMENT ON FUNCTION holdfast.answer_key IS 'Answer what needs no lock: it was done, is being done, or must not be';

-- ---- begin

CREATE FUNCTION holdfast.stand_back(t holdfast.turn) RETURNS holdfast.turn LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    IF holdfast.is_holder(t, 0) THEN -- an offer that came too late
        RETURN holdfast.offer(holdfast.end_grant(holdfast.strengthen(t), 1));
    END IF;
    RETURN holdfast.drop_waiter(t, t.asker);
END $$;
COMMENT ON FUNCTION holdfast.stand_back IS 'The asker does not want the lock any more: hand on what it was offered, or leave the queue';

CREATE FUNCTION holdfast.begin_locked(t holdfast.turn, p_ttl_ms bigint, p_wait_ms bigint, p_owner text, p_note text, p_priority integer, p_processes text, p_channel text, w holdfast.wish)
RETURNS holdfast.answer LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    before  holdfast.lock := t.row;
    seen    holdfast.execution := holdfast.find_execution(w);
    mine    boolean;
    decides text;
    lines   text;
    ret     holdfast.answer;
BEGIN
    -- Who stands back hands on what it was offered: then those behind it must be known.
    lines := holdfast.look(t, seen.id IS NOT NULL OR w.concurrency > 0
                              OR before.execution_id IS NOT NULL AND coalesce(holdfast.is_stale(t), 1) > 0,
                           p_wait_ms <> 0 AND before.lock_id IS DISTINCT FROM t.asker);
    IF lines <> '' THEN
        RETURN holdfast.to_look_at(lines);
    END IF;
    t := holdfast.end_stale(t);
    mine := holdfast.is_holder(t, 0);
    IF NOT (mine AND (t.row).execution_id IS NOT NULL) THEN
        t := holdfast.find(t, w); -- it may be the one whose lease has just ended
        decides := holdfast.key_decides(w, t.found, t.row, before.name);
    END IF;
    IF decides IS NOT NULL THEN
        ret := holdfast.answer_key(t, before.name, p_owner, w, t.found, decides);
        t := holdfast.stand_back(t);
    ELSIF NOT mine AND holdfast.how_ended((t.row).ended, t.asker) <> 0 THEN
        ret := holdfast.answer_of(t.row, t.now, -3, true);
    ELSIF mine OR (t.row).lock_id IS NULL AND (holdfast.strengthen(t)).may_grant THEN
        IF NOT (mine AND (t.row).execution_id IS NOT NULL) AND holdfast.is_full(t, w) THEN
            IF NOT w.claim THEN
                PERFORM holdfast.deny(t.row, t.now, p_owner, 'concurrency');
            END IF;
            t := holdfast.stand_back(t);
            ret := holdfast.answer_of(t.row, t.now, CASE WHEN w.claim THEN -2 ELSE -1 END, NOT w.claim);
        ELSE
            IF mine THEN
                t := holdfast.renew(t, p_ttl_ms);
            ELSE
                t := holdfast.grant_to(t, t.asker, p_owner, p_note, p_ttl_ms, p_processes, false, '');
            END IF;
            IF (t.row).execution_id IS NULL THEN
                t := holdfast.start_execution(t, w);
                IF w.claim AND (t.row).parked THEN
                    PERFORM holdfast.park_due(before.name, t.now);
                END IF;
            END IF;
            ret := holdfast.answer_of(t.row, t.now, 0, false);
            ret.execution := t.x;
        END IF;
    ELSIF p_wait_ms <> 0 THEN
        t := holdfast.enqueue(t, p_ttl_ms, p_wait_ms, p_owner, p_note, p_priority, p_processes, p_channel);
        ret := holdfast.answer_of(t.row, t.now, -1, true);
        ret.queued := true;
        ret.ahead := t.ahead;
    ELSE
        IF w.claim THEN -- who looks for work is not denied anything
            t := holdfast.park(t);
        ELSE
            PERFORM FROM holdfast.waiter WHERE name = before.name AND lock_id = t.asker;
            PERFORM holdfast.deny(t.row, t.now, p_owner, CASE WHEN FOUND THEN 'gave up waiting' ELSE 'held' END);
        END IF;
        t := holdfast.drop_waiter(t, t.asker);
        ret := holdfast.answer_of(t.row, t.now, -1, true);
        IF w.claim AND (t.found).parked THEN
            ret.execution := t.found;
        END IF;
    END IF;
    t := holdfast.save(t, before);
    ret.ready := t.ready;
    RETURN ret;
END $$;
COMMENT ON FUNCTION holdfast.begin_locked IS 'begin_execution, once the row is locked';

CREATE FUNCTION holdfast.begin_refused(t holdfast.turn, p_name text, p_wait_ms bigint, p_owner text, w holdfast.wish, x holdfast.execution)
RETURNS holdfast.answer LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    l       holdfast.lock := t.row;
    decides text;
    ret     holdfast.answer;
BEGIN
    IF holdfast.is_stale(t) <> 0 OR l.lock_id = t.asker OR l.lock_id IS NULL AND l.waiters > 0
       OR l.waiters > 0 AND EXISTS (SELECT FROM holdfast.waiter WHERE name = p_name AND lock_id = t.asker)
       OR holdfast.is_left(l, p_name, x) THEN
        RETURN NULL;
    END IF;
    decides := holdfast.key_decides(w, x, l, p_name);
    IF decides IS NULL
       AND (l.lock_id IS NULL OR p_wait_ms <> 0 OR holdfast.how_ended(l.ended, t.asker) <> 0
            OR w.claim AND NOT x.parked AND x.run_at <= t.now) THEN
        RETURN NULL;
    END IF;
    PERFORM holdfast.commit_lazily();
    IF decides IS NOT NULL THEN
        RETURN holdfast.answer_key(t, p_name, p_owner, w, x, decides);
    END IF;
    ret := holdfast.answer_of(l, t.now, -1, true);
    IF w.claim AND x.parked THEN
        ret.execution := x;
    ELSIF NOT w.claim THEN
        PERFORM holdfast.deny(l, t.now, p_owner, 'held');
    END IF;
    RETURN ret;
END $$;
COMMENT ON FUNCTION holdfast.begin_refused IS 'Answer without a lock, and without waiting for the disk, where nothing is to be begun: another holds the lock, or the key is the answer. NULL: it takes the lock to tell';

CREATE FUNCTION holdfast.begin_execution(p_name text, p_lock_id bytea, p_ttl_ms bigint, p_wait_ms bigint, p_owner text, p_note text, p_priority integer, p_processes text, p_channel text, p_workflow text, p_key text, p_once boolean, p_input bytea, p_id uuid, p_retry_of uuid, p_run_at_ms bigint, p_on_lost integer, p_max_attempts integer, p_backoff_ms bigint, p_concurrency integer, p_claim boolean, p_verifies boolean, p_here text, p_alive bytea[], p_dead bytea[])
RETURNS holdfast.answer LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    w    holdfast.wish := ROW(p_workflow, p_key, p_once, p_input, p_id, p_retry_of, to_timestamp(nullif(p_run_at_ms, 0) / 1000.0),
                              p_priority, p_on_lost, p_max_attempts, p_backoff_ms, p_concurrency, p_claim, p_verifies);
    x    holdfast.execution;
    l    holdfast.lock;
    t    holdfast.turn;
    ret  holdfast.answer;
    free boolean := false;
BEGIN
    SELECT * INTO l FROM holdfast.lock WHERE name = p_name ORDER BY fence DESC LIMIT 1;
    t := holdfast.start_turn(l, p_lock_id, p_here, p_alive, p_dead, false);
    IF holdfast.is_stale(t) IS NULL THEN
        RETURN holdfast.to_look_at(holdfast.look(t, false, p_wait_ms <> 0));
    END IF;
    x := holdfast.find_execution(w);
    ret := holdfast.begin_refused(t, p_name, p_wait_ms, p_owner, w, x);
    IF ret.code IS NOT NULL THEN
        RETURN ret;
    END IF;
    PERFORM holdfast.limit_workflow(coalesce(x.workflow, p_workflow), greatest(x.concurrency, p_concurrency)); -- before any row
    IF p_claim AND l.name IS NOT NULL THEN
        l := holdfast.take(p_name, 'try'); -- where another is at it there is other work
        IF l.name IS NULL THEN
            RETURN holdfast.answer_of(t.row, t.now, -1, true);
        END IF;
        free := true;
    ELSIF holdfast.is_stale(t) > 0 OR l.lock_id IS NULL THEN
        BEGIN
            l := holdfast.take(p_name, 'grant');
            free := true;
        EXCEPTION WHEN lock_not_available THEN
            l := holdfast.take(p_name, 'change'); -- a guard is in the way: refused, or queued
        END;
    ELSE
        l := holdfast.take(p_name, 'change');
    END IF;
    RETURN holdfast.begin_locked(holdfast.start_turn(l, p_lock_id, p_here, p_alive, p_dead, free), p_ttl_ms, p_wait_ms, p_owner,
                                 p_note, p_priority, p_processes, p_channel, w);
END $$;
COMMENT ON FUNCTION holdfast.begin_execution IS 'acquire, and begin an execution under the lease: a new one, or the PENDING one that has the key or the id. Where the key is the answer no lock is taken: duplicate. With claim: the PENDING one with this id, or -2; never waits for anybody';

-- ---- while it runs, and its end

CREATE FUNCTION holdfast.extend_execution(p_name text, p_lock_id bytea, p_fence bigint, p_ttl_ms bigint, p_spawned boolean, p_has_output boolean, p_output_head bytea, p_output_skipped bigint, p_output_tail bytea, p_here text, p_alive bytea[], p_dead bytea[])
RETURNS holdfast.answer LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    ret holdfast.answer := holdfast.extend(p_name, p_lock_id, p_fence, p_ttl_ms, p_here, p_alive, p_dead);
    x   holdfast.execution := ret.execution;
BEGIN
    IF ret.code <> 0 OR x.id IS NULL THEN
        RETURN ret;
    END IF;
    IF p_spawned AND (NOT x.spawned OR x.to_verify) AND NOT x.cancel_requested THEN
        x.spawned := true;
        x.to_verify := false;
        x.spent := x.spent + 1;
        PERFORM holdfast.keep_execution(x);
        ret.execution := x;
    END IF;
    IF p_has_output THEN
        PERFORM holdfast.keep_output(x.id, p_output_head, p_output_skipped, p_output_tail);
    END IF;
    RETURN ret;
END $$;
COMMENT ON FUNCTION holdfast.extend_execution IS 'extend, with news of the execution: its command is about to be started, has printed something';

CREATE FUNCTION holdfast.ended_so(x holdfast.execution, p_fence bigint, p_was_released boolean, p_outcome integer, p_exit_code integer) RETURNS boolean LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE WHEN x.id IS NULL THEN p_was_released
                WHEN p_was_released AND p_fence BETWEEN 1 AND x.fence - 1 AND p_outcome IN (2, 4) THEN true -- another attempt has begun since
                ELSE CASE WHEN p_fence <> 0 THEN coalesce(p_fence = x.fence, false) ELSE p_was_released END
                     AND (x.state IN ('PENDING', 'ABORTED') AND p_outcome IN (2, 4) AND p_was_released -- it is retried, or was to be
                          OR x.state = CASE p_outcome WHEN 1 THEN 'SUCCESS' WHEN 2 THEN 'FAILED' ELSE 'ABORTED' END)
                     AND x.exit_code IS NOT DISTINCT FROM p_exit_code
           END
$$;
COMMENT ON FUNCTION holdfast.ended_so IS 'Was the same end told before? Then it is done';

CREATE FUNCTION holdfast.finish_execution(p_name text, p_lock_id bytea, p_fence bigint, p_outcome integer, p_has_exit_code boolean, p_exit_code integer, p_reason text, p_id uuid, p_has_output boolean, p_output_head bytea, p_output_skipped bigint, p_output_tail bytea, p_here text, p_alive bytea[], p_dead bytea[])
RETURNS holdfast.answer LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    l       holdfast.lock := holdfast.take(p_name, 'change');
    t       holdfast.turn := holdfast.start_turn(l, p_lock_id, p_here, p_alive, p_dead, false);
    found_x holdfast.execution;
    lines   text;
    after   holdfast.lock;
    ret     holdfast.answer;
BEGIN
    lines := holdfast.look(t, l.lock_id = p_lock_id
                              OR l.waiters > 0 AND EXISTS (SELECT FROM holdfast.waiter WHERE name = p_name AND lock_id = p_lock_id), false);
    IF lines <> '' THEN
        RETURN holdfast.to_look_at(lines);
    END IF;
    t := holdfast.end_stale(t);
    IF holdfast.is_holder(t, p_fence) THEN
        t := holdfast.release_own(t, p_outcome, p_has_exit_code, p_exit_code, p_reason);
        ret := holdfast.answer_of(t.row, t.now, 0, false);
        ret.execution := t.x;
        IF p_has_output AND (t.x).id IS NOT NULL THEN
            PERFORM holdfast.keep_output((t.x).id, p_output_head, p_output_skipped, p_output_tail);
        END IF;
    ELSE
        IF p_outcome <> 0 AND p_id IS NOT NULL THEN
            found_x := holdfast.execution_of(p_id);
        END IF;
        IF NOT holdfast.is_holder(t, 0)
           AND holdfast.ended_so(found_x, p_fence, holdfast.was_released(t.row, p_lock_id, p_fence), p_outcome,
                                 CASE WHEN p_has_exit_code THEN p_exit_code END) THEN
            ret := holdfast.answer_of(t.row, t.now, 0, false); -- the reply to the first one was lost: it is done
            ret.execution := found_x;
        ELSE
            ret := holdfast.answer_of(t.row, t.now, -3, true);
            after := t.row;
            after.release_lost := after.release_lost + 1;
            t.row := after;
        END IF;
    END IF;
    t := holdfast.save(t, l);
    ret.ready := t.ready;
    RETURN ret;
END $$;
COMMENT ON FUNCTION holdfast.finish_execution IS 'release, with the end of the execution (outcome 1: success, 2: failed, 3: aborted, 4: given up) and what it printed; -3: the lease was lost, and nothing has changed. The same end told again is done';
