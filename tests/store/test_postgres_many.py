"""What is done for many in one statement leaves behind what one after the other would have."""
import random

import pytest
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
