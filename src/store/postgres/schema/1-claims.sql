
-- ---- executions, many at once ---------------------------------------------------------------------

-- To begin and end a statement takes some microseconds for each part of its plan, which counts where it is for one
-- only: so what is done to many by one large statement is done to one by small ones.

CREATE FUNCTION holdfast.enqueue_one(p_name text, p_workflow text, p_key text, p_once boolean, p_input bytea, p_id uuid, p_retry_of uuid, p_run_at timestamptz, p_priority integer, p_on_lost integer, p_max_attempts integer, p_backoff_ms bigint, p_concurrency integer, p_now timestamptz)
RETURNS bigint LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    made bigint;
BEGIN
    PERFORM FROM (SELECT lock_id, waiters FROM holdfast.lock WHERE name = p_name ORDER BY fence DESC LIMIT 1) AS l
      WHERE l.lock_id IS NOT NULL OR l.waiters > 0;
    IF FOUND THEN
        RETURN NULL;
    END IF;
    INSERT INTO holdfast.execution (run_at, created_at, priority, max_attempts, on_lost, concurrency, retry_backoff_ms, once, id,
                                    retry_of, state, workflow, lock, key)
    VALUES (p_run_at, p_now, p_priority, p_max_attempts, p_on_lost, p_concurrency, p_backoff_ms, p_once, p_id, p_retry_of, 'PENDING',
            p_workflow, p_name, p_key)
    ON CONFLICT DO NOTHING
    RETURNING seq INTO made;
    IF FOUND THEN
        INSERT INTO holdfast.pending (seq, run_at, priority, concurrency, to_verify, parked, id, workflow, lock)
        VALUES (made, p_run_at, p_priority, p_concurrency, false, false, p_id, p_workflow, p_name);
    END IF;
    IF made IS NOT NULL AND p_input IS NOT NULL THEN
        INSERT INTO holdfast.execution_data (id, input) VALUES (p_id, p_input);
    END IF;
    RETURN made;
END $$;
COMMENT ON FUNCTION holdfast.enqueue_one IS 'enqueue_many of one: its number; NULL: nothing has been done';

-- Those whose lock is free, which nobody waits for, and whose key is: nothing is to be decided but their
-- place. The lock is looked up by a subquery of its own, or a plan might join all of the table.
CREATE FUNCTION holdfast.enqueue_many(p_names text[], p_workflows text[], p_keys text[], p_once boolean[], p_inputs bytea[], p_ids uuid[], p_retry_ofs uuid[], p_run_ats_ms bigint[], p_priorities integer[], p_on_losts integer[], p_max_attempts integer[], p_backoffs_ms bigint[], p_concurrencies integer[])
RETURNS TABLE (i bigint, made bigint, now_ms bigint) LANGUAGE plpgsql VOLATILE
SET enable_mergejoin = off SET enable_seqscan = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    now timestamptz := holdfast.clock();
BEGIN
    PERFORM holdfast.commit_durably();
    IF cardinality(p_names) = 1 THEN
        made := holdfast.enqueue_one(p_names[1], p_workflows[1], p_keys[1], p_once[1], p_inputs[1], p_ids[1], p_retry_ofs[1],
                                     coalesce(to_timestamp(nullif(p_run_ats_ms[1], 0) / 1000.0), now), p_priorities[1], p_on_losts[1],
                                     p_max_attempts[1], p_backoffs_ms[1], p_concurrencies[1], now);
        IF made IS NOT NULL THEN
            i := 1;
            now_ms := holdfast.ms(now);
            RETURN NEXT;
        END IF;
        RETURN;
    END IF;
    RETURN QUERY
    WITH a AS MATERIALIZED (
        SELECT * FROM unnest(p_names, p_workflows, p_keys, p_once, p_inputs, p_ids, p_retry_ofs, p_run_ats_ms, p_priorities, p_on_losts,
                             p_max_attempts, p_backoffs_ms, p_concurrencies)
             WITH ORDINALITY AS a(name, workflow, key, once, input, id, retry_of, run_at_ms, priority, on_lost, max_attempts, backoff_ms,
                                  concurrency, i)
    ), kept AS (
        INSERT INTO holdfast.execution (run_at, created_at, priority, max_attempts, on_lost, concurrency, retry_backoff_ms, once, id,
                                        retry_of, state, workflow, lock, key)
        SELECT coalesce(to_timestamp(nullif(a.run_at_ms, 0) / 1000.0), now), now, a.priority, a.max_attempts, a.on_lost, a.concurrency,
               a.backoff_ms, a.once, a.id, a.retry_of, 'PENDING', a.workflow, a.name, a.key
          FROM a
         WHERE (SELECT l.lock_id IS NOT NULL OR l.waiters > 0 FROM holdfast.lock AS l
                 WHERE l.name = a.name ORDER BY l.fence DESC LIMIT 1) IS NOT TRUE
         ORDER BY a.i
        ON CONFLICT DO NOTHING
        RETURNING seq, run_at, priority, concurrency, id, workflow, lock
    ), queued AS (
        INSERT INTO holdfast.pending (seq, run_at, priority, concurrency, to_verify, parked, id, workflow, lock)
        SELECT k.seq, k.run_at, k.priority, k.concurrency, false, false, k.id, k.workflow, k.lock FROM kept AS k
    ), data AS (
        INSERT INTO holdfast.execution_data (id, input) SELECT a.id, a.input FROM a JOIN kept USING (id) WHERE a.input IS NOT NULL
    )
    SELECT a.i, k.seq, holdfast.ms(now) FROM a JOIN kept AS k USING (id);
END $$;
COMMENT ON FUNCTION holdfast.enqueue_many IS 'Record those of many executions whose lock is free and whose key is: which (from 1), its number, when. Without overlap: each waits its turn';

