
-- ---- acquire --------------------------------------------------------------------------------------

CREATE FUNCTION holdfast.gives_up(p_now timestamptz, p_wait_ms bigint) RETURNS timestamptz LANGUAGE sql STABLE
AS $$
    SELECT CASE WHEN p_wait_ms BETWEEN 0 AND 10000000000000 THEN p_now + p_wait_ms * interval '1 millisecond' ELSE 'infinity' END
$$;
COMMENT ON FUNCTION holdfast.gives_up IS 'When one who begins to wait now gives up; negative: never';

CREATE FUNCTION holdfast.enqueue(t holdfast.turn, p_ttl_ms bigint, p_wait_ms bigint, p_owner text, p_note text, p_priority integer, p_processes text, p_channel text)
RETURNS holdfast.turn LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    l        holdfast.lock := t.row;
    self     holdfast.waiter;
    w        holdfast.waiter;
    ahead    holdfast.waiter[] := '{}';
    gives_up timestamptz := holdfast.gives_up(t.now, p_wait_ms);
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

CREATE FUNCTION holdfast.acquire_locked(t holdfast.turn, p_ttl_ms bigint, p_wait_ms bigint, p_owner text, p_note text, p_priority integer, p_processes text, p_channel text)
RETURNS holdfast.answer LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    before    holdfast.lock := t.row;
    ret       holdfast.answer;
    lines     text;
    mine      boolean;
    queued    boolean := false; -- that is all that has changed
BEGIN
    lines := holdfast.look(t, false, p_wait_ms <> 0 AND before.lock_id IS DISTINCT FROM t.asker);
    IF lines <> '' THEN
        RETURN holdfast.to_look_at(lines);
    END IF;
    t := holdfast.end_stale(t);
    mine := holdfast.is_holder(t, 0);
    IF NOT mine AND holdfast.how_ended((t.row).ended, t.asker) <> 0 THEN
        ret := holdfast.answer_of(t.row, t.now, -3, true);
    ELSIF mine OR (t.row).lock_id IS NULL AND (holdfast.strengthen(t)).may_grant THEN
        IF mine THEN
            t := holdfast.renew(t, p_ttl_ms);
        ELSE
            t := holdfast.grant_to(t, t.asker, p_owner, p_note, p_ttl_ms, p_processes, false, '');
        END IF;
        ret := holdfast.answer_of(t.row, t.now, 0, false);
        ret.execution := t.x;
    ELSIF p_wait_ms <> 0 THEN
        t := holdfast.enqueue(t, p_ttl_ms, p_wait_ms, p_owner, p_note, p_priority, p_processes, p_channel);
        ret := holdfast.answer_of(t.row, t.now, -1, true);
        ret.queued := true;
        ret.ahead := t.ahead;
        ret.look := holdfast.ahead(before.name, t.asker);
        queued := (t.row).fence = before.fence AND (t.row).lock_id IS NOT DISTINCT FROM before.lock_id;
    ELSE
        PERFORM FROM holdfast.waiter WHERE name = before.name AND lock_id = t.asker;
        PERFORM holdfast.deny(t.row, t.now, p_owner, CASE WHEN FOUND THEN 'gave up waiting' ELSE 'held' END);
        t := holdfast.drop_waiter(t, t.asker);
        ret := holdfast.answer_of(t.row, t.now, -1, true);
    END IF;
    t := holdfast.save(t, before, queued);
    ret.ready := t.ready;
    RETURN ret;
END $$;
COMMENT ON FUNCTION holdfast.acquire_locked IS 'acquire, once the row is locked';

CREATE FUNCTION holdfast.acquire_otherwise(p_name text, p_lock_id bytea, p_ttl_ms bigint, p_wait_ms bigint, p_owner text, p_note text, p_priority integer, p_processes text, p_channel text, p_here text, p_alive bytea[], p_dead bytea[])
RETURNS holdfast.answer LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    l     holdfast.lock;
    t     holdfast.turn;
    stale integer;
    lines text;
    free  boolean := false;
