
-- ---- many at once ---------------------------------------------------------------------------------

-- The fast paths of acquire and release over arrays, sorted by name. What is not that simple is not in the
-- answer, nothing has happened to it, and the caller asks for it alone. The plan must be one lookup per name, in
-- the order given: then two batches never lock crosswise. A plan that was made when the table was small is kept
-- while it grows, and one that reads all of it instead is ruinous then: so each row is looked up by a subquery
-- with a LIMIT, which no plan takes apart, and is changed by where it lies (ctid), for which there is no other way.
-- A row that has moved since is followed, and judged again.
CREATE FUNCTION holdfast.acquire_many(p_names text[], p_lock_ids bytea[], p_ttls_ms bigint[], p_owners text[], p_notes text[], p_processes text[])
RETURNS TABLE (i bigint, granted bigint, now_ms bigint) LANGUAGE plpgsql VOLATILE
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off SET plan_cache_mode = force_generic_plan SET enable_memoize = off
AS $$
DECLARE
    now timestamptz := holdfast.clock();
BEGIN
    PERFORM holdfast.commit_durably();
    RETURN QUERY
    WITH grants AS (
        UPDATE holdfast.lock AS l
           SET fence = nextval('holdfast.seq'), lock_id = a.lock_id, owner = a.owner, note = a.note, processes = a.processes,
               took = '', ttl_ms = a.ttl_ms, locked_at = now, told_at = now,
               locked_until = now + a.ttl_ms * interval '1 millisecond', granted = l.granted + 1,
               tidied = CASE l.granted % 32 WHEN 31 THEN l.fence ELSE l.tidied END
          FROM unnest(p_names, p_lock_ids, p_ttls_ms, p_owners, p_notes, p_processes)
               WITH ORDINALITY AS a(name, lock_id, ttl_ms, owner, note, processes, i)
         CROSS JOIN LATERAL (SELECT m.ctid, m.tidied FROM holdfast.lock AS m WHERE m.name = a.name ORDER BY m.fence DESC LIMIT 1) AS m
         WHERE l.ctid = m.ctid AND l.lock_id IS NULL AND l.waiters = 0 AND l.xmax = 0 AND position(a.lock_id IN l.ended) = 0
        RETURNING a.i, l.fence, l.name, l.owner, CASE l.granted % 32 WHEN 0 THEN m.tidied END AS since
    ), told AS (
        INSERT INTO holdfast.event (seq, at, fence, kind, name, owner, reason, detail)
        SELECT g.fence, now, g.fence, 'acquired', g.name, g.owner, '', '' FROM grants AS g
    )
    SELECT g.i, g.fence, holdfast.ms(now) FROM grants AS g WHERE g.since IS NULL OR holdfast.tidy(g.name, g.since, g.fence);
END $$;
COMMENT ON FUNCTION holdfast.acquire_many IS 'Take those of many locks that are free and that nobody waits for: which (from 1), its fence, when. Sort by name, each name once';

CREATE FUNCTION holdfast.release_many(p_names text[], p_lock_ids bytea[], p_fences bigint[], p_reasons text[])
RETURNS TABLE (i bigint, released bigint, now_ms bigint) LANGUAGE plpgsql VOLATILE
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off SET plan_cache_mode = force_generic_plan SET enable_memoize = off
AS $$
DECLARE
    now timestamptz := holdfast.clock();
BEGIN
    PERFORM holdfast.commit_durably();
    RETURN QUERY
    WITH given AS (
        UPDATE holdfast.lock AS l
           SET lock_id = NULL, locked_until = NULL, offered = false, released = l.released + 1,
               ended = substr(decode('01', 'hex') || a.lock_id || l.ended, 1, 136)
          FROM unnest(p_names, p_lock_ids, p_fences, p_reasons) WITH ORDINALITY AS a(name, lock_id, fence, reason, i)
         CROSS JOIN LATERAL (SELECT m.ctid AS at FROM holdfast.lock AS m WHERE m.name = a.name AND m.fence = a.fence LIMIT 1) AS mine
         WHERE l.ctid = mine.at AND l.fence IS NOT DISTINCT FROM a.fence AND l.lock_id = a.lock_id AND l.waiters = 0 AND NOT l.parked
           AND l.locked_until > holdfast.clock() AND l.execution_id IS NULL
        RETURNING a.i, l.fence, l.name, l.owner, l.locked_at, a.reason
    ), told AS (
        INSERT INTO holdfast.event (seq, at, fence, kind, name, owner, reason, detail)
        SELECT nextval('holdfast.seq'), now, g.fence, 'released', g.name, g.owner, g.reason,
               'held for ' || holdfast.ms(now) - holdfast.ms(g.locked_at) || ' ms' FROM given AS g
    )
    SELECT g.i, g.fence, holdfast.ms(now) FROM given AS g;
