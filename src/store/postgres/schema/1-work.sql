
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
                WHEN processes::bytea = ANY (dead) OR lock_id = ANY (dead) THEN true
                WHEN processes::bytea = ANY (alive) OR lock_id = ANY (alive) THEN false
           END
$$;
COMMENT ON FUNCTION holdfast.died IS 'Are these processes certainly dead? NULL: the caller can tell, and must look first';

-- Newest first; a match off the boundary of an entry would be a collision of random bytes.
CREATE FUNCTION holdfast.how_ended(ended bytea, lock_id bytea) RETURNS integer LANGUAGE sql IMMUTABLE
AS $$ SELECT CASE WHEN position(lock_id IN ended) > 1 THEN get_byte(ended, position(lock_id IN ended) - 2) ELSE 0 END $$;
COMMENT ON FUNCTION holdfast.how_ended IS 'How this token''s lease ended earlier: 1 given back, 2 lost, 0 not known';

CREATE FUNCTION holdfast.was_released(l holdfast.lock, p_lock_id bytea, p_fence bigint) RETURNS boolean LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE holdfast.how_ended(l.ended, p_lock_id)
                WHEN 1 THEN true
                WHEN 2 THEN false
                ELSE coalesce((p_fence < l.fence OR p_fence = l.fence AND l.lock_id IS NULL)
                              AND p_fence > l.lost_fences[cardinality(l.lost_fences)] AND p_fence <> ALL (l.lost_fences), false)
           END
$$;
COMMENT ON FUNCTION holdfast.was_released IS 'Was this lease given back by its holder? Its token is remembered for a while; by its fence (0: not named) that is known for as long as few leases of the name are lost';

CREATE FUNCTION holdfast.fences_before() RETURNS bigint[] LANGUAGE sql VOLATILE
AS $$ SELECT ARRAY[coalesce(pg_sequence_last_value('holdfast.seq'), 0)] $$;
COMMENT ON FUNCTION holdfast.fences_before IS 'lost_fences of a new name, before it is granted: every fence that may have been given';

CREATE FUNCTION holdfast.stale_name(reason integer) RETURNS text LANGUAGE sql IMMUTABLE
AS $$ SELECT (ARRAY['expired', 'holder-died', 'rebooted', 'execution-ended'])[reason] $$;
COMMENT ON FUNCTION holdfast.stale_name IS 'Why a lease was over, as events say it';

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
    SELECT CASE WHEN l.lock_id IS NULL
                THEN ROW(p_code, false, 0, 0, holdfast.ms(p_now), false, NULL, coalesce(l.fence, 0), '', '', '', 0, 0, 0,
                         coalesce(l.waiters, 0), '', '', p_has_holder, '', false, '', NULL)::holdfast.answer
                ELSE ROW(p_code, false, 0, 0, holdfast.ms(p_now), true, l.lock_id, l.fence, l.owner, l.note,
                         coalesce(l.execution_id::text, ''), holdfast.ms(l.locked_at), holdfast.ms(l.locked_until),
                         l.ttl_ms, l.waiters, l.processes, l.took, p_has_holder, '', false, '',
                         NULL)::holdfast.answer
           END
$$;
COMMENT ON FUNCTION holdfast.answer_of IS 'An answer with the lock as it is';

CREATE FUNCTION holdfast.to_look_at(lines text) RETURNS holdfast.answer LANGUAGE sql STABLE
AS $$
    SELECT ROW(100, false, 0, 0, holdfast.ms(holdfast.clock()), false, NULL, 0, '', '', '', 0, 0, 0, 0, '', '', false,
               lines, false, '', NULL)::holdfast.answer
$$;
COMMENT ON FUNCTION holdfast.to_look_at IS 'The answer that asks the caller to look at processes first';

-- ---- durability -----------------------------------------------------------------------------------

-- A refusal need not survive a crash. But where it shares a transaction with something that must,
-- whichever comes first, the whole transaction is synchronous.
CREATE FUNCTION holdfast.commit_lazily() RETURNS void LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    IF pg_current_xact_id_if_assigned() IS NULL AND coalesce(current_setting('holdfast.commit_before', true), '') = '' THEN
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