-- ---- claim

CREATE FUNCTION holdfast.take_plain(p_now timestamptz, p_max integer, p_passed bigint[]) RETURNS bigint[] LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    rank integer;
    ret  bigint[] := '{}';
BEGIN
    SELECT priority INTO rank FROM holdfast.pending
     WHERE NOT parked AND concurrency = 0 AND NOT to_verify ORDER BY priority DESC LIMIT 1;
    WHILE rank IS NOT NULL LOOP
        ret := ret || ARRAY(SELECT seq FROM holdfast.pending
                             WHERE NOT parked AND concurrency = 0 AND NOT to_verify AND priority = rank AND run_at <= p_now
                               AND seq <> ALL (p_passed)
                             ORDER BY run_at, seq LIMIT p_max - cardinality(ret) FOR UPDATE SKIP LOCKED);
        EXIT WHEN cardinality(ret) = p_max;
        SELECT max(priority) INTO rank FROM holdfast.pending
         WHERE NOT parked AND concurrency = 0 AND NOT to_verify AND priority < rank;
    END LOOP;
    RETURN ret;
END $$;
COMMENT ON FUNCTION holdfast.take_plain IS 'As plain_due, and locks them; what others have locked is passed over';

CREATE FUNCTION holdfast.take_group(g holdfast.workgroup, p_now timestamptz, p_max integer, p_passed bigint[]) RETURNS bigint[] LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    rank integer;
    ret  bigint[] := '{}';
BEGIN
    SELECT priority INTO rank FROM holdfast.pending
     WHERE NOT parked AND workflow = g.workflow AND concurrency = g.concurrency AND to_verify = g.to_verify ORDER BY priority DESC LIMIT 1;
    WHILE rank IS NOT NULL LOOP
        ret := ret || ARRAY(SELECT seq FROM holdfast.pending
                             WHERE NOT parked AND workflow = g.workflow AND concurrency = g.concurrency
                               AND to_verify = g.to_verify AND priority = rank AND run_at <= p_now AND seq <> ALL (p_passed)
                             ORDER BY run_at, seq LIMIT p_max - cardinality(ret) FOR UPDATE SKIP LOCKED);
        EXIT WHEN cardinality(ret) = p_max;
        SELECT max(priority) INTO rank FROM holdfast.pending
         WHERE NOT parked AND workflow = g.workflow AND concurrency = g.concurrency AND to_verify = g.to_verify
           AND priority < rank;
    END LOOP;
    RETURN ret;
END $$;
COMMENT ON FUNCTION holdfast.take_group IS 'As group_due, and locks them; what others have locked is passed over';

-- Where all is of one kind, whoever looks takes what nobody else has; else what is first is looked for among
-- the kinds, and those that others have are passed over by the next turn.
CREATE FUNCTION holdfast.take_due(p_workflows text[], p_verifies boolean, p_groups holdfast.workgroup[], p_now timestamptz, p_max integer, p_passed bigint[])
RETURNS bigint[] LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    wanted bigint[];
    ret    bigint[] := '{}';
BEGIN
    IF cardinality(p_groups) = 0 THEN
        RETURN CASE WHEN p_workflows IS NULL THEN holdfast.take_plain(p_now, p_max, p_passed) ELSE '{}' END;
    ELSIF cardinality(p_groups) = 1 AND p_workflows IS NOT NULL AND p_groups[1].concurrency = 0 THEN
        RETURN holdfast.take_group(p_groups[1], p_now, p_max, p_passed);
    END IF;
    LOOP
        wanted := ARRAY(SELECT p.seq FROM holdfast.due_places(p_workflows, p_verifies, p_now, p_max + cardinality(p_passed)) AS p
                         WHERE p.seq <> ALL (p_passed) ORDER BY p.priority DESC, p.run_at, p.seq LIMIT p_max - cardinality(ret));
        ret := ret || ARRAY(SELECT p.seq FROM holdfast.pending AS p
                             WHERE p.seq = ANY (wanted) AND NOT p.parked
                             ORDER BY p.priority DESC, p.run_at, p.seq FOR UPDATE SKIP LOCKED);
        IF cardinality(wanted) = 0 OR cardinality(ret) = p_max THEN
            RETURN ret;
        END IF;
        p_passed := p_passed || wanted;
    END LOOP;
END $$;
COMMENT ON FUNCTION holdfast.take_due IS 'The first that are due and that nobody else is about to claim, locked, in the order of claiming. Groups: as workgroups has them. Fewer than asked for: there are no more';

CREATE TYPE holdfast.claimed AS (
    lock_id   bytea,
    now_ms    bigint,
    ready     text,
    took      text,
    execution holdfast.execution
);
COMMENT ON TYPE   holdfast.claimed           IS 'An execution that was claimed';
COMMENT ON COLUMN holdfast.claimed.lock_id   IS 'Which of the tokens has its lock; NULL: it is yet to be claimed by begin_execution';
COMMENT ON COLUMN holdfast.claimed.now_ms    IS 'When';
COMMENT ON COLUMN holdfast.claimed.ready     IS 'As in answer';
COMMENT ON COLUMN holdfast.claimed.took      IS 'As in answer';
COMMENT ON COLUMN holdfast.claimed.execution IS 'The execution, as it is now; NULL: there is only something ready';

CREATE FUNCTION holdfast.claim_plainly(p_seq bigint, p_lock_id bytea, p_ttl_ms bigint, p_owner text, p_processes text, p_now timestamptz)
RETURNS holdfast.claimed LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    until timestamptz := p_now + p_ttl_ms * interval '1 millisecond';
    l     holdfast.lock;
    p     holdfast.pending;
    x     holdfast.execution;
    gone  bigint[];
    ret   holdfast.claimed;
