"""What is done for many in one statement leaves behind what one after the other would have."""
import random

import pytest
from test_postgres_executions import begin, pending, read
from test_postgres_sql import identity, place  # noqa: F401


def virtual_clock(place):
    """holdfast.clock() shows what is set, as the conformance suite has it."""
    place.one("CREATE TABLE test_clock (now timestamptz NOT NULL); INSERT INTO test_clock VALUES (now());"
              "CREATE OR REPLACE FUNCTION holdfast.clock() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT now FROM public.test_clock'")


def pass_time(place, seconds):
    place.one(f"UPDATE test_clock SET now = now + {seconds} * interval '1 second'")


# ---- a long line ----------------------------------------------------------------------------------


class Waiter:
    def __init__(self, number, dice):
        self.number, self.priority = number, dice.choice([0, 0, 0, 0, 0, 0, 0, 0, -1, 1])
        self.wait_ms, self.ttl_ms = dice.choice([-1, 60000, 100000]), dice.choice([1000, 60000])
        self.channel = dice.choice(["", f"channel_{number}"])

    def alone(self, name):
        return (f"SELECT (a.code, a.queued, a.ahead, a.owner, a.waiters, a.locked_until_ms)::text FROM holdfast.acquire('{name}',"
                f" {identity(self.number)}, {self.ttl_ms}, {self.wait_ms}, 'o{self.number}', 'n', {self.priority}, '', '{self.channel}',"
                " '', '{}', '{}') AS a")


def together(waiters, name):
    def column(values, type):
        return f"ARRAY[{','.join(values)}]::{type}[]"

    columns = ", ".join([
        column([identity(w.number) for w in waiters], "bytea"), column([str(w.ttl_ms) for w in waiters], "bigint"),
        column([str(w.wait_ms) for w in waiters], "bigint"), column([f"'o{w.number}'" for w in waiters], "text"),
        column(["'n'" for w in waiters], "text"), column([str(w.priority) for w in waiters], "integer"),
        column(["''" for w in waiters], "text"), column([f"'{w.channel}'" for w in waiters], "text")])
    return ("SELECT (a.code, a.queued, a.ahead, a.owner, a.waiters, a.locked_until_ms)::text"
            f" FROM holdfast.wait_many('{name}', {columns}, '', '{{}}', '{{}}') AS a")


def line_of(place, name):
    return place.one("SELECT rank, ticket, ttl_ms, until, seen_at, queued_at, lock_id, owner, note, processes, channel"
                     f" FROM holdfast.waiter WHERE name = '{name}' ORDER BY rank, ticket")


@pytest.mark.parametrize("seed", range(3))
def test_a_line_is_the_same_whether_it_comes_alone_or_together(place, seed):
    """Name b is asked for by all at once, a by one after the other."""
    dice, made, n_together = random.Random(seed), [], 0
    virtual_clock(place)
    for name in "ab":
        place.one(f"SELECT fence FROM holdfast.acquire('{name}', {identity(1)}, 3600000, 0, 'h', '', 0, '', '', '', '{{}}', '{{}}')")
    for round in range(25):
        pass_time(place, dice.choice([0, 1, 5, 21] if round > 15 else [0, 1]))
        batch = [Waiter(100 + len(made) + i, dice) for i in range(dice.choice([0, 3, 10]))]
        made += batch
        batch += dice.sample(made[:-len(batch) or None], min(len(made) - len(batch), dice.choice([0, 5])))
        dice.shuffle(batch)
        if not batch:
            continue
        alone = [place.one(w.alone("a")) for w in batch]
        answers = place.one(together(batch, "b"))
        if answers:
            n_together += 1
            assert answers.splitlines() == alone
        else:
            for w in batch:
                place.one(w.alone("b"))
        assert line_of(place, "a") == line_of(place, "b")
        waiters = "SELECT waiters, tickets, lock_id FROM holdfast.lock WHERE name = '{}'"
        assert place.one(waiters.format("a")) == place.one(waiters.format("b"))
    assert n_together > 2, "they were never together"


def test_a_line_behind_a_lease_that_is_over_is_not_written_down_together(place):
    virtual_clock(place)
    place.one(Waiter(1, random.Random(1)).alone("a"))
    place.one("UPDATE holdfast.lock SET locked_until = now() + interval '1 hour'")
    waiters = [Waiter(2 + i, random.Random(1)) for i in range(20)]
    for w in waiters[:10]:
        place.one(w.alone("a"))
    assert len(place.one(together(waiters[10:], "a")).splitlines()) == 10
    place.one("UPDATE holdfast.lock SET locked_until = holdfast.clock()")
    assert place.one(together(waiters[10:], "a")) == ""


# ---- claims -----------------------------------------------------------------------------------------