-- A transaction that has written something waits for the disk, and so for all that was written before.
CREATE FUNCTION holdfast.flush(p_name text, p_lock_id bytea) RETURNS boolean LANGUAGE sql VOLATILE
AS $$
    SELECT pg_logical_emit_message(true, 'holdfast', '') IS NOT NULL
       AND (SELECT l.lock_id IS DISTINCT FROM p_lock_id FROM holdfast.lock AS l WHERE l.name = p_name ORDER BY l.fence DESC LIMIT 1)
$$;
COMMENT ON FUNCTION holdfast.flush IS 'In a transaction of its own: that this one gave the lock back will not be lost; false: it has been, with the server';

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
        INSERT INTO holdfast.lock (name, lost_fences)
            SELECT p_name, holdfast.fences_before() WHERE NOT EXISTS (SELECT FROM holdfast.lock WHERE name = p_name);
    END LOOP;
END $$;
COMMENT ON FUNCTION holdfast.take IS 'Lock the row of a name, which is made where there is none. Strength grant: for a grant, waiting for guards up to 2 seconds; change: for a change beside guards; try: for a grant, or NULL where anybody is in the way';

CREATE FUNCTION holdfast.start_turn(l holdfast.lock, p_asker bytea, p_here text, p_alive bytea[], p_dead bytea[], p_may_grant boolean)
RETURNS holdfast.turn LANGUAGE sql VOLATILE
AS $$
    SELECT ROW(l, holdfast.clock(), p_asker, p_here, p_alive, p_dead, p_may_grant, '', false, least(l.waiters, 8), 0,
               CASE WHEN l.execution_id IS NOT NULL THEN holdfast.execution_of(l.execution_id) END, NULL, false, '')::holdfast.turn
$$;
COMMENT ON FUNCTION holdfast.start_turn IS 'The request is at work from here on: this is when the time is read';

CREATE FUNCTION holdfast.is_over(t holdfast.turn) RETURNS integer LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE WHEN t.now >= (t.row).locked_until THEN 1
                WHEN (t.row).execution_id IS NOT NULL AND (t.x).state IS DISTINCT FROM 'RUNNING' THEN 4
                ELSE 0
           END
$$;
COMMENT ON FUNCTION holdfast.is_over IS 'Is the lease of a lock that is held over, whoever lives? 0: no; 1: its time is up; 4: its execution is over';

CREATE FUNCTION holdfast.is_stale(t holdfast.turn) RETURNS integer LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE WHEN (t.row).lock_id IS NULL THEN 0
                WHEN (t.row).lock_id = t.asker THEN holdfast.is_over(t)
                ELSE CASE holdfast.died((t.row).processes, (t.row).lock_id, t.here, t.alive, t.dead)
                         WHEN true THEN 2
                         WHEN false THEN holdfast.is_over(t)
                     END
           END
$$;
COMMENT ON FUNCTION holdfast.is_stale IS 'Is the lease over? 0: no, or it is free; 1: its time is up; 2: its processes died; 4: its execution is over; NULL: the caller must look first. Who asks with the holder''s own token is alive';

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

CREATE FUNCTION holdfast.unpark(t holdfast.turn) RETURNS holdfast.turn LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    l    holdfast.lock := t.row;
    g    record;
    next bigint;
BEGIN
    SELECT '' COLLATE "C" AS workflow, -1 AS concurrency, false AS to_verify INTO g;
    l.parked := false;
    LOOP
        SELECT workflow, concurrency, to_verify INTO g FROM holdfast.pending
         WHERE lock = l.name AND parked AND (workflow, concurrency, to_verify) > (g.workflow, g.concurrency, g.to_verify)
         ORDER BY workflow, concurrency, to_verify LIMIT 1;
        EXIT WHEN NOT FOUND;
        UPDATE holdfast.pending SET parked = false
         WHERE seq = (SELECT seq FROM holdfast.pending
                       WHERE lock = l.name AND parked AND workflow = g.workflow AND concurrency = g.concurrency AND to_verify = g.to_verify
                       ORDER BY priority DESC, run_at, seq LIMIT 1)
        RETURNING seq INTO next;
        UPDATE holdfast.execution SET parked = false WHERE seq = next;
        t.ready := t.ready || g.workflow || E'\n';
        l.parked := true;
    END LOOP;
    t.row := l;
    RETURN t;