END $$;
COMMENT ON FUNCTION holdfast.release_many IS 'Give back those of many locks that are the asker''s and that nobody waits for: which (from 1), its fence, when. Sort by name, each name once';

-- Those who come or ask again behind a queue that is longer than anybody looks at: the holder is live, so
-- are the first 8, and nobody of these is among them. So the whole of what they ask is a place in the line.
CREATE FUNCTION holdfast.wait_many(p_name text, p_lock_ids bytea[], p_ttls_ms bigint[], p_waits_ms bigint[], p_owners text[], p_notes text[], p_priorities integer[], p_processes text[], p_channels text[], p_here text, p_alive bytea[], p_dead bytea[])
RETURNS SETOF holdfast.answer LANGUAGE plpgsql VOLATILE
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    l       holdfast.lock;
    t       holdfast.turn;
    w       holdfast.waiter;
    ahead   integer := 0;
    is_new  boolean[];
    joining integer;
    ret     holdfast.answer;
BEGIN
    SELECT * INTO l FROM holdfast.lock WHERE name = p_name ORDER BY fence DESC LIMIT 1;
    IF l.lock_id IS NULL OR l.waiters < 8 THEN
        RETURN;
    END IF;
    PERFORM holdfast.commit_lazily();
    l := holdfast.take(p_name, 'change');
    t := holdfast.start_turn(l, NULL, p_here, p_alive, p_dead, false);
    IF l.lock_id IS NULL OR l.lock_id = ANY (p_lock_ids) OR holdfast.is_stale(t) IS DISTINCT FROM 0
       OR EXISTS (SELECT FROM unnest(p_lock_ids) AS a(id) WHERE holdfast.how_ended(l.ended, a.id) <> 0)
       OR (SELECT count(DISTINCT a.id) FROM unnest(p_lock_ids) AS a(id)) < cardinality(p_lock_ids) THEN
        RETURN;
    END IF;
    FOR w IN SELECT * FROM holdfast.waiter WHERE name = p_name ORDER BY rank, ticket LIMIT 8 LOOP
        EXIT WHEN w.lock_id = ANY (p_lock_ids) OR holdfast.is_gone(w, t) IS DISTINCT FROM false;
        ahead := ahead + 1;
    END LOOP;
    IF ahead < 8 THEN
        RETURN;
    END IF;
    is_new := ARRAY(SELECT NOT EXISTS (SELECT FROM holdfast.waiter AS q WHERE q.name = p_name AND q.lock_id = a.id)
                      FROM unnest(p_lock_ids) WITH ORDINALITY AS a(id, i) ORDER BY a.i);
    IF EXISTS (SELECT FROM unnest(is_new, p_priorities) AS a(is_new, priority) WHERE a.is_new AND -a.priority::bigint < w.rank) THEN
        RETURN;
    END IF;
    UPDATE holdfast.waiter AS q
       SET seen_at = t.now, until = holdfast.gives_up(t.now, a.wait_ms), channel = coalesce(nullif(a.channel, ''), q.channel)
      FROM unnest(p_lock_ids, p_waits_ms, p_channels) AS a(lock_id, wait_ms, channel)
     WHERE q.name = p_name AND q.lock_id = a.lock_id;
    INSERT INTO holdfast.waiter (name, rank, ticket, ttl_ms, until, seen_at, queued_at, lock_id, owner, note, processes, channel)
    SELECT p_name, -a.priority::bigint, l.tickets + row_number() OVER (ORDER BY a.i), a.ttl_ms, holdfast.gives_up(t.now, a.wait_ms),
           t.now, t.now, a.lock_id, a.owner, a.note, a.processes, a.channel
      FROM unnest(p_lock_ids, p_ttls_ms, p_waits_ms, p_owners, p_notes, p_priorities, p_processes, p_channels, is_new)
           WITH ORDINALITY AS a(lock_id, ttl_ms, wait_ms, owner, note, priority, processes, channel, is_new, i)
     WHERE a.is_new;
    GET DIAGNOSTICS joining = ROW_COUNT;
    IF joining > 0 THEN
        UPDATE holdfast.lock SET tickets = tickets + joining, waiters = waiters + joining WHERE name = p_name AND fence = l.fence;
    END IF;
    ret := holdfast.answer_of(l, t.now, -1, true);
    ret.queued := true;
    ret.ahead := 8;
    FOR i IN 1..cardinality(p_lock_ids) LOOP
        ret.waiters := ret.waiters + is_new[i]::integer;
        RETURN NEXT ret;
    END LOOP;
END $$;
COMMENT ON FUNCTION holdfast.wait_many IS 'acquire with a wait, many at once for one name, where a long queue is before them: an answer for each; none: it is not so, and nothing has been done';