# Claims some, and ends them, until nothing is left; so often at most.
WORK = """DO $x$ DECLARE c holdfast.claimed; a holdfast.answer; ids bytea[]; names text[]; mine bytea[]; fences bigint[]; n bigint; BEGIN
  FOR turn IN 1..2000 LOOP
    ids := ARRAY(SELECT decode(md5(random()::text || clock_timestamp()::text || i), 'hex') FROM generate_series(1, {batch}) AS i);
    names := '{{}}'; mine := '{{}}'; fences := '{{}}';
    BEGIN
      FOR c IN SELECT * FROM holdfast.claim(NULL, false, {batch}, ids, 60000, 'o', '', false, '') LOOP
        names := names || (c.execution).lock; mine := mine || c.lock_id; fences := fences || (c.execution).fence;
      END LOOP;
    EXCEPTION WHEN deadlock_detected THEN -- over names that both are the first to use; the store asks again, too
      names := '{{}}';
    END;
    COMMIT;
    IF cardinality(names) > 0 THEN
      INSERT INTO seen SELECT count(*) FROM holdfast.execution WHERE state = 'RUNNING';
      COMMIT;
      FOR i IN 1..cardinality(names) LOOP
        a := holdfast.finish_execution(names[i], mine[i], fences[i], 1, true, 0, '', NULL, false, NULL, 0, NULL, '', '{{}}', '{{}}');
        COMMIT;
        IF a.code <> 0 THEN RAISE 'lost'; END IF;
      END LOOP;
    END IF;
    EXIT WHEN NOT EXISTS (SELECT FROM holdfast.execution WHERE state = 'PENDING');
  END LOOP; END $x$"""


def work_off(place, batch, workers=6):
    place.one("CREATE TABLE seen (n bigint)")
    sessions = [place.session() for _ in range(workers)]
    for session in sessions:
        session.send(WORK.format(batch=batch))
    for session in sessions:
        answer = session.answer()
        assert "ERROR" not in answer, answer
    assert place.one("SELECT DISTINCT state, attempt FROM holdfast.execution") == "SUCCESS|1"
    assert place.one("SELECT count(*) = count(DISTINCT fence) FROM holdfast.execution") == "t"
    assert place.one("SELECT count(*) FROM holdfast.lock WHERE lock_id IS NOT NULL OR waiters > 0") == "0"
    kinds = place.one("SELECT string_agg(kind || ' ' || n, ', ' ORDER BY kind) FROM (SELECT kind, count(*) AS n FROM holdfast.event GROUP BY kind) AS k")
    n = place.one("SELECT count(*) FROM holdfast.execution")
    assert kinds == f"acquired {n}, finished {n}, started {n}"


@pytest.mark.parametrize("lock", ["'lock ' || i", "'lock ' || i % 17", "'one'"])
def test_claims_of_many_at_once_are_each_others_none(place, lock):
    pending(place, lock, n=120)
    work_off(place, 7)


def test_claims_of_many_respect_a_limit(place):
    pending(place, "'lock ' || i", n=40, concurrency=3)
    pending(place, "'other ' || i % 5", n=40, workflow="'v'", concurrency=2)
    work_off(place, 4)
    assert int(place.one("SELECT max(n) FROM seen")) <= 5


def claim(place, n, first=1000, columns="lock_id IS NOT NULL AS mine, (execution).lock, (execution).state"):
    ids = ",".join(identity(first + i) for i in range(n))
    return place.one(f"SELECT {columns} FROM holdfast.claim(NULL, false, {n}, ARRAY[{ids}], 60000, 'o', '', false, '')")


def test_who_claims_passes_over_what_another_is_about_to_claim(place):
    pending(place, "'lock ' || i", n=6)
    other = place.session()
    other("BEGIN")
    ids = ",".join(identity(i) for i in range(4))
    assert len(other(f"SELECT (execution).lock FROM holdfast.claim(NULL, false, 4, ARRAY[{ids}], 60000, 'o', '', false, '')").split("\n")) == 4
    assert claim(place, 4).splitlines() == ["t|lock 5|RUNNING", "t|lock 6|RUNNING"]
    other("ROLLBACK")
    assert claim(place, 9, 2000, "(execution).lock").splitlines() == ["lock 1", "lock 2", "lock 3", "lock 4"]


def test_a_claim_whose_answer_was_lost_is_found_by_its_tokens(place):
    pending(place, "'lock ' || i", n=6)
    first = claim(place, 3, columns="lock_id, (execution).lock, (execution).fence")
    ids = ",".join(identity(1000 + i) for i in range(3))
    again = f"SELECT lock_id, (execution).lock, (execution).fence FROM holdfast.claim(NULL, false, 3, ARRAY[{ids}], 60000, 'o', '', true, '')"
    assert sorted(place.one(again).splitlines()) == sorted(first.splitlines())
    assert place.one("SELECT count(*) FROM holdfast.execution WHERE state = 'RUNNING'") == "3"