END $$;
COMMENT ON FUNCTION holdfast.unpark IS 'Of the executions that are parked at this lock, make the first of each workgroup ready; where there is none, the lock says so';

CREATE FUNCTION holdfast.save(t holdfast.turn, p_before holdfast.lock, p_lazily boolean DEFAULT false) RETURNS holdfast.turn LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    l holdfast.lock := t.row;
BEGIN
    IF NOT p_lazily THEN
        PERFORM holdfast.commit_durably();
    END IF;
    IF t.vacated AND l.parked AND l.lock_id IS NULL AND l.waiters = 0 THEN
        t := holdfast.unpark(t);
        l := t.row;
    END IF;
    IF l IS NOT DISTINCT FROM p_before THEN
        RETURN t;
    END IF;
    UPDATE holdfast.lock
       SET fence = l.fence, locked_at = l.locked_at, locked_until = l.locked_until, told_at = l.told_at,
           ttl_ms = l.ttl_ms, granted = l.granted, released = l.released, release_lost = l.release_lost,
           taken_expired = l.taken_expired, taken_died = l.taken_died, forced = l.forced, lost = l.lost,
           tickets = l.tickets, waiters = l.waiters, offered = l.offered, parked = l.parked, lock_id = l.lock_id, owner = l.owner,
           note = l.note, processes = l.processes, took = l.took, execution_id = l.execution_id, ended = l.ended,
           lost_fences = l.lost_fences
     WHERE name = p_before.name AND fence = p_before.fence;
    RETURN t;
END $$;
COMMENT ON FUNCTION holdfast.save IS 'Write the row back, if it differs from what was read. Where the lock has become free, the next one that is parked is made ready';