BEGIN
    SELECT * INTO l FROM holdfast.lock WHERE name = p_name ORDER BY fence DESC LIMIT 1;
    t := holdfast.start_turn(l, p_lock_id, p_here, p_alive, p_dead, false);
    stale := holdfast.is_stale(t);
    IF stale IS NULL THEN
        RETURN holdfast.to_look_at(holdfast.look(t, false, p_wait_ms <> 0));
    END IF;
    IF stale = 0 AND l.lock_id <> p_lock_id AND p_wait_ms = 0
       AND holdfast.how_ended(l.ended, p_lock_id) = 0
       AND (l.waiters = 0 OR NOT EXISTS (SELECT FROM holdfast.waiter WHERE name = p_name AND lock_id = p_lock_id)) THEN
        -- Another holds it: refused without a lock, and without waiting for the disk.
        PERFORM holdfast.commit_lazily();
        PERFORM holdfast.deny(l, t.now, p_owner, 'held');
        RETURN holdfast.answer_of(l, t.now, -1, true);
    END IF;
    IF stale = 0 AND l.lock_id <> p_lock_id AND p_wait_ms <> 0 THEN
        lines := holdfast.look(t, false, true); -- before anybody has to wait for us
        IF lines <> '' THEN
            RETURN holdfast.to_look_at(lines);
        END IF;
    END IF;
    IF stale > 0 OR l.lock_id IS NULL THEN
        BEGIN
            l := holdfast.take(p_name, 'grant');
            free := true;
        EXCEPTION WHEN lock_not_available THEN
            l := holdfast.take(p_name, 'change'); -- a guard is in the way: refused, or queued
        END;
    ELSE
        PERFORM holdfast.commit_lazily(); -- a place in the queue need not survive a crash: the waiter asks again
        l := holdfast.take(p_name, 'change');
    END IF;
    RETURN holdfast.acquire_locked(holdfast.start_turn(l, p_lock_id, p_here, p_alive, p_dead, free), p_ttl_ms, p_wait_ms,
                                   p_owner, p_note, p_priority, p_processes, p_channel);
END $$;
COMMENT ON FUNCTION holdfast.acquire_otherwise IS 'acquire, where the lock is not simply free';

-- What an acquire does that has to wait, in few statements: another holds it and lives, and so do the first
-- who wait. NULL: it is not that simple, and nothing has been done.
CREATE FUNCTION holdfast.join_queue(p_name text, p_lock_id bytea, p_ttl_ms bigint, p_wait_ms bigint, p_owner text, p_note text, p_priority integer, p_processes text, p_channel text, p_here text, p_alive bytea[], p_dead bytea[])
RETURNS holdfast.answer LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    l      holdfast.lock;
    now    timestamptz;
    mine   bigint := -p_priority::bigint;
    before integer := 0;
    live   boolean := true;
    behind text;
    ret    holdfast.answer;
