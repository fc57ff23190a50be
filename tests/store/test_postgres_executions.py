"""Executions in SQL: what the conformance suite can't show, since it asks one thing at a time."""
import time

from conftest import poll
from test_postgres_sql import identity, place  # noqa: F401

PENDING = """WITH made AS (
               INSERT INTO holdfast.execution (id, workflow, lock, state, run_at, created_at, priority, concurrency, parked)
               SELECT gen_random_uuid(), {workflow}, {lock}, 'PENDING', now() + {due} * interval '1 hour', now(), {priority}, {concurrency}, {parked}
                 FROM generate_series(1, {n}) AS i ORDER BY i
               RETURNING *)
             INSERT INTO holdfast.pending (seq, run_at, priority, concurrency, to_verify, parked, id, workflow, lock)
             SELECT seq, run_at, priority, concurrency, to_verify, parked, id, workflow, lock FROM made"""


def begin(token, lock, key="NULL", execution="gen_random_uuid()", claim="false", columns="code", concurrency=0):
    return (f"SELECT {columns} FROM holdfast.begin_execution('{lock}', {identity(token)}, 60000, 0, 'o{token}', '', 0, '', '',"
            f" 'w', {key}, false, NULL, {execution}, NULL, 0, 0, 0, 0, {concurrency}, {claim}, false, '', '{{}}', '{{}}')")


def pending(place, lock, n=1, priority=0, due=-1, workflow="'w'", concurrency=0, parked="false"):
    """`lock` and `workflow` are SQL; i counts."""
    assert "ERROR" not in place.one(PENDING.format(**locals()))


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
        FOR x IN SELECT * FROM holdfast.due(NULL, false, 0, 4) LOOP
          id := decode(md5(random()::text || clock_timestamp()::text), 'hex');
          a := holdfast.begin_execution(x.lock, id, 60000, 0, 'o', '', 0, '', '', NULL, NULL, false, NULL, x.id, NULL, 0, 0,
                                        0, 0, 0, true, false, '', '{}', '{}');
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


def test_what_is_not_to_be_claimed_is_not_read(place):
    """Counted, not timed: what is read to find the others must not grow with it."""
    place.one(begin(1, "x", concurrency=1))  # of w, which is full then
    pending(place, "'parked'", n=5000, priority=1, parked="true")
    pending(place, "'full ' || i", n=5000, priority=2, concurrency=1)
    pending(place, "'later ' || i", n=5000, priority=3, due=1, workflow="'v'")
    pending(place, "'long'", n=5000, priority=-1, workflow="'v'")
    pending(place, "'other ' || i", n=3, workflow="'u'")
    place.one("ANALYZE holdfast.execution, holdfast.pending, holdfast.running")
    before = read(place)
    first = "SELECT string_agg(lock, ',') FROM holdfast.due({}, false, {}, {})"
    assert place.one(first.format("NULL", 0, 4)) == "other 1,other 2,other 3,long"
    assert place.one(first.format("'{t,u,w}'", 1, 2)) == "other 2,other 3"
    assert place.one(first.format("'{w}'", 0, 2)) == ""
    assert place.one("SELECT holdfast.next_due(NULL, holdfast.clock()) > now() + interval '59 minutes'") == "t"
    assert place.one("SELECT holdfast.first_waiting('parked', holdfast.clock(), false) IS NOT NULL") == "t"
    assert read(place) - before < 200


def read(place):
    place.one("SELECT pg_stat_force_next_flush()")
    time.sleep(1.2)
    return int(place.one("SELECT sum(idx_tup_read) + (SELECT sum(seq_tup_read) FROM pg_stat_user_tables WHERE relname IN ('execution', 'pending', 'running'))"
                         " FROM pg_stat_user_indexes WHERE relname IN ('execution', 'pending', 'running')"))


def test_a_long_line_behind_one_lock_is_looked_at_once(place):
    """Whoever claims parks what it can't have; only one of the line is ready when the lock is free."""
    pending(place, "'long'", n=20)
    pending(place, "'other'")
    place.one(begin(9, "long", "'theirs'"))
    for i in range(20):
        place.one(begin(100 + i, "long", execution=f"(SELECT id FROM holdfast.due(NULL, false, 0, 99) WHERE lock = 'long' LIMIT 1)", claim="true"))
    assert place.one("SELECT lock FROM holdfast.due(NULL, false, 0, 99)") == "other"
    fence = place.one("SELECT max(fence) FROM holdfast.lock WHERE name = 'long'")
    assert place.one(f"SELECT code, rtrim(ready, E'\\n') FROM holdfast.finish_execution('long', {identity(9)}, {fence}, 1, true, 0, '', NULL, false, NULL, 0,"
                     " NULL, '', '{}', '{}')") == "0|w"
    assert place.one("SELECT string_agg(lock, ',') FROM holdfast.due(NULL, false, 0, 99)") == "long,other"
    assert place.one("SELECT count(*) FROM holdfast.execution WHERE parked") == "19"


