"""The schema itself: what operators read there, and its functions called side by side, without the library."""
import os
import select
import time

import pytest
from conftest import PATIENCE_S

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PARTS = ["1-tables.sql", "1-executions.sql", "1-turns.sql", "1-work.sql", "1-requests.sql", "1-many.sql", "1-claims.sql", "1-retention.sql"]
LEVELS = pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
SNAPSHOTS = pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])


def schema():
    folder = os.path.join(ROOT, "src", "store", "postgres", "schema")
    return "".join(open(os.path.join(folder, part), encoding="utf-8").read() for part in PARTS)


class Session:
    """A connection of its own: answers one by one, or later."""

    def __init__(self, process):
        self.process = process

    def send(self, sql):
        self.process.stdin.write(sql + ";\n\\echo =done=\n")
        self.process.stdin.flush()

    def is_answered(self, within_s):
        return bool(select.select([self.process.stdout], [], [], within_s)[0])

    def answer(self):
        text = ""
        while "=done=\n" not in text:
            assert self.is_answered(PATIENCE_S), f"no answer; so far: {text}"
            text += os.read(self.process.stdout.fileno(), 65536).decode()
        return text.replace("=done=\n", "").strip()

    def __call__(self, sql):
        self.send(sql)
        return self.answer()


class Place:
    """A database with our schema and nothing else."""

    def __init__(self, server, database):
        self.server, self.database, self.sessions = server, database, []
        self.one = self.session()
        assert "ERROR" not in self.one("BEGIN;\n" + schema() + "COMMIT")

    def session(self):
        self.sessions.append(Session(self.server.start_psql(self.database)))
        return self.sessions[-1]

    def close(self):
        for session in self.sessions:
            session.process.kill()
            session.process.communicate()


@pytest.fixture
def place(shared_postgres):
    database = f"sql_{os.getpid()}_{time.monotonic_ns()}"
    shared_postgres.create_database(database)
    place = Place(shared_postgres, database)
    yield place
    place.close()
    shared_postgres.drop_database(database)


def identity(token):
    return f"decode(lpad(to_hex({token}), 32, '0'), 'hex')"


def acquire(token, name="a", ttl_ms=3600000, wait_ms=0):
    return (f"SELECT code, fence FROM holdfast.acquire('{name}', {identity(token)}, {ttl_ms}, {wait_ms}, 'o{token}',"
            " '', 0, '', '', '', '{}', '{}')")


def extend(token, fence, name="a", ttl_ms=0):
    return f"SELECT code FROM holdfast.extend('{name}', {identity(token)}, {fence}, {ttl_ms}, '', '{{}}', '{{}}')"


def release(token, fence, name="a"):
    return f"SELECT code FROM holdfast.release('{name}', {identity(token)}, {fence}, '', '', '{{}}', '{{}}')"


def grant(session, token, **options):
    code, fence = session(acquire(token, **options)).split("|")
    assert code == "0"
    return int(fence)


# ---- what operators read --------------------------------------------------------------------------

UNCOMMENTED = {
    "table": "SELECT c.relname FROM pg_class c WHERE relnamespace = 'holdfast'::regnamespace AND relkind IN ('r', 'S', 'c')"
              " AND obj_description(c.oid, 'pg_class') IS NULL"
              " AND obj_description((SELECT oid FROM pg_type t WHERE t.typrelid = c.oid), 'pg_type') IS NULL",
    "index": "SELECT c.relname FROM pg_class c JOIN pg_index i ON i.indexrelid = c.oid WHERE relnamespace ="
              " 'holdfast'::regnamespace AND NOT EXISTS (SELECT FROM pg_constraint n WHERE n.conindid = c.oid)"
              " AND obj_description(c.oid, 'pg_class') IS NULL",
    "column": "SELECT c.relname || '.' || attname FROM pg_attribute a JOIN pg_class c ON c.oid = attrelid WHERE attnum > 0"
               " AND relnamespace = 'holdfast'::regnamespace AND relkind IN ('r', 'c')"
               " AND col_description(c.oid, attnum) IS NULL",
    "function": "SELECT proname FROM pg_proc WHERE pronamespace = 'holdfast'::regnamespace"
                 " AND obj_description(oid, 'pg_proc') IS NULL",
}


@pytest.mark.parametrize("what", UNCOMMENTED)
def test_everything_has_a_comment(place, what):
    assert place.one("SELECT count(*) > 5 FROM pg_proc WHERE pronamespace = 'holdfast'::regnamespace") == "t"
    assert place.one(UNCOMMENTED[what]) == "", f"a {what} without a comment"