BEGIN
    -- Whom the caller must look at is asked before the row is locked: who holds it wants it too.
    PERFORM FROM (SELECT * FROM holdfast.waiter WHERE name = p_name ORDER BY rank, ticket LIMIT 9) AS first
      WHERE holdfast.died(processes, lock_id, p_here, p_alive, p_dead) IS NULL;
    IF FOUND THEN
        RETURN NULL;
    END IF;
    PERFORM holdfast.commit_lazily(); -- a place in the queue need not survive a crash: the waiter asks again
    SELECT * INTO l FROM holdfast.lock
     WHERE name = p_name AND fence = (SELECT fence FROM holdfast.lock WHERE name = p_name ORDER BY fence DESC LIMIT 1)
       AND lock_id <> p_lock_id AND locked_until > holdfast.clock() AND execution_id IS NULL AND position(p_lock_id IN ended) = 0
       AND holdfast.died(processes, lock_id, p_here, p_alive, p_dead) IS false
       FOR NO KEY UPDATE;
    now := holdfast.clock();
    IF NOT FOUND OR now >= l.locked_until THEN
        RETURN NULL;
    END IF;
    IF l.waiters > 0 THEN
        SELECT least(count(*) FILTER (WHERE rank <= mine), 8),
               bool_and(until > now AND seen_at > now - interval '20 s' AND seen_at < now + interval '20 s'
                        AND holdfast.died(processes, lock_id, p_here, p_alive, p_dead) IS false)
          INTO before, live
          FROM (SELECT * FROM holdfast.waiter WHERE name = p_name ORDER BY rank, ticket LIMIT 9) AS first;
        SELECT processes INTO behind FROM holdfast.waiter WHERE name = p_name AND rank <= mine ORDER BY rank DESC, ticket DESC LIMIT 1;
    END IF;
    IF live THEN
        INSERT INTO holdfast.waiter (name, rank, ticket, ttl_ms, until, seen_at, queued_at, lock_id, owner, note, processes, channel)
        VALUES (p_name, mine, l.tickets + 1, p_ttl_ms, holdfast.gives_up(now, p_wait_ms), now, now, p_lock_id, p_owner, p_note,
                p_processes, p_channel)
            ON CONFLICT (name, lock_id) DO NOTHING;
    END IF;
    IF NOT (live AND FOUND) THEN
        RETURN NULL;
    END IF;
    UPDATE holdfast.lock SET tickets = tickets + 1, waiters = waiters + 1 WHERE name = p_name AND fence = l.fence;
    l.waiters := l.waiters + 1;
    ret := holdfast.answer_of(l, now, -1, true);
    ret.queued := true;
    ret.ahead := before;
    ret.look := coalesce(behind, l.processes);
    RETURN ret;
END $$;
COMMENT ON FUNCTION holdfast.join_queue IS 'acquire with a wait, where another holds it and the first who wait are there; NULL: it is not so';

CREATE FUNCTION holdfast.confirm(p_name text, p_lock_id bytea, p_ttl_ms bigint) RETURNS holdfast.answer LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    now timestamptz := holdfast.clock();
    l   holdfast.lock;
BEGIN
    UPDATE holdfast.lock
       SET ttl_ms = p_ttl_ms, offered = false, locked_until = now + p_ttl_ms * interval '1 millisecond'
     WHERE name = p_name AND fence = (SELECT fence FROM holdfast.lock WHERE name = p_name ORDER BY fence DESC LIMIT 1)
       AND lock_id = p_lock_id AND offered AND locked_until > holdfast.clock()
    RETURNING * INTO l;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    IF current_setting('holdfast.commit_before', true) <> '' THEN
        PERFORM holdfast.commit_durably();
    END IF;
    RETURN ROW(0, false, 0, 0, holdfast.ms(now), true, p_lock_id, l.fence, l.owner, l.note, '', holdfast.ms(l.locked_at),
               holdfast.ms(l.locked_until), p_ttl_ms, l.waiters, l.processes, l.took, false, '', false, '',
               NULL)::holdfast.answer;
END $$;
COMMENT ON FUNCTION holdfast.confirm IS 'A waiter takes what it was offered; NULL: nothing is offered to it';

-- In one statement what is by far the most common: it is free, nobody waits, no guard is or was in the
-- way (xmax), the token is new. PostgreSQL judges the row again when it had to wait for it. By ctid, so that the
-- index is searched once. What the row said before, a subquery still sees.
CREATE FUNCTION holdfast.acquire(p_name text, p_lock_id bytea, p_ttl_ms bigint, p_wait_ms bigint, p_owner text, p_note text, p_priority integer, p_processes text, p_channel text, p_here text, p_alive bytea[], p_dead bytea[])
RETURNS holdfast.answer LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    now       timestamptz := holdfast.clock();
    until     timestamptz := now + p_ttl_ms * interval '1 millisecond';
    new_fence bigint;
    since     bigint;
    ret       holdfast.answer;