BEGIN
    SELECT * INTO p FROM holdfast.pending WHERE seq = p_seq;
    SELECT * INTO l FROM holdfast.lock WHERE name = p.lock ORDER BY fence DESC LIMIT 1 FOR UPDATE SKIP LOCKED;
    IF l.lock_id IS NOT NULL OR l.waiters > 0 OR l.parked THEN
        RETURN NULL;
    ELSIF l.name IS NOT NULL THEN
        UPDATE holdfast.lock
           SET fence = nextval('holdfast.seq'), lock_id = p_lock_id, owner = p_owner, note = '', processes = p_processes, took = '',
               ttl_ms = p_ttl_ms, locked_at = p_now, told_at = p_now, locked_until = until, granted = granted + 1, execution_id = p.id,
               offered = false
         WHERE name = l.name AND fence = l.fence
        RETURNING fence INTO l.fence;
    ELSE
        INSERT INTO holdfast.name VALUES (p.lock) ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN
            RETURN NULL;
        END IF;
        gone := holdfast.fences_before();
        INSERT INTO holdfast.lock (fence, locked_at, locked_until, told_at, ttl_ms, granted, name, lost_fences, lock_id, owner, note,
                                   processes, took, execution_id)
        VALUES (nextval('holdfast.seq'), p_now, until, p_now, p_ttl_ms, 1, p.lock, gone, p_lock_id, p_owner, '', p_processes, '', p.id)
        RETURNING fence INTO l.fence;
    END IF;
    UPDATE holdfast.execution
       SET state = 'RUNNING', attempt = attempt + 1, fence = l.fence, owner = p_owner, started_at = p_now, finished_at = NULL,
           spawned = spawned AND to_verify, cancel_requested = false, exit_code = NULL, reason = NULL
     WHERE seq = p_seq
    RETURNING * INTO x;
    DELETE FROM holdfast.pending WHERE seq = p_seq;
    INSERT INTO holdfast.running (seq, workflow) VALUES (p_seq, p.workflow);
    INSERT INTO holdfast.event (seq, at, fence, kind, name, owner, execution_id, reason, detail)
    VALUES (l.fence, p_now, l.fence, 'acquired', p.lock, p_owner, NULL, '', ''),
           (nextval('holdfast.seq'), p_now, l.fence, 'started', p.lock, p_owner, p.id, '', coalesce('key ' || x.key, ''));
    ret.lock_id := p_lock_id;
    ret.now_ms := holdfast.ms(p_now);
    ret.ready := '';
    ret.took := '';
    ret.execution := x;
    RETURN ret;
END $$;
COMMENT ON FUNCTION holdfast.claim_plainly IS 'Claim this execution, if its lock is free and nobody else waits there; NULL: it is not so, and nothing has been done';

CREATE TYPE holdfast.grants AS (
    fences  bigint[],
    ids     uuid[],
    tokens  bytea[],
    crowded text[],
    closer  bigint[]
);
COMMENT ON TYPE   holdfast.grants         IS 'Locks that were granted to executions';
COMMENT ON COLUMN holdfast.grants.fences  IS 'The fence of each';
COMMENT ON COLUMN holdfast.grants.ids     IS 'To which execution';
COMMENT ON COLUMN holdfast.grants.tokens  IS 'With which of the tokens';
COMMENT ON COLUMN holdfast.grants.crowded IS 'Names of locks whose other executions are to be parked';
COMMENT ON COLUMN holdfast.grants.closer  IS 'Numbers of the executions whose lock needs a closer look';

-- The first of each lock that is free, or was never asked for, is granted it. The others of it, and those whose
-- lock another has, are to be parked. What is not so clear is left to begin_execution.
CREATE FUNCTION holdfast.grant_free(p_seqs bigint[], p_lock_ids bytea[], p_ttl_ms bigint, p_owner text, p_processes text, p_now timestamptz, p_here text)
RETURNS holdfast.grants LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    until   timestamptz := p_now + p_ttl_ms * interval '1 millisecond';
    ids     uuid[];     -- of the executions, in their order
    names   text[];     -- of their locks
    nths    bigint[];   -- which one each is of its lock
    ofs     bigint[];   -- of so many
    known   text[];
    free    text[];
    held    text[];
    crowds  text[];     -- free, and others are parked there
    gone    bigint[];   -- the lost_fences of a new name
    ret     holdfast.grants;