def test_an_operator_sees_who_holds_it(place):
    fence = grant(place.one, 1)
    assert place.one("SELECT name, fence, owner, locked_until > locked_at FROM holdfast.lock WHERE lock_id IS NOT NULL"
                     ) == f"a|{fence}|o1|t"


# ---- two at once ----------------------------------------------------------------------------------

def test_a_new_name_that_two_ask_for_at_once_has_one_row_and_one_holder(place):
    first, second = place.session(), place.session()
    first("BEGIN")
    first(acquire(1))
    second.send(acquire(2))
    assert not second.is_answered(0.5), "it did not wait for the first one's transaction"
    first("COMMIT")
    assert second.answer().split("|")[0] == "-1"
    assert place.one("SELECT count(*), min(owner) FROM holdfast.lock") == "1|o1"


def test_what_is_free_for_two_is_granted_to_one(place):
    place.one(release(1, grant(place.one, 1)))
    first, second = place.session(), place.session()
    first("BEGIN")
    first(acquire(2))
    second.send(acquire(3))
    assert not second.is_answered(0.5)
    first("COMMIT")
    assert second.answer().split("|")[0] == "-1"


def test_a_takeover_is_judged_again_once_it_has_the_row(place):
    """It was expired when it was first looked at; the holder's renewal, on its way, comes first."""
    fence = grant(place.one, 1, ttl_ms=1500)
    holder, other = place.session(), place.session()
    holder("BEGIN")
    assert holder(extend(1, fence, ttl_ms=3600000)) == "0"
    deadline = time.monotonic() + PATIENCE_S
    while place.one("SELECT clock_timestamp() >= locked_until FROM holdfast.lock") != "t":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    other.send(acquire(2))
    assert not other.is_answered(0.3)
    holder("COMMIT")
    assert other.answer().split("|")[0] == "-1"


@pytest.mark.parametrize("repeat", [lambda fence: extend(1, fence, ttl_ms=2000), lambda fence: acquire(1, ttl_ms=2000)],
                         ids=["extend", "acquire"])
def test_a_renewal_that_waited_for_the_row_ends_no_lease_earlier(place, repeat):
    """The bug (exclusion.md, row 6): it had read the clock before it waited, and wrote its own, earlier end."""
    fence = grant(place.one, 1, ttl_ms=2000)
    newer, late = place.session(), place.session()
    newer("BEGIN")
    assert newer(extend(1, fence, ttl_ms=3600000)) == "0"
    late.send(repeat(fence))
    assert not late.is_answered(0.5), "it did not wait for the row"
    newer("COMMIT")
    assert late.answer().split("|")[0] == "0"
    assert place.one("SELECT locked_until > clock_timestamp() + interval '50 minutes' FROM holdfast.lock") == "t"


def test_many_sessions_at_once_never_share_a_grant(place):
    """Each pair notes its fence between acquire and release, under the lock: never two at once, only growing."""
    place.one("CREATE TABLE seen (n serial, fence bigint, owner text); CREATE TABLE inside (one bool PRIMARY KEY)")
    work = """DO $x$ DECLARE a holdfast.answer; id bytea; got int := 0; BEGIN
      WHILE got < 40 LOOP
        id := decode(md5(random()::text || clock_timestamp()::text), 'hex');
        a := holdfast.acquire('a', id, 60000, 0, 'o', '', 0, '', '', '', '{}', '{}'); COMMIT;
        IF a.code = 0 THEN
          INSERT INTO inside VALUES (true); INSERT INTO seen (fence) VALUES (a.fence); COMMIT;
          DELETE FROM inside; COMMIT;
          a := holdfast.release('a', id, a.fence, '', '', '{}', '{}'); COMMIT;
          IF a.code <> 0 THEN RAISE 'lost'; END IF;
          got := got + 1;
        END IF;
      END LOOP; END $x$"""
    sessions = [place.session() for _ in range(4)]
    for session in sessions:
        session.send(work)
    for session in sessions:
        assert "ERROR" not in session.answer()
    assert place.one("SELECT count(*), count(DISTINCT fence) FROM seen") == "160|160"
    assert place.one("SELECT count(*) FROM (SELECT fence < lag(fence) OVER (ORDER BY n) AS back FROM seen) s WHERE back") == "0"
    assert place.one("SELECT count(*), sum(granted), sum(released), max(fence) = (SELECT max(fence) FROM seen) FROM holdfast.lock"
                     ) == "1|160|160|t"