def test_a_limit_holds_under_claims_at_once(place):
    """Of a workflow with concurrency 3, eight sessions claim sixty under locks of their own."""
    pending(place, "'lock ' || i", n=60, concurrency=3)
    place.one("CREATE TABLE seen (n bigint)")
    work = """DO $x$ DECLARE x holdfast.execution; a holdfast.answer; id bytea; BEGIN
      FOR n IN 1..4000 LOOP
        SELECT * INTO x FROM holdfast.due(NULL, false, floor(random() * 4)::integer, 1);
        IF x.id IS NOT NULL THEN
          id := decode(md5(random()::text || clock_timestamp()::text), 'hex');
          a := holdfast.begin_execution(x.lock, id, 60000, 0, 'o', '', 0, '', '', NULL, NULL, false, NULL, x.id, NULL, 0, 0,
                                        0, 0, 0, true, false, '', '{}', '{}');
          COMMIT;
          IF a.code = 0 THEN
            INSERT INTO seen SELECT count(*) FROM holdfast.execution WHERE state = 'RUNNING';
            COMMIT;
            a := holdfast.finish_execution(x.lock, id, a.fence, 1, true, 0, '', x.id, false, NULL, 0, NULL, '', '{}', '{}');
            COMMIT;
          END IF;
        END IF;
        EXIT WHEN NOT EXISTS (SELECT FROM holdfast.execution WHERE state = 'PENDING');
      END LOOP; END $x$"""
    sessions = [place.session() for _ in range(8)]
    for session in sessions:
        session.send(work)
    for session in sessions:
        assert "ERROR" not in session.answer()
    assert place.one("SELECT DISTINCT state, attempt FROM holdfast.execution") == "SUCCESS|1"
    assert place.one("SELECT max(n) FROM seen") in ("2", "3")


def enqueue(lock, overlap, execution="gen_random_uuid()", limit=0, columns="code"):
    return (f"SELECT {columns} FROM holdfast.enqueue_execution('{lock}', 'o', 0, 'w', NULL, false, NULL, {execution}, NULL, 0, 0, 0, 0, 0,"
            f" {overlap}, {limit}, '', '{{}}', '{{}}')")


REJECT, QUEUE, SKIP, REPLACE, CANCEL = range(5)


def test_of_many_that_are_wanted_at_once_one_is_recorded(place):
    """Also where nobody has ever asked for the lock."""
    for name, overlap, most in ("a", REJECT, 1), ("b", SKIP, 1), ("c", QUEUE, 3), ("d", REPLACE, 1):
        sessions = [place.session() for _ in range(8)]
        for session in sessions:
            session.send("BEGIN; " + enqueue(name, overlap, limit=3) + "; SELECT pg_sleep(0.05); COMMIT")
        codes = [session.answer().split()[0] for session in sessions]
        assert codes.count("0") == (8 if overlap == REPLACE else most), codes
        assert place.one(f"SELECT count(*) FROM holdfast.execution WHERE state = 'PENDING' AND lock = '{name}'") == str(most)


def test_what_is_enqueued_while_its_lock_is_given_back_is_not_forgotten(place):
    """It is parked behind a lease whose end does not see it; or it is not parked."""
    assert place.one(begin(1, "a")) == "0"
    first, second = place.session(), place.session()
    fence = place.one("SELECT max(fence) FROM holdfast.lock")
    assert first("BEGIN; SELECT code FROM holdfast.finish_execution('a', " + identity(1) + f", {fence}, 1, true, 0, '', NULL, false, NULL, 0,"
                 " NULL, '', '{}', '{}')") == "0"
    second.send(enqueue("a", QUEUE, columns="code, rtrim(ready, E'\\n'), (execution).parked"))
    assert not second.is_answered(0.5), "it did not wait to learn whether the lock is free"
    first("COMMIT")
    assert second.answer() == "0|w|f"