BEGIN
    SELECT array_agg(c.id), array_agg(c.lock), array_agg(c.nth), array_agg(c.of)
      INTO ids, names, nths, ofs
      FROM (SELECT s.at, p.id, p.lock, row_number() OVER (PARTITION BY p.lock ORDER BY s.at) AS nth, count(*) OVER (PARTITION BY p.lock) AS of
              FROM unnest(p_seqs) WITH ORDINALITY AS s(seq, at)
             CROSS JOIN LATERAL (SELECT id, lock FROM holdfast.pending WHERE pending.seq = s.seq LIMIT 1) AS p ORDER BY s.at) AS c;
    SELECT coalesce(array_agg(l.name), '{}'), coalesce(array_agg(l.name) FILTER (WHERE l.lock_id IS NULL AND l.waiters = 0), '{}'),
           coalesce(array_agg(l.name) FILTER (WHERE l.lock_id IS NOT NULL AND l.locked_until > p_now
                                                AND holdfast.died(l.processes, l.lock_id, p_here, '{}', '{}') = false
                                                AND (l.execution_id IS NULL
                                                     OR (SELECT state FROM holdfast.execution WHERE id = l.execution_id) = 'RUNNING')), '{}'),
           coalesce(array_agg(l.name) FILTER (WHERE l.lock_id IS NULL AND l.waiters = 0 AND l.parked), '{}')
      INTO known, free, held, crowds
      FROM (SELECT a.name FROM unnest(names, nths) AS a(name, nth) WHERE a.nth = 1 ORDER BY a.name) AS n
     CROSS JOIN LATERAL (SELECT * FROM holdfast.lock WHERE lock.name = n.name ORDER BY fence DESC LIMIT 1 FOR UPDATE SKIP LOCKED) AS l;
    IF cardinality(known) < cardinality(array_positions(nths, 1::bigint)) THEN
        gone := holdfast.fences_before();
        WITH fresh AS (
            INSERT INTO holdfast.name
            SELECT a.name FROM unnest(names, nths) AS a(name, nth) WHERE a.nth = 1 AND a.name <> ALL (known) ORDER BY a.name
            ON CONFLICT DO NOTHING RETURNING name
        ), made AS (
            INSERT INTO holdfast.lock (fence, locked_at, locked_until, told_at, ttl_ms, granted, parked, name, lost_fences, lock_id,
                                       owner, note, processes, took, execution_id)
            SELECT nextval('holdfast.seq'), p_now, until, p_now, p_ttl_ms, 1, a.of > 1, a.name, gone, a.lock_id, p_owner, '', p_processes, '', a.id
              FROM unnest(names, ids, p_lock_ids, nths, ofs) AS a(name, id, lock_id, nth, of)
             WHERE a.nth = 1 AND (a.name IN (SELECT f.name FROM fresh AS f)) IS TRUE -- by hash, and not as a join
            RETURNING fence, execution_id, lock_id
        )
        SELECT coalesce(array_agg(m.fence), '{}'), coalesce(array_agg(m.execution_id), '{}'), coalesce(array_agg(m.lock_id), '{}')
          INTO ret.fences, ret.ids, ret.tokens FROM made AS m;
    END IF;
    IF cardinality(free) > 0 THEN
        WITH given AS (
            UPDATE holdfast.lock AS l
               SET fence = nextval('holdfast.seq'), lock_id = a.lock_id, owner = p_owner, note = '', processes = p_processes, took = '',
                   ttl_ms = p_ttl_ms, locked_at = p_now, told_at = p_now, locked_until = until, granted = l.granted + 1, execution_id = a.id,
                   offered = false, parked = l.parked OR a.of > 1
              FROM unnest(names, ids, p_lock_ids, nths, ofs) AS a(name, id, lock_id, nth, of)
             CROSS JOIN LATERAL (SELECT m.ctid AS at FROM holdfast.lock AS m WHERE m.name = a.name ORDER BY m.fence DESC LIMIT 1) AS newest
             WHERE a.nth = 1 AND a.name = ANY (free) AND l.ctid = newest.at
            RETURNING l.fence, l.execution_id, l.lock_id
        )
        SELECT ret.fences || array_agg(g.fence), ret.ids || array_agg(g.execution_id), ret.tokens || array_agg(g.lock_id)
          INTO ret.fences, ret.ids, ret.tokens FROM given AS g;
    END IF;
    IF cardinality(held) > 0 OR cardinality(crowds) > 0 OR 2 = ANY (nths) THEN
        UPDATE holdfast.lock AS l SET parked = true
          FROM unnest(held) AS a(name)
         CROSS JOIN LATERAL (SELECT m.ctid AS at FROM holdfast.lock AS m WHERE m.name = a.name ORDER BY m.fence DESC LIMIT 1) AS newest
         WHERE l.ctid = newest.at AND NOT l.parked;
        ret.crowded := ARRAY(SELECT a.name FROM unnest(names, ids, nths, ofs) AS a(name, id, nth, of)
                              WHERE a.nth = 1 AND (a.name = ANY (held) OR a.name = ANY (crowds) OR a.of > 1 AND a.id = ANY (ret.ids)));
    END IF;
    IF cardinality(known) > cardinality(free) + cardinality(held) THEN
        ret.closer := ARRAY(SELECT a.seq FROM unnest(p_seqs, names) AS a(seq, name)
                             WHERE a.name = ANY (known) AND a.name <> ALL (free) AND a.name <> ALL (held));
    END IF;
    RETURN ret;
END $$;
COMMENT ON FUNCTION holdfast.grant_free IS 'Grant to these executions those of their locks that are free';

CREATE FUNCTION holdfast.is_hopeless(x holdfast.execution) RETURNS boolean LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    running integer;
BEGIN
    IF x.concurrency = 0 THEN
        RETURN false;
    END IF;
    SELECT count(*) INTO running
      FROM (SELECT FROM holdfast.running WHERE workflow = x.workflow LIMIT x.concurrency) AS those;
    RETURN running >= x.concurrency;
END $$;
COMMENT ON FUNCTION holdfast.is_hopeless IS 'Those that were claimed before it have made its workflow full: there is nothing to be done about it now';

CREATE FUNCTION holdfast.claim_one(x holdfast.execution, p_lock_id bytea, p_ttl_ms bigint, p_owner text, p_processes text, p_verifies boolean, p_here text)
RETURNS holdfast.claimed LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    a holdfast.answer := holdfast.begin_execution(x.lock, p_lock_id, p_ttl_ms, 0, p_owner, '', 0, p_processes, '', NULL, NULL, false, NULL, x.id,
                                                  NULL, 0, 0, 0, 0, 0, true, p_verifies, p_here, '{}', '{}');
BEGIN
    RETURN ROW(CASE a.code WHEN 0 THEN p_lock_id END, a.now_ms, a.ready, a.took,
               CASE a.code WHEN 0 THEN a.execution WHEN 100 THEN x END)::holdfast.claimed;
END $$;
COMMENT ON FUNCTION holdfast.claim_one IS 'Claim this execution by begin_execution; without a token where the caller must look at a process first';

