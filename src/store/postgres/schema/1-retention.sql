
-- ---- how long executions are kept -----------------------------------------------------------------

CREATE TABLE holdfast.retain (
    keep_ms    bigint NOT NULL,
    keep_count bigint NOT NULL,
    workflow   text   PRIMARY KEY COLLATE "C"
);
COMMENT ON TABLE  holdfast.retain            IS 'How long executions are kept once they have ended, where it is not 90 days: what workflows had as keep and keep-count when they were last read';
COMMENT ON COLUMN holdfast.retain.keep_ms    IS 'So many milliseconds after their end';
COMMENT ON COLUMN holdfast.retain.keep_count IS 'Of the newest, only so many; 0: any number';
COMMENT ON COLUMN holdfast.retain.workflow   IS 'Of which workflow';

CREATE FUNCTION holdfast.retain(p_rules jsonb) RETURNS void LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    DELETE FROM holdfast.retain r USING jsonb_to_recordset(p_rules) AS a(workflow text, keep_ms bigint, keep_count bigint)
     WHERE r.workflow = a.workflow AND a.keep_ms = 7776000000 AND a.keep_count = 0;
    INSERT INTO holdfast.retain (workflow, keep_ms, keep_count)
    SELECT a.workflow, a.keep_ms, a.keep_count FROM jsonb_to_recordset(p_rules) AS a(workflow text, keep_ms bigint, keep_count bigint)
     WHERE (a.keep_ms <> 7776000000 OR a.keep_count <> 0)
       AND NOT EXISTS (SELECT FROM holdfast.retain r WHERE r.workflow = a.workflow AND r.keep_ms = a.keep_ms AND r.keep_count = a.keep_count)
     ORDER BY a.workflow
    ON CONFLICT (workflow) DO UPDATE SET keep_ms = excluded.keep_ms, keep_count = excluded.keep_count;
END $$;
COMMENT ON FUNCTION holdfast.retain IS 'Note how long executions of workflows are kept, of each once: a list of {workflow, keep_ms, keep_count}. Writes only what is new';

CREATE TYPE holdfast.prune_place AS (
    workflow text,
    stage    integer,
    since    timestamptz,
    upto     timestamptz,
    upto_seq bigint,
    removed  bigint
);
COMMENT ON TYPE   holdfast.prune_place          IS 'How far pruning has got: through the workflows, in the order of their bytes';
COMMENT ON COLUMN holdfast.prune_place.workflow IS 'Which one it is at; empty: at the beginning';
COMMENT ON COLUMN holdfast.prune_place.stage    IS '0: it has been seen to; 1: it is next; 2: what is to go is known';
COMMENT ON COLUMN holdfast.prune_place.since    IS 'What ended before this is gone already: its traces in the index need not be read again';
COMMENT ON COLUMN holdfast.prune_place.upto     IS 'What ended up to this is to go';
COMMENT ON COLUMN holdfast.prune_place.upto_seq IS 'Of those that ended at that very time, up to this number';
COMMENT ON COLUMN holdfast.prune_place.removed  IS 'How many have been removed';

CREATE FUNCTION holdfast.prune_enter(place holdfast.prune_place, p_by_count boolean) RETURNS holdfast.prune_place LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
DECLARE
    rule    holdfast.retain;
    at      timestamptz;
    at_seq  bigint;
BEGIN
    SELECT * INTO rule FROM holdfast.retain r WHERE r.workflow = place.workflow;
    place.stage := 2;
    place.since := timestamptz '2000-01-01 00:00Z';
    place.upto := holdfast.clock() - coalesce(rule.keep_ms, 7776000000) * interval '1 millisecond';
    place.upto_seq := 9223372036854775807;
    IF p_by_count AND rule.keep_count > 0 THEN
        SELECT e.finished_at, e.seq INTO at, at_seq FROM holdfast.ended e
         WHERE e.workflow = place.workflow AND NOT e.once
         ORDER BY e.finished_at DESC, e.seq DESC LIMIT 1 OFFSET rule.keep_count;
        IF at > place.upto THEN
            place.upto := at;
            place.upto_seq := at_seq;
        END IF;
    END IF;
    RETURN place;
END $$;
COMMENT ON FUNCTION holdfast.prune_enter IS 'What of a workflow is to go, by the age and, where wanted, the number of what is kept';

CREATE FUNCTION holdfast.remove_executions(p_seqs bigint[]) RETURNS bigint LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    ids uuid[];
BEGIN
    WITH gone AS (
        DELETE FROM holdfast.execution x WHERE x.seq = ANY (p_seqs) AND x.state NOT IN ('PENDING', 'RUNNING') RETURNING x.id
    )
    SELECT coalesce(array_agg(g.id), '{}') INTO ids FROM gone AS g;
    DELETE FROM holdfast.execution_data d WHERE d.id = ANY (ids);
    RETURN cardinality(ids);
END $$;
COMMENT ON FUNCTION holdfast.remove_executions IS 'Remove executions that have ended, with their data; how many. One that has been begun again is left';