BEGIN
    UPDATE holdfast.lock
       SET fence = nextval('holdfast.seq'), lock_id = p_lock_id, owner = p_owner, note = p_note, processes = p_processes,
           took = '', ttl_ms = p_ttl_ms, locked_at = now, told_at = now, locked_until = until, granted = granted + 1,
           tidied = CASE granted % 32 WHEN 31 THEN fence ELSE tidied END
     WHERE ctid = (SELECT ctid FROM holdfast.lock WHERE name = p_name ORDER BY fence DESC LIMIT 1)
       AND lock_id IS NULL AND waiters = 0 AND xmax = 0 AND position(p_lock_id IN ended) = 0
    RETURNING fence, CASE granted % 32 WHEN 0 THEN (SELECT b.tidied FROM holdfast.lock AS b WHERE b.name = p_name AND b.fence = lock.tidied) END
         INTO new_fence, since;
    IF NOT FOUND AND p_wait_ms <> 0 THEN
        ret := holdfast.join_queue(p_name, p_lock_id, p_ttl_ms, p_wait_ms, p_owner, p_note, p_priority, p_processes, p_channel,
                                   p_here, p_alive, p_dead);
        IF ret.code IS NULL THEN
            ret := holdfast.confirm(p_name, p_lock_id, p_ttl_ms);
        END IF;
        IF ret.code IS NOT NULL THEN
            RETURN ret;
        END IF;
    END IF;
    IF new_fence IS NULL THEN
        RETURN holdfast.acquire_otherwise(p_name, p_lock_id, p_ttl_ms, p_wait_ms, p_owner, p_note, p_priority, p_processes,
                                          p_channel, p_here, p_alive, p_dead);
    END IF;
    INSERT INTO holdfast.event (seq, at, fence, kind, name, owner, reason, detail)
    VALUES (new_fence, now, new_fence, 'acquired', p_name, p_owner, '', '');
    IF since IS NOT NULL THEN
        PERFORM holdfast.tidy(p_name, since, new_fence);
    END IF;
    IF current_setting('holdfast.commit_before', true) <> '' THEN
        PERFORM holdfast.commit_durably();
    END IF;
    RETURN ROW(0, false, 0, 0, holdfast.ms(now), true, p_lock_id, new_fence, p_owner, p_note, '', holdfast.ms(now),
               holdfast.ms(until), p_ttl_ms, 0, p_processes, '', false, '', false, '',
               NULL)::holdfast.answer;
END $$;
COMMENT ON FUNCTION holdfast.acquire IS 'Take a lock; where it is held, be refused, or with wait_ms <> 0 queue up (negative: for ever). The same lock_id again is the same acquire, and confirms an offer. To be called in a transaction of its own';

CREATE FUNCTION holdfast.acquire_again(p_name text, p_lock_id bytea, p_ttl_ms bigint, p_wait_ms bigint, p_owner text, p_note text, p_priority integer, p_processes text, p_channel text, p_here text, p_alive bytea[], p_dead bytea[])
RETURNS holdfast.answer LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    ret holdfast.answer := holdfast.confirm(p_name, p_lock_id, p_ttl_ms);
BEGIN
    IF ret.code IS NULL THEN
        ret := holdfast.acquire(p_name, p_lock_id, p_ttl_ms, p_wait_ms, p_owner, p_note, p_priority, p_processes, p_channel,
                                p_here, p_alive, p_dead);
    END IF;
    RETURN ret;
END $$;
COMMENT ON FUNCTION holdfast.acquire_again IS 'acquire, for one who was in the queue: what it was offered is looked for first';

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
    t := holdfast.start_turn(l, p_lock_id, p_here, p_alive, p_dead, false);
    IF l.name IS NULL OR l.lock_id <> p_lock_id AND holdfast.is_stale(t) = 0 THEN
        l.name := p_name;
        t.row := l;
        RETURN holdfast.answer_of(t.row, t.now, -3, true);
    END IF;
    l := holdfast.take(p_name, 'change');
    t := holdfast.start_turn(l, p_lock_id, p_here, p_alive, p_dead, false);
    lines := holdfast.look(t, false, false);
    IF lines <> '' THEN
        RETURN holdfast.to_look_at(lines);
    END IF;
    t := holdfast.end_stale(t);
    IF holdfast.is_holder(t, p_fence) THEN
        t := holdfast.renew(t, p_ttl_ms);
        ret := holdfast.answer_of(t.row, t.now, 0, false);
        ret.execution := t.x;
    ELSE
        ret := holdfast.answer_of(t.row, t.now, -3, true);
    END IF;
    t := holdfast.save(t, l);
    ret.ready := t.ready;
    RETURN ret;