def test_a_claim_that_is_asked_for_again_waits_for_the_first(place):
    """The bug (exclusion.md, row 15): it found nothing, claimed others, and left what the first one claimed RUNNING with nobody."""
    pending(place, "'lock ' || i", n=6)
    ids = ",".join(identity(1000 + i) for i in range(3))
    call = "SELECT (execution).lock FROM holdfast.claim(NULL, false, 3, ARRAY[{ids}], 60000, 'o', '', {again}, '')"
    first, second = place.session(), place.session()
    first("BEGIN")
    locks = first(call.format(ids=ids, again="false"))
    second.send(call.format(ids=ids, again="true"))
    assert not second.is_answered(0.5), "it did not wait for the first one's transaction"
    first("COMMIT")
    assert sorted(second.answer().splitlines()) == sorted(locks.splitlines())
    assert place.one("SELECT count(*) FROM holdfast.execution WHERE state = 'RUNNING'") == "3"


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("call, answer, becomes", [
    ("SELECT i, ((lease).execution).cancel_requested FROM holdfast.extend_many({leases}, {ttls}, {yes}, {no}, {null}, {zero}, {null})",
     "1|t", "RUNNING|t|f"),
    ("SELECT i, (ended).state FROM holdfast.finish_many({leases}, {one}, {yes}, {code}, {text}, {no}, {null}, {zero}, {null})",
     "1|SUCCESS", "SUCCESS|t|f"),
], ids=["spawned", "ended"])
def test_who_had_to_wait_for_a_cancel_knows_of_it(place, n, call, answer, becomes):
    pending(place, "'lock ' || i", n=n)
    claim(place, n)
    fills = {"ttls": "60000::bigint", "one": "1", "yes": "true", "no": "false", "code": "0", "text": "''::text", "zero": "0::bigint", "null": "NULL::bytea"}
    fills = {name: f"array_fill({value}, ARRAY[{n}])" for name, value in fills.items()}
    leases = (place.one(f"SELECT quote_literal(array_agg({what} ORDER BY name)::text) FROM holdfast.lock") for what in ("name", "lock_id", "fence"))
    whose = place.one("SELECT id FROM holdfast.execution WHERE lock = 'lock 1'")
    canceller, other = place.session(), place.session()
    assert canceller(f"BEGIN; SELECT code FROM holdfast.cancel_execution('lock 1', '{whose}', 'me', '', '{{}}', '{{}}')") == "0"
    other.send(call.format(leases=", ".join(leases), **fills))
    assert not other.is_answered(0.5), "it did not wait"
    canceller("COMMIT")
    assert min(other.answer().splitlines()) == answer
    assert place.one("SELECT state, cancel_requested, spawned FROM holdfast.execution WHERE lock = 'lock 1'") == becomes
    assert place.one("SELECT lock_id IS NULL FROM holdfast.lock WHERE name = 'lock 1'") == ("t" if "SUCCESS" in becomes else "f")


@pytest.mark.parametrize("analyzed", ["never", "empty", "full"])
def test_a_claim_reads_no_more_than_it_takes(place, analyzed):
    """However much is kept, parked, full, or due later; whatever the planner was told of it."""
    if analyzed == "empty":  # as they are whenever all is done
        place.one("VACUUM ANALYZE holdfast.pending, holdfast.running, holdfast.ended")
    place.one(begin(1, "x", concurrency=1))
    pending(place, "'parked'", n=3000, priority=1, parked="true")
    pending(place, "'full ' || i", n=3000, priority=2, concurrency=1)
    pending(place, "'later ' || i", n=3000, priority=3, due=1, workflow="'v'")
    pending(place, "'ready ' || i", n=3000, workflow="'u'")
    if analyzed == "full":
        place.one("VACUUM ANALYZE")
    before = read(place)
    assert len(claim(place, 20).splitlines()) == 20
    assert read(place) - before < 800
    before = read(place)
    locks, ids, fences = (place.one(f"SELECT array_agg({what} ORDER BY l.name) FROM holdfast.execution x JOIN holdfast.lock l ON l.name = x.lock"
                                    " WHERE x.state = 'RUNNING' AND x.workflow = 'u'") for what in ("l.name", "l.lock_id", "l.fence"))
    many = "array_fill({}, ARRAY[20])"
    fills = ["1", "true", "0", "''::text", "false", "NULL::bytea", "0::bigint", "NULL::bytea"]
    before = read(place)
    assert place.one(f"SELECT count(*) FROM holdfast.finish_many('{locks}', '{ids}', '{fences}', {', '.join(map(many.format, fills))})") == "20"
    assert read(place) - before < 400