CREATE FUNCTION holdfast.claimed_before(p_lock_ids bytea[]) RETURNS SETOF holdfast.claimed LANGUAGE sql STABLE
AS $$
    SELECT l.lock_id, holdfast.ms(l.locked_at), '', l.took, x
      FROM holdfast.running AS r JOIN holdfast.execution AS x USING (seq)
     CROSS JOIN LATERAL (SELECT * FROM holdfast.lock WHERE name = x.lock ORDER BY fence DESC LIMIT 1) AS l
     WHERE l.execution_id = x.id AND l.lock_id = ANY (p_lock_ids)
$$;
COMMENT ON FUNCTION holdfast.claimed_before IS 'What was claimed with these tokens, where the answer was lost';

CREATE FUNCTION holdfast.claim(p_workflows text[], p_verifies boolean, p_max integer, p_lock_ids bytea[], p_ttl_ms bigint, p_owner text, p_processes text, p_again boolean, p_here text)
RETURNS SETOF holdfast.claimed LANGUAGE plpgsql VOLATILE
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off SET plan_cache_mode = force_generic_plan SET enable_memoize = off
AS $$
DECLARE
    now     timestamptz;
    wanted  integer := p_max;
    asked   integer;
    got     integer;
    limited boolean := false;
    unused  bytea[] := p_lock_ids;
    passed  bigint[] := '{}';
    groups  holdfast.workgroup[] := '{}';
    seqs    bigint[];
    closer  bigint[];
    next    bigint;
    grants  holdfast.grants;
    c       holdfast.claimed;
    taken   holdfast.execution;
BEGIN
    PERFORM pg_advisory_xact_lock(1751869285, hashtext(p_lock_ids[1]::text)); -- the same call, where its answer was lost, may still be at work
    now := holdfast.clock();
    IF p_again THEN
        RETURN QUERY SELECT * FROM holdfast.claimed_before(p_lock_ids);
        IF FOUND THEN
            RETURN;
        END IF;
    END IF;
    PERFORM holdfast.commit_durably();
    IF p_workflows IS NOT NULL OR EXISTS (SELECT FROM holdfast.pending WHERE NOT parked AND (concurrency > 0 OR to_verify)) THEN
        groups := ARRAY(SELECT g FROM holdfast.workgroups(p_workflows) AS g WHERE p_verifies OR NOT g.to_verify);
        limited := EXISTS (SELECT FROM unnest(groups) WHERE concurrency > 0);
    END IF;
    IF limited THEN -- all that this may concern, in their order and before any row: two claims never wait crosswise
        PERFORM holdfast.limit_workflow(g.workflow, 1) FROM (SELECT DISTINCT workflow FROM unnest(groups) WHERE concurrency > 0 ORDER BY workflow) AS g;
    END IF;
    -- Only where each is the first ever to use names that the other wants, and this in more than one turn, they
    -- do: one of them is told so by the server, and asks again.
    WHILE wanted > 0 LOOP
        asked := least(wanted, 128);
        seqs := holdfast.take_due(p_workflows, p_verifies, groups, now, asked, passed);
        EXIT WHEN cardinality(seqs) = 0;
        IF limited AND EXISTS (SELECT FROM holdfast.pending WHERE seq = ANY (seqs) AND concurrency > 0) THEN
            closer := seqs; -- whether each may run depends on those before it
        ELSE
            IF cardinality(seqs) = 1 THEN
                c := holdfast.claim_plainly(seqs[1], unused[1], p_ttl_ms, p_owner, p_processes, now);
                IF c.lock_id IS NOT NULL THEN
                    RETURN NEXT c;
                    RETURN;
                END IF;
            END IF;
            grants := holdfast.grant_free(seqs, unused, p_ttl_ms, p_owner, p_processes, now, p_here);
            RETURN QUERY
            WITH begun AS MATERIALIZED (
                UPDATE holdfast.execution AS x
                   SET state = 'RUNNING', attempt = x.attempt + 1, fence = g.fence, owner = p_owner, started_at = now, finished_at = NULL,
                       spawned = x.spawned AND x.to_verify, cancel_requested = false, exit_code = NULL, reason = NULL
                  FROM unnest(grants.fences, grants.ids, grants.tokens) AS g(fence, id, lock_id)
                 CROSS JOIN LATERAL (SELECT e.ctid AS at FROM holdfast.execution AS e WHERE e.id = g.id LIMIT 1) AS its
                 WHERE x.ctid = its.at
                RETURNING g.lock_id, x.seq, x.workflow, x.fence, x.lock, x.id, x.key, x
            ), gone AS (
                DELETE FROM holdfast.pending
                 WHERE ctid = ANY (ARRAY(SELECT p.at FROM begun AS b
                                          CROSS JOIN LATERAL (SELECT ctid AS at FROM holdfast.pending WHERE pending.seq = b.seq LIMIT 1) AS p))
            ), runs AS (
                INSERT INTO holdfast.running (seq, workflow) SELECT b.seq, b.workflow FROM begun AS b
            ), told AS (
                INSERT INTO holdfast.event (seq, at, fence, kind, name, owner, execution_id, reason, detail)
                SELECT b.fence, now, b.fence, 'acquired', b.lock, p_owner, NULL, '', '' FROM begun AS b
                UNION ALL
                SELECT nextval('holdfast.seq'), now, b.fence, 'started', b.lock, p_owner, b.id, '', coalesce('key ' || b.key, '')
                  FROM begun AS b
            )
            SELECT b.lock_id, holdfast.ms(now), '', '', b.x FROM begun AS b;
            GET DIAGNOSTICS got = ROW_COUNT;
            wanted := wanted - got;
            IF cardinality(grants.crowded) > 0 THEN
                PERFORM holdfast.park_due(a.name, now) FROM unnest(grants.crowded) AS a(name);
            END IF;
            EXIT WHEN wanted = 0;
            unused := ARRAY(SELECT a.id FROM unnest(unused) WITH ORDINALITY AS a(id, at)
                             WHERE (a.id = ANY (grants.tokens)) IS NOT TRUE ORDER BY a.at);
            closer := coalesce(grants.closer, '{}');
        END IF;
        FOREACH next IN ARRAY closer LOOP
            taken := holdfast.execution_at(next);
            CONTINUE WHEN holdfast.is_hopeless(taken);
            c := holdfast.claim_one(taken, unused[1], p_ttl_ms, p_owner, p_processes, p_verifies, p_here);
            wanted := wanted - ((c.execution).id IS NOT NULL)::integer;
            unused := array_remove(unused, c.lock_id);
            IF (c.execution).id IS NOT NULL OR c.ready <> '' THEN
                RETURN NEXT c;
            END IF;
            IF cardinality(closer) = cardinality(seqs) AND limited AND c.lock_id IS NULL AND (c.execution).id IS NOT NULL THEN
                RETURN; -- the caller must look at a process first, and what the next one may depends on that
            END IF;
        END LOOP;
        EXIT WHEN cardinality(seqs) < asked OR wanted = 0;
        -- Who could not be had for now is not looked at again.
        passed := passed || ARRAY(SELECT p.seq FROM holdfast.pending AS p WHERE p.seq = ANY (seqs) AND NOT p.parked);
    END LOOP;