END $$;
COMMENT ON FUNCTION holdfast.extend_otherwise IS 'extend, where the lease is not simply the asker''s, is an execution''s, or an event is due';

CREATE FUNCTION holdfast.extend(p_name text, p_lock_id bytea, p_fence bigint, p_ttl_ms bigint, p_here text, p_alive bytea[], p_dead bytea[])
RETURNS holdfast.answer LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    now timestamptz := holdfast.clock();
    l   holdfast.lock;
BEGIN
    UPDATE holdfast.lock
       SET ttl_ms = coalesce(nullif(p_ttl_ms, 0), ttl_ms), offered = false,
           locked_until = holdfast.renewed_until(locked_until, now, coalesce(nullif(p_ttl_ms, 0), ttl_ms))
     WHERE name = p_name AND fence = p_fence -- as it is: an expression of it would be planned anew by every call
       AND lock_id = p_lock_id AND locked_until > holdfast.clock() AND execution_id IS NULL AND told_at > now - interval '5 minutes'
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

CREATE FUNCTION holdfast.release_own(t holdfast.turn, p_outcome integer, p_has_exit_code boolean, p_exit_code integer, p_reason text)
RETURNS holdfast.turn LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    l holdfast.lock := t.row;
BEGIN
    PERFORM holdfast.tell(l, t.now, CASE p_outcome WHEN 0 THEN 'released' ELSE 'finished' END, l.owner,
                          CASE WHEN p_outcome = 1 THEN 'succeeded'
                               WHEN p_outcome = 2 AND p_reason = '' AND p_has_exit_code THEN format('failed with exit code %s', p_exit_code)
                               WHEN p_outcome = 2 AND p_reason = '' THEN 'failed'
                               ELSE p_reason END,
                          format('held for %s ms', holdfast.ms(t.now) - holdfast.ms(l.locked_at)));
    IF l.waiters > 0 THEN
        t := holdfast.strengthen(t);
    END IF;
    t := holdfast.end_grant(holdfast.finish(t, p_outcome, CASE WHEN p_has_exit_code THEN p_exit_code END, p_reason), 1);
    l := t.row;
    l.released := l.released + 1;
    t.row := l;
    RETURN holdfast.offer(t);
END $$;
COMMENT ON FUNCTION holdfast.release_own IS 'Give back the asker''s own lease, and offer it to the first who waits. Outcome 1: success, 2: failed, 3: aborted, 4: given up, 0: not that of an execution';

CREATE FUNCTION holdfast.release_otherwise(p_name text, p_lock_id bytea, p_fence bigint, p_reason text, p_here text, p_alive bytea[], p_dead bytea[])
RETURNS holdfast.answer LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    l     holdfast.lock;
    t     holdfast.turn;
    lines text;
    after holdfast.lock;
    ret   holdfast.answer;