# ---- workers that sleep ---------------------------------------------------------------------------


def sleep(session, worker, workflows="NULL"):
    pid = session("SELECT pg_backend_pid()")
    session(f"LISTEN worker_{worker}")
    session(f"SELECT holdfast.sleep({identity(worker)}, 'worker_{worker}', {pid}, {workflows})")


def wake(place, *workflows):
    """How many were told that something of these is ready."""
    return place.one("SELECT holdfast.wake_idle(E'" + "".join(w + "\\n" for w in workflows) + "')")


def told(session):
    return "Asynchronous notification" in session("SELECT 1")


def test_who_sleeps_is_told_once_and_the_longest_sleeper_first(place):
    first, second = place.session(), place.session()
    sleep(first, 1)
    sleep(second, 2)
    assert wake(place, "w") == "1"
    assert told(first) and not told(second)
    sleep(first, 1)
    assert wake(place, "w", "v", "w", "v") == "2"
    assert told(first) and told(second)
    assert wake(place, "w") == "0"
    sleep(first, 1)
    first(f"SELECT holdfast.awake({identity(1)})")
    assert wake(place, "w") == "0"


def test_who_sleeps_is_told_only_of_what_it_would_claim(place):
    first, second = place.session(), place.session()
    sleep(first, 1, "'{u,v}'")
    sleep(second, 2)
    assert wake(place, "w") == "1"
    assert told(second) and not told(first)
    assert wake(place, "w", "v") == "1"
    assert told(first)


def test_what_is_recorded_wakes_as_many_as_are_ready(place):
    pending(place, "'a'")
    pending(place, "'b'", parked="true")
    session = place.session()
    ids = "(SELECT array_agg(id) || gen_random_uuid() FROM holdfast.execution)"
    assert place.one(f"SELECT holdfast.wake_for({ids})") == "0", "nobody sleeps"
    sleep(session, 1)
    assert place.one(f"SELECT holdfast.wake_for({ids})") == "1"
    assert told(session)


def test_a_sleeper_that_is_gone_is_passed_over(place):
    first, second = place.session(), place.session()
    sleep(first, 1)
    sleep(second, 2)
    pid = first("SELECT pg_backend_pid()")
    first.process.kill()
    poll(lambda: place.one(f"SELECT count(*) FROM pg_stat_activity WHERE pid = {pid}") == "0")
    assert wake(place, "w") == "1"
    assert told(second)
    assert place.one("SELECT count(*) FROM holdfast.sleeper") == "0"


def test_a_lock_whose_execution_is_over_is_taken_over(place):
    assert place.one(begin(1, "a")) == "0"
    place.one("UPDATE holdfast.execution SET state = 'FAILED', finished_at = now()")
    assert place.one("SELECT (execution).state FROM holdfast.status('a')") == "FAILED"
    assert place.one(begin(2, "a", columns="code, split_part(took, ' ', 1)")) == "0|4"
    assert place.one("SELECT string_agg(DISTINCT reason, ',') FROM holdfast.event WHERE kind IN ('expired', 'taken-over')") == "execution-ended"
    assert place.one("SELECT taken_died FROM holdfast.lock") == "1"


def test_executions_that_ended_long_ago_go_with_their_data(place):
    """In steps; what is open or ended lately stays, however old it is."""
    for i in range(7):
        place.one(begin(i, f"lock {i}"))
    place.one("INSERT INTO holdfast.execution_data (id, input) SELECT id, 'x' FROM holdfast.execution")
    for days, locks in ("91", "'lock 1', 'lock 2', 'lock 5'"), ("89", "'lock 3'"):
        place.one(f"""WITH over AS (UPDATE holdfast.execution SET state = 'SUCCESS', finished_at = now() - interval '{days} days'
                                     WHERE lock IN ({locks}) RETURNING *)
                      INSERT INTO holdfast.ended (finished_at, seq, once, workflow) SELECT finished_at, seq, once, workflow FROM over""")
    left = "SELECT string_agg(substr(lock, 6), '' ORDER BY seq) FROM holdfast.execution JOIN holdfast.execution_data USING (id)"
    steps = []
    for _ in range(3):
        place.one("SELECT holdfast.prune(2)")
        steps.append(place.one(left))
    assert steps == ["03456", "0346", "0346"]
    assert place.one("SELECT (SELECT count(*) FROM holdfast.execution_data), (SELECT count(*) FROM holdfast.ended)") == "4|1"