END $$;
COMMENT ON FUNCTION holdfast.claim IS 'Claim at most so many of what due() would answer, as begin_execution with claim would; a token for each. Again: the answer to the same call was lost';

-- ---- while they run, and their end

-- First the locks, and then their executions, by a statement of its own: that sees what those did whom the first
-- one had to wait for. Within one statement a row that has changed since it began is not found where it lay.

-- All that is needed is that each lease is the asker's and not over, and its execution runs. An event that the
-- lease lives is due rarely enough to be left to extend().
CREATE FUNCTION holdfast.extend_one(p_name text, p_lock_id bytea, p_fence bigint, p_ttl_ms bigint, p_spawned boolean, p_now timestamptz)
RETURNS holdfast.answer LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    l holdfast.lock;
    x holdfast.execution;
BEGIN
    SELECT * INTO l FROM holdfast.lock WHERE name = p_name AND fence = p_fence FOR NO KEY UPDATE;
    IF (l.lock_id = p_lock_id AND l.locked_until > holdfast.clock() AND l.told_at > p_now - interval '5 minutes') IS NOT TRUE THEN
        RETURN NULL;
    END IF;
    IF p_spawned THEN
        UPDATE holdfast.execution SET spawned = true, to_verify = false, spent = spent + 1
         WHERE id = l.execution_id AND state = 'RUNNING' AND (NOT spawned OR to_verify) AND NOT cancel_requested
        RETURNING * INTO x;
    END IF;
    IF l.execution_id IS NOT NULL AND x.id IS NULL THEN
        x := holdfast.execution_of(l.execution_id);
        IF x.state IS DISTINCT FROM 'RUNNING' THEN
            RETURN NULL;
        END IF;
    END IF;
    UPDATE holdfast.lock
       SET ttl_ms = coalesce(nullif(p_ttl_ms, 0), ttl_ms), offered = false,
           locked_until = holdfast.renewed_until(locked_until, p_now, coalesce(nullif(p_ttl_ms, 0), ttl_ms))
     WHERE name = p_name AND fence = p_fence
    RETURNING * INTO l;
    RETURN holdfast.answer_with(holdfast.answer_of(l, p_now, 0, false), x);
END $$;
COMMENT ON FUNCTION holdfast.extend_one IS 'extend_many of one, without its output; NULL: nothing has been done';

CREATE FUNCTION holdfast.extend_many(p_names text[], p_lock_ids bytea[], p_fences bigint[], p_ttls_ms bigint[], p_spawned boolean[], p_has_output boolean[], p_heads bytea[], p_skipped bigint[], p_tails bytea[])
RETURNS TABLE (i bigint, lease holdfast.answer) LANGUAGE plpgsql VOLATILE
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off SET plan_cache_mode = force_generic_plan SET enable_memoize = off
AS $$
DECLARE
    now   timestamptz := holdfast.clock();
    which bigint[];
