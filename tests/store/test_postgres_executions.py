"""Executions in SQL: what the conformance suite can't show, since it asks one thing at a time."""
import time

from test_postgres_sql import identity, place  # noqa: F401

PENDING = """INSERT INTO holdfast.execution (id, workflow, lock, state, run_at, created_at, priority)
             SELECT gen_random_uuid(), 'w', {lock}, 'PENDING', now() - interval '1 hour', now(), {priority}
               FROM generate_series(1, {n}) AS i"""


def begin(token, lock, key="NULL", execution="gen_random_uuid()", claim="false", columns="code"):
    return (f"SELECT {columns} FROM holdfast.begin_execution('{lock}', {identity(token)}, 60000, 0, 'o{token}', '', 0, '', '',"
            f" 'w', {key}, false, NULL, {execution}, NULL, 0, 0, 0, {claim}, '', '{{}}', '{{}}')")


def pending(place, lock, n=1, priority="0"):
    assert "ERROR" not in place.one(PENDING.format(lock=lock, n=n, priority=priority))


def test_one_key_asked_for_at_once_under_two_locks_is_one_execution(place):
    first, second = place.session(), place.session()
    assert first("BEGIN; " + begin(1, "a", "'k'")) == "0"
    second.send(begin(2, "b", "'k'"))
    assert not second.is_answered(0.5), "the key was given twice"
    first("COMMIT")
    assert "40001" in second.answer()
    assert second(begin(2, "b", "'k'", columns="code, duplicate, (execution).lock")) == "0|t|a"
    assert place.one("SELECT count(*) FROM holdfast.execution") == "1"
    assert place.one("SELECT count(*) FROM holdfast.lock WHERE lock_id IS NOT NULL") == "1"


def test_who_claims_waits_for_nobody(place):
    pending(place, "'a'")
    pending(place, "'b'")
    ids = [place.one(f"SELECT id FROM holdfast.execution WHERE lock = '{lock}'") for lock in "ab"]
    for lock in "ab":  # the rows of their locks are there
        place.one(begin(9, lock))
        place.one(f"SELECT holdfast.force('{lock}', (SELECT max(fence) FROM holdfast.lock WHERE name = '{lock}'), '', '', '', '{{}}', '{{}}')")
    first, second = place.session(), place.session()
    assert first("BEGIN; " + begin(1, "a", execution=f"'{ids[0]}'", claim="true")) == "0"
    assert second(begin(2, "a", execution=f"'{ids[0]}'", claim="true")) == "-1"
    assert second(begin(3, "b", execution=f"'{ids[1]}'", claim="true")) == "0"
    first("COMMIT")
    assert second(begin(2, "a", execution=f"'{ids[0]}'", claim="true")) == "-2"
    assert place.one("SELECT sum(attempt) FROM holdfast.execution WHERE id = ANY ('{%s}')" % ",".join(ids)) == "2"


def test_claims_by_many_sessions_are_each_others_none(place):
    pending(place, "'lock ' || i % 20", n=200)
    work = """DO $x$ DECLARE x holdfast.execution; a holdfast.answer; id bytea; BEGIN
      FOR n IN 1..400 LOOP
        FOR x IN SELECT * FROM holdfast.due(NULL, 0, 4) LOOP
          id := decode(md5(random()::text || clock_timestamp()::text), 'hex');
          a := holdfast.begin_execution(x.lock, id, 60000, 0, 'o', '', 0, '', '', NULL, NULL, false, NULL, x.id, NULL, 0, 0,
                                        0, true, '', '{}', '{}');
          COMMIT;
          IF a.code = 0 THEN
            a := holdfast.finish_execution(x.lock, id, a.fence, 1, true, 0, '', x.id, false, NULL, 0, NULL, '', '{}', '{}');
            COMMIT;
            IF a.code <> 0 THEN RAISE 'lost'; END IF;
          END IF;
        END LOOP;
        EXIT WHEN NOT EXISTS (SELECT FROM holdfast.execution WHERE state = 'PENDING');
      END LOOP; END $x$"""
    sessions = [place.session() for _ in range(4)]
    for session in sessions:
        session.send(work)
    for session in sessions:
        assert "ERROR" not in session.answer()
    assert place.one("SELECT DISTINCT state, attempt FROM holdfast.execution") == "SUCCESS|1"
    assert place.one("SELECT count(DISTINCT fence) FROM holdfast.execution") == "200"


def test_a_long_line_behind_one_lock_is_passed_over(place):
    """Counted, not timed: what is read to find the others must not grow with the line."""
    pending(place, "'long'", n=5000, priority="1")
    pending(place, "'other ' || i", n=3)
    place.one("ANALYZE holdfast.execution")
    before = read(place)
    assert place.one("SELECT string_agg(lock, ',') FROM holdfast.due(NULL, 0, 32)") == "long,other 1,other 2,other 3"
    assert place.one("SELECT string_agg(lock, ',') FROM holdfast.due('{w,x}', 1, 2)") == "other 1,other 2"
    assert place.one("SELECT count(*) FROM holdfast.due('{x}', 0, 2)") == "0"
    assert read(place) - before < 2500


def read(place):
    place.one("SELECT pg_stat_force_next_flush()")
    time.sleep(1.2)
    return int(place.one("SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE indexrelname IN ('execution_due', 'execution_line')"))


def test_a_lock_whose_execution_is_over_is_taken_over(place):
    assert place.one(begin(1, "a")) == "0"
    place.one("UPDATE holdfast.execution SET state = 'FAILED', finished_at = now()")
    assert place.one("SELECT (execution).state FROM holdfast.status('a')") == "FAILED"
    assert place.one(begin(2, "a", columns="code, split_part(took, ' ', 1)")) == "0|4"
    assert place.one("SELECT string_agg(DISTINCT reason, ',') FROM holdfast.event WHERE kind IN ('expired', 'taken-over')") == "execution-ended"
    assert place.one("SELECT taken_died FROM holdfast.lock") == "1"


def test_finished_executions_go_with_their_data(place):
    place.one(begin(1, "a"))
    place.one("SELECT holdfast.keep_output((SELECT id FROM holdfast.execution), 'x', 0, NULL)")
    place.one("UPDATE holdfast.execution SET state = 'SUCCESS', finished_at = now() - interval '91 days'")
    place.one("SELECT holdfast.prune(10)")
    assert place.one("SELECT (SELECT count(*) FROM holdfast.execution), (SELECT count(*) FROM holdfast.execution_data)") == "0|0"