BEGIN
    -- Whom the caller must look at is asked before the row is locked: a lock would have to wait for the disk.
    SELECT * INTO l FROM holdfast.lock WHERE name = p_name ORDER BY fence DESC LIMIT 1;
    FOR locked IN 0..1 LOOP
        IF locked = 1 OR l.name IS NULL THEN
            l := holdfast.take(p_name, 'change');
        END IF;
        t := holdfast.start_turn(l, p_lock_id, p_here, p_alive, p_dead, false);
        lines := holdfast.look(t, l.lock_id = p_lock_id OR EXISTS (SELECT FROM holdfast.waiter WHERE name = p_name AND lock_id = p_lock_id), false);
        IF lines <> '' THEN
            RETURN holdfast.to_look_at(lines);
        END IF;
    END LOOP;
    t := holdfast.end_stale(t);
    IF holdfast.is_holder(t, p_fence) THEN
        t := holdfast.release_own(t, 0, false, 0, p_reason);
        ret := holdfast.answer_of(t.row, t.now, 0, false);
        ret.execution := t.x;
    ELSIF NOT holdfast.is_holder(t, 0) AND holdfast.was_released(t.row, p_lock_id, p_fence) THEN
        ret := holdfast.answer_of(t.row, t.now, 0, false); -- the reply to the first release was lost: it is done
    ELSE
        ret := holdfast.answer_of(t.row, t.now, -3, true);
        after := t.row;
        after.release_lost := after.release_lost + 1;
        t.row := after;
    END IF;
    t := holdfast.save(t, l);
    ret.ready := t.ready;
    RETURN ret;
END $$;
COMMENT ON FUNCTION holdfast.release_otherwise IS 'release, where it is not simply the asker''s, or somebody waits';

-- What a release does where somebody waits, in few statements: the head of the queue is there and can be
-- granted it. NULL: it is not that simple, and nothing has been done. The commit does not wait for the disk, so
-- that the next one is told at once: what that one is granted it has to confirm, and its commit waits for this
-- one too. So does the caller, who calls flush() before it says that the lock was given back.
CREATE FUNCTION holdfast.release_to_head(p_name text, p_lock_id bytea, p_fence bigint, p_reason text, p_here text, p_alive bytea[], p_dead bytea[])
RETURNS holdfast.answer LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    l     record;
    w     holdfast.waiter;
    now   timestamptz;
    until timestamptz;
    told  bigint;
    next  bigint;
    near  text := 'holdfast_' || left(encode(sha256(convert_to(p_here, 'UTF8')), 'hex'), 8); -- as channels of that machine begin
    woken text;
BEGIN
    PERFORM holdfast.commit_lazily();
    SELECT locked_at, locked_until, owner, granted, tidied, waiters INTO l FROM holdfast.lock
     WHERE name = p_name AND fence = p_fence AND lock_id = p_lock_id AND execution_id IS NULL AND NOT offered AND waiters > 0
       FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    SELECT * INTO w FROM holdfast.waiter WHERE name = p_name ORDER BY rank, ticket LIMIT 1;
    now := holdfast.clock();
    IF NOT FOUND OR w.lock_id = p_lock_id OR now >= l.locked_until OR now >= w.until
       OR now >= w.seen_at + interval '20 s' OR now <= w.seen_at - interval '20 s'
       OR holdfast.died(w.processes, w.lock_id, p_here, p_alive, p_dead) IS DISTINCT FROM false THEN
        RETURN NULL;
    END IF;
    PERFORM FROM holdfast.lock WHERE name = p_name AND fence = p_fence FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN NULL; -- a guard is in the way
    END IF;
    until := now + least(w.ttl_ms, 5000) * interval '1 millisecond';
    told := nextval('holdfast.seq');
    next := nextval('holdfast.seq');
    WITH granted AS (
        UPDATE holdfast.lock
           SET fence = next, lock_id = w.lock_id, owner = w.owner, note = w.note, processes = w.processes, took = '',
               ttl_ms = w.ttl_ms, locked_at = now, told_at = now, locked_until = until, offered = true,
               granted = granted + 1, released = released + 1, waiters = greatest(waiters - 1, 0),
               tidied = CASE granted % 32 WHEN 31 THEN fence ELSE tidied END,
               ended = substr(decode('01', 'hex') || p_lock_id || ended, 1, 136)
         WHERE name = p_name AND fence = p_fence
    ), events AS (
        INSERT INTO holdfast.event (seq, at, fence, kind, name, owner, reason, detail)
        VALUES (told, now, p_fence, 'released', p_name, l.owner, p_reason,
                'held for ' || holdfast.ms(now) - holdfast.ms(l.locked_at) || ' ms'),
               (next, now, next, 'acquired', p_name, w.owner, '',
                'after waiting ' || holdfast.ms(now) - holdfast.ms(w.queued_at) || ' ms')
    ), served AS (
        DELETE FROM holdfast.waiter WHERE name = p_name AND rank = w.rank AND ticket = w.ticket
    )
    SELECT CASE WHEN w.channel = '' OR starts_with(w.channel, near) THEN w.channel
                ELSE pg_notify(w.channel, encode(w.lock_id, 'hex'))::text
           END INTO woken;
    IF l.granted % 32 = 31 THEN
        PERFORM holdfast.tidy(p_name, l.tidied, next);
    END IF;
    RETURN ROW(0, false, 0, 0, holdfast.ms(now), true, w.lock_id, next, w.owner, w.note, '', holdfast.ms(now),
               holdfast.ms(until), w.ttl_ms, l.waiters - 1, w.processes, '', false, woken, false, '',
               NULL)::holdfast.answer;