CREATE FUNCTION holdfast.prune_workflow(place holdfast.prune_place, p_max bigint) RETURNS holdfast.prune_place LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
DECLARE
    kept text := coalesce((SELECT x.key FROM holdfast.execution x WHERE x.workflow = place.workflow AND NOT x.once
                              AND x.key >= 'cron:0' AND x.key <= 'cron::' ORDER BY x.key DESC LIMIT 1), '');
    seqs bigint[];
    rows tid[];
BEGIN
    SELECT array_agg(old.seq), array_agg(old.ctid), coalesce(max(old.finished_at), place.since) INTO seqs, rows, place.since FROM (
        SELECT e.seq, e.ctid, e.finished_at FROM holdfast.ended e
         WHERE e.workflow = place.workflow AND NOT e.once
           AND e.finished_at >= place.since AND e.finished_at <= place.upto
           AND (e.finished_at < place.upto OR e.seq <= place.upto_seq)
           AND (SELECT x.key FROM holdfast.execution x WHERE x.seq = e.seq) IS DISTINCT FROM kept
         ORDER BY e.finished_at, e.seq LIMIT p_max FOR UPDATE SKIP LOCKED) AS old;
    IF seqs IS NULL THEN
        place.removed := 0;
        RETURN place;
    END IF;
    place.removed := holdfast.remove_executions(seqs);
    DELETE FROM holdfast.ended e WHERE e.ctid = ANY (rows);
    RETURN place;
END $$;
COMMENT ON FUNCTION holdfast.prune_workflow IS 'Remove at most so many of what is to go of a workflow; always kept is the one with the last key of its schedule';

CREATE FUNCTION holdfast.prune_executions(p_workflow text, p_stage integer, p_since_us bigint, p_upto_us bigint, p_upto_seq bigint, p_max bigint)
RETURNS holdfast.prune_place LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
DECLARE
    zero    timestamptz := '2000-01-01 00:00Z';
    place   holdfast.prune_place := ROW(p_workflow, p_stage, zero + p_since_us * interval '1 microsecond',
                                        zero + p_upto_us * interval '1 microsecond', p_upto_seq, 0)::holdfast.prune_place;
    removed bigint := 0;
BEGIN
    PERFORM holdfast.commit_lazily();
    FOR look IN 1..64 LOOP
        IF place.stage = 0 THEN
            SELECT e.workflow INTO place.workflow FROM holdfast.ended e
             WHERE e.workflow > place.workflow AND NOT e.once ORDER BY e.workflow LIMIT 1;
            place.workflow := coalesce(place.workflow, '');
            EXIT WHEN place.workflow = '';
            place.stage := 1;
        END IF;
        IF place.stage = 1 THEN
            place := holdfast.prune_enter(place, true);
        END IF;
        place := holdfast.prune_workflow(place, p_max - removed);
        removed := removed + place.removed;
        EXIT WHEN removed >= p_max;
        place.stage := 0;
    END LOOP;
    place.removed := removed;
    RETURN place;
END $$;
COMMENT ON FUNCTION holdfast.prune_executions IS 'Go on from a place: remove at most so many executions that are kept no longer, of at most 64 workflows. Times are in microseconds since 2000. To be called in a transaction of its own';

-- For databases that nobody sweeps. Whose rows are looked at is chosen by lot, so mostly a workflow that
-- has many; by age alone, since counting takes time.
CREATE FUNCTION holdfast.prune_some(p_max integer) RETURNS integer LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
DECLARE
    oldest  bigint := (SELECT x.seq FROM holdfast.execution x ORDER BY x.seq LIMIT 1);
    newest  bigint := (SELECT x.seq FROM holdfast.execution x ORDER BY x.seq DESC LIMIT 1);
    place   holdfast.prune_place;
    seqs    bigint[];
    rows    tid[];
    removed bigint := 0;
BEGIN
    SELECT array_agg(old.seq), array_agg(old.ctid) INTO seqs, rows FROM (
        SELECT e.seq, e.ctid FROM holdfast.ended e
         WHERE e.once AND e.finished_at < holdfast.clock() - interval '90 days'
         ORDER BY e.finished_at, e.seq LIMIT p_max FOR UPDATE SKIP LOCKED) AS old;
    IF seqs IS NOT NULL THEN
        removed := holdfast.remove_executions(seqs);
        DELETE FROM holdfast.ended e WHERE e.ctid = ANY (rows);
    END IF;
    SELECT x.workflow INTO place.workflow FROM holdfast.execution x
     WHERE x.seq >= oldest + (random() * (newest - oldest))::bigint ORDER BY x.seq LIMIT 1;
    IF FOUND THEN
        place := holdfast.prune_workflow(holdfast.prune_enter(place, false), p_max);
    END IF;
    RETURN removed + coalesce(place.removed, 0);
END $$;
COMMENT ON FUNCTION holdfast.prune_some IS 'Remove at most so many runs that were to happen once, after 90 days, and as many of one workflow. Called by prune()';