-- Each grant leaves an entry in the index behind, and who looks for the newest reads the others of its page too.
-- Who follows such an entry to a row that nobody can see any more marks it, and marked ones are skipped, and
-- removed where the page would be full. Only those since the last time: beside an idle transaction none can be
-- marked.
CREATE FUNCTION holdfast.tidy(p_name text, p_since bigint, p_fence bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
BEGIN
    PERFORM count(*) FROM holdfast.lock WHERE name = p_name AND fence >= p_since AND fence < p_fence;
    RETURN true;
END $$;
COMMENT ON FUNCTION holdfast.tidy IS 'Let the index of lock forget the grants of a name between two fences. Called after every 32nd of them, by who was granted it';

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
        l.taken_died := l.taken_died + (reason IN (2, 4))::integer;
        INSERT INTO holdfast.event (seq, at, fence, kind, name, owner, reason, detail)
        VALUES (told, t.now, l.fence, 'taken-over', l.name, p_owner, holdfast.stale_name(reason),
                format('from %s, fence %s', substr(t.took, length(substring(t.took FROM '^(?:[^ ]* ){6}')) + 1),
                       split_part(t.took, ' ', 3)));
    END IF;
    INSERT INTO holdfast.event (seq, at, fence, kind, name, owner, reason, detail)
    VALUES (l.fence, t.now, l.fence, 'acquired', l.name, p_owner, '', p_detail);
    t.row := l;
    RETURN t;
END $$;
COMMENT ON FUNCTION holdfast.grant_to IS 'Grant the lock with the next fence, and with what was taken over. An offer lasts 5 seconds at most';

CREATE FUNCTION holdfast.end_grant(t holdfast.turn, p_how integer) RETURNS holdfast.turn LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    l holdfast.lock := t.row;
BEGIN
    l.ended := substr(set_byte(decode('00', 'hex'), 0, p_how) || l.lock_id || l.ended, 1, 8 * 17);
    IF p_how = 2 THEN
        l.lost_fences := (l.fence || l.lost_fences)[1:8];
    END IF;
    IF l.offered THEN
        -- Nobody has announced the takeover that it came from: the next one does.
        t.took := l.took;
        t.inherited := true;
    END IF;
    l.lock_id := NULL;
    l.execution_id := NULL;
    l.offered := false;
    l.locked_until := NULL;
    t.row := l;
    t.vacated := true;
    RETURN t;
END $$;
COMMENT ON FUNCTION holdfast.end_grant IS 'End the lease: its token is spent (how: 1 given back, 2 lost). What becomes of its execution, the caller decides before';

CREATE FUNCTION holdfast.renewed_until(p_until timestamptz, p_now timestamptz, p_ttl_ms bigint)
RETURNS timestamptz LANGUAGE sql STABLE
AS $$ SELECT greatest(p_until, p_now + p_ttl_ms * interval '1 millisecond') $$;
COMMENT ON FUNCTION holdfast.renewed_until IS 'When a lease ends that is renewed: never earlier than before, for this may be a late copy of a request';

CREATE FUNCTION holdfast.renew(t holdfast.turn, p_ttl_ms bigint) RETURNS holdfast.turn LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    l holdfast.lock := t.row;
BEGIN
    IF p_ttl_ms <> 0 THEN
        l.ttl_ms := p_ttl_ms;
    END IF;
    l.locked_until := holdfast.renewed_until(l.locked_until, t.now, l.ttl_ms);
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
    LOOP
        SELECT * INTO w FROM holdfast.waiter WHERE name = (t.row).name ORDER BY rank, ticket LIMIT 1;
        EXIT WHEN NOT FOUND OR w.lock_id = t.asker OR holdfast.is_gone(w, t) IS NOT TRUE;
        t := holdfast.drop_waiter(t, w.lock_id);
        t.in_window := t.in_window - 1;
        IF t.in_window = 0 THEN
            t.in_window := least((t.row).waiters, 8);
        END IF;
    END LOOP;
    IF w.name IS NOT NULL AND t.may_grant THEN
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
END $$;
COMMENT ON FUNCTION holdfast.offer IS 'Offer a free lock to the first waiter that is still there, and tell it; those that are gone leave the queue';

-- The order is that of offer(). p_live: how many that are there concern the request. p_frees: if the
-- asker waits itself, it will hand on what it gets.
CREATE FUNCTION holdfast.waiters_to_look_at(t holdfast.turn, p_live integer, p_frees boolean) RETURNS text LANGUAGE plpgsql STABLE
AS $$
DECLARE
    w         holdfast.waiter;
    gone      boolean;
    lines     text := '';
    n         integer := 0;
    live      integer := 0;
    passed    integer;
    at_rank   bigint := -9223372036854775808;
    at_ticket bigint := 0;
BEGIN
    IF (t.row).waiters = 0 THEN
        RETURN '';
    END IF;
    -- Few at a time: a long queue is not sorted for its head.
    LOOP
        passed := 0;
        FOR w IN SELECT * FROM holdfast.waiter WHERE name = (t.row).name AND (rank, ticket) > (at_rank, at_ticket)
                  ORDER BY rank, ticket LIMIT 16 LOOP
            passed := passed + 1;
            at_rank := w.rank;
            at_ticket := w.ticket;
            IF w.lock_id = t.asker THEN
                IF NOT p_frees THEN
                    RETURN lines;
                END IF;
                CONTINUE;
            END IF;
            gone := holdfast.is_gone(w, t);
            IF gone IS NULL THEN
                lines := lines || format(E'%s %s\n', encode(w.lock_id, 'hex'), w.processes);
                n := n + 1;
            ELSIF NOT gone THEN
                live := live + 1;
            END IF;
            IF n = 8 OR live = p_live THEN
                RETURN lines;
            END IF;
        END LOOP;
        EXIT WHEN passed < 16;
    END LOOP;
    RETURN lines;
END $$;
COMMENT ON FUNCTION holdfast.waiters_to_look_at IS 'Waiters whom the caller must look at, a line for each and at most 8; empty: none';

-- A refusal waits for no other refusal and fails for none: each locks what nobody else is writing, and
-- counts in a row of its own where there is nothing. In an older snapshot, a row that has changed since
-- can't be locked (40001).
CREATE FUNCTION holdfast.lock_denial(p_name text) RETURNS holdfast.denial LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    d holdfast.denial;
BEGIN
    IF current_setting('transaction_isolation') = 'read committed' THEN
        SELECT * INTO d FROM holdfast.denial WHERE name = p_name ORDER BY since DESC, seq DESC LIMIT 1 FOR UPDATE SKIP LOCKED;
        RETURN d;
    END IF;
    BEGIN
        SELECT * INTO d FROM holdfast.denial WHERE name = p_name ORDER BY since DESC, seq DESC LIMIT 1 FOR UPDATE SKIP LOCKED;
    EXCEPTION WHEN serialization_failure THEN
        d := NULL;
    END;
    RETURN d;
END $$;
COMMENT ON FUNCTION holdfast.lock_denial IS 'The newest row of a name that nobody else is writing, locked; NULL: there is none';

CREATE FUNCTION holdfast.merge_denials(p_into holdfast.denial, p_now timestamptz) RETURNS bigint LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    merged bigint := 0;
BEGIN
    WITH old AS (
        SELECT since, seq FROM holdfast.denial
         WHERE name = p_into.name AND seq <> p_into.seq AND (since > p_now OR since <= p_now - interval '1 s')
         LIMIT 1000 FOR UPDATE SKIP LOCKED
    ), gone AS (
        DELETE FROM holdfast.denial AS d USING old
         WHERE d.name = p_into.name AND d.since = old.since AND d.seq = old.seq
        RETURNING d.total
    )
    SELECT coalesce(sum(total), 0) INTO merged FROM gone;
    RETURN merged;
EXCEPTION WHEN serialization_failure THEN
    RETURN 0;
END $$;
COMMENT ON FUNCTION holdfast.merge_denials IS 'Remove the name''s other rows whose window is over and that nobody else is writing: the sum of their totals';

CREATE FUNCTION holdfast.may_tell(p_name text, p_now timestamptz, p_counted integer) RETURNS boolean LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    d      holdfast.denial := holdfast.lock_denial(p_name);
    merged bigint;
    others bigint;
BEGIN
    IF d.name IS NULL THEN
        INSERT INTO holdfast.denial (name, since, n, total) VALUES (p_name, p_now, 1, p_counted) RETURNING * INTO d;
    ELSIF p_now >= d.since AND p_now < d.since + interval '1 s' THEN
        UPDATE holdfast.denial SET n = n + 1, total = total + p_counted
         WHERE name = d.name AND since = d.since AND seq = d.seq
        RETURNING * INTO d;
    ELSE
        merged := holdfast.merge_denials(d, p_now);
        UPDATE holdfast.denial SET since = p_now, n = 1, total = total + p_counted + merged
         WHERE name = d.name AND since = d.since AND seq = d.seq
        RETURNING * INTO d;
    END IF;
    IF d.n > 16 THEN
        RETURN false;
    END IF;
    SELECT coalesce(sum(n), 0) INTO others FROM holdfast.denial
     WHERE name = d.name AND since <= p_now AND since > p_now - interval '1 s' AND seq <> d.seq;
    RETURN others + d.n <= 16;
END $$;
COMMENT ON FUNCTION holdfast.may_tell IS 'Note a refusal (counted: 1, or 0 where the lock was not what refused it); false: there were too many of late for another event';

CREATE FUNCTION holdfast.deny(l holdfast.lock, p_now timestamptz, p_owner text, p_reason text) RETURNS void LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    IF holdfast.may_tell(l.name, p_now, 1) THEN
        PERFORM holdfast.tell(l, p_now, 'denied', p_owner, p_reason,
                              CASE WHEN l.lock_id IS NULL THEN '' ELSE format('held by %s, fence %s', coalesce(l.owner, ''), l.fence) END);
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
    why   text := holdfast.stale_name(stale);
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
        t := holdfast.lose_grant(t, why);
    END IF;
    RETURN holdfast.offer(t);
END $$;
COMMENT ON FUNCTION holdfast.end_stale IS 'End a lease that is over and offer the lock to the first who waits. Whoever had to be looked at has been';

CREATE FUNCTION holdfast.is_holder(t holdfast.turn, p_fence bigint) RETURNS boolean LANGUAGE sql IMMUTABLE
AS $$
    SELECT coalesce((t.row).lock_id = t.asker AND t.now < (t.row).locked_until AND p_fence IN (0, (t.row).fence), false)
$$;
COMMENT ON FUNCTION holdfast.is_holder IS 'Is the lease the asker''s, not over, and of this fence (0: of any)?';