BEGIN
    PERFORM holdfast.commit_durably();
    IF cardinality(p_names) = 1 THEN
        lease := holdfast.extend_one(p_names[1], p_lock_ids[1], p_fences[1], p_ttls_ms[1], p_spawned[1], now);
        IF lease.code IS NOT NULL THEN
            IF p_has_output[1] AND lease.execution_id <> '' THEN
                PERFORM holdfast.keep_output(lease.execution_id::uuid, p_heads[1], p_skipped[1], p_tails[1]);
            END IF;
            i := 1;
            RETURN NEXT;
        END IF;
        RETURN;
    END IF;
    WITH renewed AS (
        UPDATE holdfast.lock AS l
           SET ttl_ms = coalesce(nullif(a.ttl_ms, 0), l.ttl_ms), offered = false,
               locked_until = holdfast.renewed_until(l.locked_until, now, coalesce(nullif(a.ttl_ms, 0), l.ttl_ms))
          FROM unnest(p_names, p_lock_ids, p_fences, p_ttls_ms) WITH ORDINALITY AS a(name, lock_id, fence, ttl_ms, i)
         CROSS JOIN LATERAL (SELECT m.ctid AS at FROM holdfast.lock AS m WHERE m.name = a.name AND m.fence = a.fence LIMIT 1) AS mine
         WHERE l.ctid = mine.at AND l.fence IS NOT DISTINCT FROM a.fence AND l.lock_id = a.lock_id AND l.locked_until > holdfast.clock()
           AND l.told_at > now - interval '5 minutes'
           AND (l.execution_id IS NULL OR (SELECT x.state FROM holdfast.execution AS x WHERE x.id = l.execution_id) = 'RUNNING')
        RETURNING a.i
    )
    SELECT array_agg(r.i) INTO which FROM renewed AS r;
    RETURN QUERY
    WITH mine AS MATERIALIZED (
        SELECT a.*, (its.l).execution_id, its.l
          FROM unnest(p_names, p_fences, p_spawned, p_has_output, p_heads, p_skipped, p_tails)
               WITH ORDINALITY AS a(name, fence, spawned, has_output, head, skipped, tail, i)
         CROSS JOIN LATERAL (SELECT m AS l FROM holdfast.lock AS m WHERE m.name = a.name AND m.fence = a.fence LIMIT 1) AS its
         WHERE a.i = ANY (which)
    ), spawns AS MATERIALIZED (
        UPDATE holdfast.execution AS x SET spawned = true, to_verify = false, spent = x.spent + 1
          FROM mine AS r CROSS JOIN LATERAL (SELECT e.ctid AS at FROM holdfast.execution AS e WHERE e.id = r.execution_id LIMIT 1) AS its
         WHERE r.spawned AND x.ctid = its.at AND x.state = 'RUNNING' AND (NOT x.spawned OR x.to_verify) AND NOT x.cancel_requested
        RETURNING r.i, r.l, x
    ), printed AS (
        INSERT INTO holdfast.execution_data (id, output_head, output_skipped, output_tail)
        SELECT r.execution_id, r.head, r.skipped, r.tail FROM mine AS r WHERE r.has_output AND r.execution_id IS NOT NULL
        ON CONFLICT (id) DO UPDATE
           SET output_head = excluded.output_head, output_skipped = excluded.output_skipped, output_tail = excluded.output_tail
    )
    SELECT s.i, holdfast.answer_with(holdfast.answer_of(s.l, now, 0, false), s.x) FROM spawns AS s
    UNION ALL
    SELECT r.i, holdfast.answer_with(holdfast.answer_of(r.l, now, 0, false),
                                     CASE WHEN r.execution_id IS NOT NULL THEN holdfast.execution_of(r.execution_id) END)
      FROM mine AS r WHERE (r.i IN (SELECT s.i FROM spawns AS s)) IS NOT TRUE;
END $$;
COMMENT ON FUNCTION holdfast.extend_many IS 'Renew those of many leases that are the asker''s, with news of their executions as in extend_execution: which (from 1), and its answer. Sort by name, each name once';

CREATE FUNCTION holdfast.answer_with(a holdfast.answer, x holdfast.execution) RETURNS holdfast.answer LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    a.execution := x;
    RETURN a;
END $$;
COMMENT ON FUNCTION holdfast.answer_with IS 'An answer with this execution in it';

CREATE FUNCTION holdfast.end_story(p_outcome integer, p_has_exit_code boolean, p_exit_code integer, p_reason text) RETURNS text LANGUAGE sql STABLE
AS $$
    SELECT CASE WHEN p_outcome = 1 THEN 'succeeded'
                WHEN p_outcome = 2 AND p_reason = '' AND p_has_exit_code THEN 'failed with exit code ' || p_exit_code
                WHEN p_outcome = 2 AND p_reason = '' THEN 'failed'
                ELSE p_reason
           END
$$;
COMMENT ON FUNCTION holdfast.end_story IS 'How an execution ended, as events say it';

-- Nobody waits for the lock, nothing is parked there, and it is not to be retried or given up.
CREATE FUNCTION holdfast.finish_one(p_name text, p_lock_id bytea, p_fence bigint, p_outcome integer, p_has_exit_code boolean, p_exit_code integer, p_reason text, p_now timestamptz)
RETURNS holdfast.execution LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    l holdfast.lock;
    x holdfast.execution;
BEGIN
    SELECT * INTO l FROM holdfast.lock WHERE name = p_name AND fence = p_fence FOR NO KEY UPDATE;
    IF (l.lock_id = p_lock_id AND l.waiters = 0 AND NOT l.parked AND p_outcome < 4 AND l.locked_until > holdfast.clock()) IS NOT TRUE THEN
        RETURN NULL;
    END IF;
    UPDATE holdfast.execution
       SET state = CASE p_outcome WHEN 1 THEN 'SUCCESS' WHEN 2 THEN 'FAILED' ELSE 'ABORTED' END, finished_at = p_now,
           exit_code = CASE WHEN p_has_exit_code THEN p_exit_code END, reason = p_reason,
           spent = spent + (p_outcome = 2 AND NOT spawned)::integer, frees_key = once AND p_outcome <> 1
     WHERE id = l.execution_id AND state = 'RUNNING' AND concurrency = 0 AND NOT (p_outcome = 2 AND retry_backoff_ms > 0)
    RETURNING * INTO x;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    UPDATE holdfast.lock
       SET lock_id = NULL, locked_until = NULL, offered = false, execution_id = NULL, released = released + 1,
           ended = substr(decode('01', 'hex') || p_lock_id || ended, 1, 136)
     WHERE name = p_name AND fence = p_fence;
    DELETE FROM holdfast.running WHERE workflow = x.workflow AND seq = x.seq;
    INSERT INTO holdfast.ended (finished_at, seq, once, workflow) VALUES (p_now, x.seq, x.once, x.workflow);
    INSERT INTO holdfast.event (seq, at, fence, kind, name, owner, execution_id, reason, detail)
    VALUES (nextval('holdfast.seq'), p_now, p_fence, 'finished', p_name, l.owner, x.id,
            holdfast.end_story(p_outcome, p_has_exit_code, p_exit_code, p_reason),
            'held for ' || holdfast.ms(p_now) - holdfast.ms(l.locked_at) || ' ms');
    RETURN x;