def test_a_refusal_neither_waits_for_the_holders_transaction_nor_delays_it(place):
    fence = grant(place.one, 1)
    holder, other = place.session(), place.session()
    holder("BEGIN")
    holder(extend(1, fence))
    assert other(acquire(2)).split("|")[0] == "-1"
    other("BEGIN")
    other(acquire(3))
    assert "ERROR" not in holder("COMMIT")
    assert place.one(extend(1, fence)) == "0"


def test_refusals_at_the_same_time_neither_wait_nor_fail(place):
    """The bug: two rows of `denial`, a millisecond apart, were moved onto the same time, and an acquire failed with 23505."""
    place.one("CREATE OR REPLACE FUNCTION holdfast.clock() RETURNS timestamptz LANGUAGE sql VOLATILE"
              " AS $$ SELECT current_setting('test.now')::timestamptz $$")

    def refuse(session, token, ms):
        session(f"SET test.now = '2026-01-01 00:00:00.{ms}Z'")
        assert session(acquire(token)).split("|")[0] == "-1"

    place.one("SET test.now = '2026-01-01 00:00:00.000Z'")
    grant(place.one, 1)
    first, second = place.session(), place.session()
    for ms in (100, 200):  # the first ever, then one that counts in a row that is there
        first("BEGIN")
        refuse(first, 2, ms)
        refuse(second, 3, ms + 1)
        first("COMMIT")
        refuse(second, 4, ms + 1)
    assert place.one("SELECT sum(total), count(*) FROM holdfast.denial") == "6|2"
    second("SET test.now = '2026-01-01 00:00:02.000Z'")
    assert second(acquire(5)).split("|")[0] == "-1"
    assert place.one("SELECT sum(total), count(*) FROM holdfast.denial") == "7|1"


def test_refusals_counted_in_two_rows_become_no_more_events_than_in_one(place):
    def denied():
        return int(place.one("SELECT count(*) FROM holdfast.event WHERE kind = 'denied'"))

    place.one("CREATE OR REPLACE FUNCTION holdfast.clock() RETURNS timestamptz LANGUAGE sql VOLATILE"
              " AS $$ SELECT '2026-01-01 00:00:00Z'::timestamptz $$")
    grant(place.one, 1)
    first, second = place.session(), place.session()
    first("BEGIN")
    for i in range(12):
        first(acquire(2 + i))
    second(acquire(100))
    first("COMMIT")
    assert place.one("SELECT count(*) FROM holdfast.denial") == "2"
    assert denied() == 13
    for i in range(8):
        second(acquire(101 + i))
    assert denied() == 16
    assert place.one("SELECT sum(total) FROM holdfast.denial") == "21"


@SNAPSHOTS
def test_a_refusal_in_a_snapshot_does_not_fail_for_another_refusal(place, level):
    grant(place.one, 1)
    place.one(acquire(2))
    session = place.session()
    session(f"BEGIN ISOLATION LEVEL {level}; SELECT count(*) FROM holdfast.denial")
    place.one(acquire(3))
    assert session(acquire(4)).split("|")[0] == "-1"
    assert "ERROR" not in session("COMMIT")
    assert place.one("SELECT sum(total), count(*) FROM holdfast.denial") == "3|2"


@SNAPSHOTS
def test_refusals_in_snapshots_add_no_rows(place, level):
    grant(place.one, 1)
    session = place.session()
    for i in range(20):
        session(f"BEGIN ISOLATION LEVEL {level}")
        assert session(acquire(2 + i)).split("|")[0] == "-1"
        assert "ERROR" not in session("COMMIT")
    assert place.one("SELECT sum(total), count(*) FROM holdfast.denial") == "20|1"


def test_a_refusal_never_makes_a_grant_of_the_same_transaction_lazy(place):
    grant(place.one, 1)
    for first, then in ((acquire(2), acquire(3, name="b")), (acquire(4, name="c"), acquire(5))):
        session = place.session()
        session("BEGIN")
        session(first)
        session(then)
        assert session("SHOW synchronous_commit") == "on"
        session("COMMIT")
    session("BEGIN")
    session(acquire(6))
    assert session("SHOW synchronous_commit") == "off"


# ---- guards ---------------------------------------------------------------------------------------