END $$;
COMMENT ON FUNCTION holdfast.release_to_head IS 'release, where it is the asker''s and the first who waits can have it at once; NULL: it is not so';

CREATE FUNCTION holdfast.release(p_name text, p_lock_id bytea, p_fence bigint, p_reason text, p_here text, p_alive bytea[], p_dead bytea[])
RETURNS holdfast.answer LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    now   timestamptz := holdfast.clock();
    since timestamptz;
    whose text;
    which bigint;
    ret   holdfast.answer;
BEGIN
    UPDATE holdfast.lock
       SET lock_id = NULL, locked_until = NULL, offered = false, released = released + 1,
           ended = substr(decode('01', 'hex') || p_lock_id || ended, 1, 136)
     WHERE name = p_name AND fence = p_fence -- as it is: an expression of it would be planned anew by every call
       AND lock_id = p_lock_id AND waiters = 0 AND NOT parked AND locked_until > holdfast.clock() AND execution_id IS NULL
    RETURNING locked_at, owner, fence INTO since, whose, which;
    IF NOT FOUND THEN
        ret := holdfast.release_to_head(p_name, p_lock_id, p_fence, p_reason, p_here, p_alive, p_dead);
        IF ret.code IS NULL THEN
            ret := holdfast.release_otherwise(p_name, p_lock_id, p_fence, p_reason, p_here, p_alive, p_dead);
        END IF;
        RETURN ret;
    END IF;
    INSERT INTO holdfast.event (seq, at, fence, kind, name, owner, reason, detail)
    VALUES (nextval('holdfast.seq'), now, which, 'released', p_name, whose, p_reason,
            'held for ' || holdfast.ms(now) - holdfast.ms(since) || ' ms');
    IF current_setting('holdfast.commit_before', true) <> '' THEN
        PERFORM holdfast.commit_durably();
    END IF;
    RETURN ROW(0, false, 0, 0, holdfast.ms(now), false, NULL, which, '', '', '', 0, 0, 0, 0, '', '', false, '', false, '',
               NULL)::holdfast.answer;
END $$;
COMMENT ON FUNCTION holdfast.release IS 'Give a lock back (fence 0: whatever it is); -3: it was no longer the asker''s, and nobody else''s was touched. Never waits for a guard';

-- ---- the other requests ---------------------------------------------------------------------------

CREATE FUNCTION holdfast.withdraw(p_name text, p_lock_id bytea, p_here text, p_alive bytea[], p_dead bytea[])
RETURNS holdfast.answer LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    l     holdfast.lock := holdfast.take(p_name, 'change');
    t     holdfast.turn := holdfast.start_turn(l, p_lock_id, p_here, p_alive, p_dead, false);
    lines text := holdfast.look(t, true, false);
    whose text;
    ret   holdfast.answer;