END $$;
COMMENT ON FUNCTION holdfast.finish_one IS 'finish_many of one, without its output: the execution; NULL: nothing has been done';

CREATE FUNCTION holdfast.finish_many(p_names text[], p_lock_ids bytea[], p_fences bigint[], p_outcomes integer[], p_has_exit_code boolean[], p_exit_codes integer[], p_reasons text[], p_has_output boolean[], p_heads bytea[], p_skipped bigint[], p_tails bytea[])
RETURNS TABLE (i bigint, ended holdfast.execution) LANGUAGE plpgsql VOLATILE
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off SET plan_cache_mode = force_generic_plan SET enable_memoize = off
AS $$
DECLARE
    now      timestamptz := holdfast.clock();
    which    bigint[]; -- were given back
    ids      uuid[];
    outcomes integer[];
    codes    integer[];
    reasons  text[];
BEGIN
    PERFORM holdfast.commit_durably();
    IF cardinality(p_names) = 1 THEN
        ended := holdfast.finish_one(p_names[1], p_lock_ids[1], p_fences[1], p_outcomes[1], p_has_exit_code[1], p_exit_codes[1], p_reasons[1], now);
        IF ended.id IS NOT NULL THEN
            IF p_has_output[1] THEN
                PERFORM holdfast.keep_output(ended.id, p_heads[1], p_skipped[1], p_tails[1]);
            END IF;
            i := 1;
            RETURN NEXT;
        END IF;
        RETURN;
    END IF;
    WITH given AS (
        UPDATE holdfast.lock AS l
           SET lock_id = NULL, locked_until = NULL, offered = false, execution_id = NULL, released = l.released + 1,
               ended = substr(decode('01', 'hex') || a.lock_id || l.ended, 1, 136)
          FROM unnest(p_names, p_lock_ids, p_fences, p_outcomes, p_has_exit_code, p_exit_codes, p_reasons)
               WITH ORDINALITY AS a(name, lock_id, fence, outcome, has_exit_code, exit_code, reason, i)
         CROSS JOIN LATERAL (SELECT m.ctid AS at, m.execution_id FROM holdfast.lock AS m
                              WHERE m.name = a.name AND m.fence = a.fence LIMIT 1) AS before
         WHERE l.ctid = before.at AND l.fence IS NOT DISTINCT FROM a.fence AND l.lock_id = a.lock_id AND l.waiters = 0 AND NOT l.parked
           AND a.outcome < 4
           AND l.locked_until > holdfast.clock() AND l.execution_id = before.execution_id
           AND (SELECT x.state = 'RUNNING' AND x.concurrency = 0 AND NOT (a.outcome = 2 AND x.retry_backoff_ms > 0)
                  FROM holdfast.execution AS x WHERE x.id = before.execution_id)
        RETURNING a.*, l.owner, l.locked_at, before.execution_id
    ), told AS (
        INSERT INTO holdfast.event (seq, at, fence, kind, name, owner, execution_id, reason, detail)
        SELECT nextval('holdfast.seq'), now, g.fence, 'finished', g.name, g.owner, g.execution_id,
               holdfast.end_story(g.outcome, g.has_exit_code, g.exit_code, g.reason),
               'held for ' || holdfast.ms(now) - holdfast.ms(g.locked_at) || ' ms'
          FROM given AS g
    )
    SELECT array_agg(g.i), array_agg(g.execution_id), array_agg(g.outcome), array_agg(CASE WHEN g.has_exit_code THEN g.exit_code END),
           array_agg(g.reason)
      INTO which, ids, outcomes, codes, reasons FROM given AS g;
    RETURN QUERY
    WITH over AS MATERIALIZED (
        UPDATE holdfast.execution AS x
           SET state = CASE g.outcome WHEN 1 THEN 'SUCCESS' WHEN 2 THEN 'FAILED' ELSE 'ABORTED' END, finished_at = now,
               exit_code = g.exit_code, reason = g.reason, spent = x.spent + (g.outcome = 2 AND NOT x.spawned)::integer,
               frees_key = x.once AND g.outcome <> 1
          FROM unnest(which, ids, outcomes, codes, reasons) AS g(i, id, outcome, exit_code, reason)
         CROSS JOIN LATERAL (SELECT e.ctid AS at FROM holdfast.execution AS e WHERE e.id = g.id LIMIT 1) AS its
         WHERE x.ctid = its.at
        RETURNING g.i, x.seq, x.workflow, x.once, x
    ), gone AS (
        DELETE FROM holdfast.running
         WHERE ctid = ANY (ARRAY(SELECT r.at FROM over AS o
                                  CROSS JOIN LATERAL (SELECT ctid AS at FROM holdfast.running
                                                       WHERE running.workflow = o.workflow AND running.seq = o.seq LIMIT 1) AS r))
    ), kept AS (
        INSERT INTO holdfast.ended (finished_at, seq, once, workflow) SELECT now, o.seq, o.once, o.workflow FROM over AS o
    )
    SELECT o.i, o.x FROM over AS o;
    IF true = ANY (p_has_output) THEN
        PERFORM holdfast.keep_output(ids[array_position(which, a.i)], a.head, a.skipped, a.tail)
           FROM unnest(p_has_output, p_heads, p_skipped, p_tails) WITH ORDINALITY AS a(has_output, head, skipped, tail, i)
          WHERE a.has_output AND a.i = ANY (which);
    END IF;
END $$;
COMMENT ON FUNCTION holdfast.finish_many IS 'Give back those of many leases that are the asker''s, with the end of their executions as in finish_execution: which (from 1), and the execution. Sort by name, each name once';