@LEVELS
def test_a_guard_keeps_grants_away_but_not_renewals(place, level):
    fence = grant(place.one, 1, ttl_ms=1500)
    guard, other = place.session(), place.session()
    assert "ERROR" not in guard(f"BEGIN ISOLATION LEVEL {level}; SELECT holdfast.guard('a', {fence})")
    assert place.one(extend(1, fence)) == "0"
    assert place.one(release(1, fence)) == "0"
    other.send(acquire(2, wait_ms=-1))
    assert not other.is_answered(0.5), "granted under a guard"
    assert "ERROR" not in guard("COMMIT")
    assert other.answer().split("|")[0] == "0"


@SNAPSHOTS
def test_a_snapshot_hides_no_later_grant_and_no_renewal_disturbs_it(place, level):
    fence = grant(place.one, 1)
    renewed, superseded = place.session(), place.session()
    for session in (renewed, superseded):
        session(f"BEGIN ISOLATION LEVEL {level}; SELECT count(*) FROM holdfast.meta")
    place.one(extend(1, fence))
    assert "ERROR" not in renewed(f"SELECT holdfast.guard('a', {fence}); COMMIT")
    place.one(release(1, fence))
    grant(place.one, 2)
    assert "HF001" in superseded(f"SELECT holdfast.guard('a', {fence})")


def test_a_guard_that_stays_turns_acquirers_away_in_bounded_time(place):
    fence = grant(place.one, 1)
    guard, other = place.session(), place.session()
    guard(f"BEGIN; SELECT holdfast.guard('a', {fence})")
    place.one(release(1, fence))
    assert other(acquire(2)).split("|")[0] == "-1"
    assert other(acquire(3, wait_ms=-1)).split("|")[0] == "-1"
    assert place.one("SELECT owner FROM holdfast.waiter") == "o3"
    assert other(f"SELECT freed FROM holdfast.settle('a', '', '{{}}', '{{}}')") in ("0", ""), "a sweep waits for nobody"
    guard("COMMIT")
    assert other(acquire(3, wait_ms=-1)).split("|")[0] == "0"


# ---- an idle transaction --------------------------------------------------------------------------

PAIRS = """DO $x$ DECLARE id bytea; t timestamptz; first float8; last float8; BEGIN
  FOR k IN 1..{rounds} LOOP
    t := clock_timestamp();
    FOR i IN 1..{pairs} LOOP
      id := decode(lpad(to_hex(k * 1000000 + i), 32, '0'), 'hex');
      PERFORM holdfast.acquire('hot', id, 60000, 0, 'o', '', 0, '', '', '', '{{}}', '{{}}'); COMMIT;
      PERFORM holdfast.release('hot', id, 0, '', '', '{{}}', '{{}}'); COMMIT;
    END LOOP;
  END LOOP; END $x$"""
VISITED = """SELECT idx_tup_read + seq_scan * n_dead_tup FROM pg_stat_user_indexes JOIN pg_stat_user_tables USING (relid)
              WHERE indexrelname = 'lock_pkey'"""


def test_beside_an_idle_transaction_old_versions_are_not_visited(place):
    """Counted, not timed: how many index entries a pair reads must not grow with the pairs before it."""
    place.one(PAIRS.format(rounds=1, pairs=1))
    place.one("VACUUM ANALYZE holdfast.lock")  # now the server knows how small it is, and plans accordingly
    idle = place.session()
    idle("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM holdfast.lock")
    read = [0]
    for _ in range(3):
        assert "ERROR" not in place.one(PAIRS.format(rounds=1, pairs=1000))
        place.one("ANALYZE holdfast.lock")
        place.one("SELECT pg_stat_force_next_flush()")
        time.sleep(1.2)
        read.append(int(place.one(VISITED)))
    per_pair = [(after - before) / 1000 for before, after in zip(read, read[1:])]
    assert per_pair[-1] <= 1.5 * per_pair[0], per_pair
    assert place.one("SELECT count(*) FROM holdfast.lock") == "1"
    idle("COMMIT")


# ---- pruning --------------------------------------------------------------------------------------

def test_old_events_go_in_small_pieces(place):
    grant(place.one, 1)
    place.one("INSERT INTO holdfast.event SELECT nextval('holdfast.seq'), now() - interval '31 days', 1, 'denied', 'a', 'o', NULL, '', ''"
              " FROM generate_series(1, 25)")
    place.one("UPDATE holdfast.event SET at = now() - interval '31 days'")
    place.one(release(1, 0))
    assert [place.one("SELECT holdfast.prune(10)") for _ in range(4)] == ["10", "10", "6", "0"]
    assert place.one("SELECT kind FROM holdfast.event") == "released"