BEGIN
    IF lines <> '' THEN
        RETURN holdfast.to_look_at(lines);
    END IF;
    t := holdfast.end_stale(t);
    IF holdfast.is_holder(t, 0) THEN
        t := holdfast.release_own(t, 0, false, 0, 'gave up waiting');
    ELSE
        SELECT owner INTO whose FROM holdfast.waiter WHERE name = p_name AND lock_id = p_lock_id;
        IF FOUND THEN
            PERFORM holdfast.deny(t.row, t.now, whose, 'gave up waiting');
            t := holdfast.drop_waiter(t, p_lock_id);
        END IF;
    END IF;
    t := holdfast.save(t, l);
    ret := holdfast.answer_of(t.row, t.now, 0, false);
    ret.ready := t.ready;
    IF l.lock_id = p_lock_id THEN
        ret.execution := t.x;
    END IF;
    RETURN ret;
END $$;
COMMENT ON FUNCTION holdfast.withdraw IS 'Leave the queue, and give back what was offered meanwhile. Always done';

CREATE FUNCTION holdfast.force(p_name text, p_fence bigint, p_owner text, p_reason text, p_here text, p_alive bytea[], p_dead bytea[])
RETURNS holdfast.answer LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    l     holdfast.lock := holdfast.take(p_name, 'grant');
    t     holdfast.turn := holdfast.start_turn(l, NULL, p_here, p_alive, p_dead, true);
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
        t := holdfast.lose_grant(t, 'forced');
        after := t.row;
        after.forced := after.forced + 1;
        t.row := after;
        t := holdfast.offer(t);
    END IF;
    t := holdfast.save(t, l);
    ret.ready := t.ready;
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
    t := holdfast.start_turn(seen, NULL, p_here, p_alive, p_dead, true);
    IF holdfast.is_stale(t) > 0 OR seen.lock_id IS NULL AND seen.waiters > 0 THEN
        l := holdfast.take(p_name, 'try'); -- where anybody is in the way, there is no hurry
        IF l.name IS NOT NULL THEN
            t := holdfast.start_turn(l, NULL, p_here, p_alive, p_dead, true);
        END IF;
    END IF;
    lines := holdfast.look(t, false, false);
    IF lines <> '' THEN
        RETURN holdfast.to_look_at(lines);
    END IF;
    IF l.name IS NOT NULL THEN
        t := holdfast.save(holdfast.end_stale(t), l);
    END IF;
    ret := holdfast.answer_of(t.row, t.now, 0, true);
    ret.ready := t.ready;
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
    t     holdfast.turn := holdfast.start_turn(l, NULL, p_here, p_alive, p_dead, false);
    lines text := holdfast.look(t, false, false);
    after holdfast.lock;
    ret   holdfast.answer;
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
    t := holdfast.save(t, l);
    ret := holdfast.answer_of(t.row, t.now, 0, false);
    ret.ready := t.ready;
    RETURN ret;
END $$;
COMMENT ON FUNCTION holdfast.report_lost IS 'A holder''s own word that it had to stop';

-- ---- looking --------------------------------------------------------------------------------------

CREATE FUNCTION holdfast.status(p_name text) RETURNS holdfast.answer LANGUAGE plpgsql STABLE
AS $$
DECLARE
    l   holdfast.lock;
    ret holdfast.answer;
BEGIN
    SELECT * INTO l FROM holdfast.lock WHERE name = p_name ORDER BY fence DESC LIMIT 1;
    ret := holdfast.answer_of(l, holdfast.clock(), 0, true);
    IF l.execution_id IS NOT NULL THEN
        ret.execution := holdfast.execution_of(l.execution_id);
    END IF;
    RETURN ret;
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
        SELECT CASE WHEN lock_id IS NOT NULL THEN processes END INTO ret
          FROM holdfast.lock WHERE name = p_name ORDER BY fence DESC LIMIT 1;
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
    RETURN events + holdfast.prune_some(prune.max);
END $$;
COMMENT ON FUNCTION holdfast.prune IS 'Remove at most so many events that are older than 30 days or beyond a million, and some executions, as prune_some() does. Called now and then after a grant';
