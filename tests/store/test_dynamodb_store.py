"""The DynamoDB store: beside the seed's own clients, with clocks that are off, and when replies are lost.

Plain locks are tested on both emulators: dynalite has no transactions, so everything goes by single writes there.
"""
import os
import subprocess
import uuid
from datetime import datetime, timedelta, timezone

import pytest
from conftest import Holdfast, poll
from faults.hammer import Talker, assert_exclusive, read_logs, start_counter
from proxy import DynamoWatcher, LosesDynamoReply, Proxy
from servers import Dynalite, DynamoLocal, Missing, Scratch, npm_packages
from workflows import Workflows

HELD, LOST = 75, 76
FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"
EMULATORS = {"dynalite": Dynalite, "local": DynamoLocal}
running = {}  # one of each per process, started when it is first needed


@pytest.fixture(scope="module", autouse=True)
def stop_emulators():
    with Scratch() as scratch:
        running["scratch"] = scratch
        yield
    running.clear()


def emulator(kind):
    if kind not in running:
        try:
            running[kind] = EMULATORS[kind](running["scratch"])
        except Missing as missing:
            pytest.skip(str(missing))
        running[kind].start()
    return running[kind]


class Place:
    """A table of its own, the program on it, and a foreign client of the same table."""

    def __init__(self, server, tmp_path):
        self.server = server
        self.table = f"t{uuid.uuid4().hex[:12]}"
        self.tmp_path = tmp_path
        self.made = []
        self.hf = self.through(server.port)
        self.hf.ok("init")

    def through(self, port):
        hf = Holdfast(self.server.url(self.table, port), self.tmp_path)
        hf.env.update(AWS_ACCESS_KEY_ID="a", AWS_SECRET_ACCESS_KEY="b")
        self.made.append(hf)
        return hf

    def close(self):
        for hf in self.made:
            hf.close()

    def foreign(self, *args):
        home = npm_packages("store/dynamodb")
        done = subprocess.run(["node", f"{home}/foreign.mjs", self.server.endpoint(), self.table, *map(str, args)],
                              text=True, capture_output=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def item(self, name, sk="LOCK"):
        found = self.server.ask("GetItem", TableName=self.table, ConsistentRead=True, Key={"PK": {"S": f"LOCK#{name}"}, "SK": {"S": sk}})
        return {key: next(iter(value.values())) for key, value in found.get("Item", {}).items()}


@pytest.fixture(params=["dynalite", "local"])
def place(request, tmp_path):
    made = Place(emulator(request.param), tmp_path)
    yield made
    made.close()


@pytest.fixture
def local(tmp_path):
    made = Place(emulator("local"), tmp_path)
    yield made
    made.close()


# ---- the seed's clients


def test_a_foreign_holder_keeps_us_out(place):
    lock_id = place.foreign("put", "a", "them", 60)
    refused = place.hf("acquire", "a")
    assert refused.returncode == HELD and "held by them" in refused.stderr
    assert place.hf.json("status", "a")["owner"] == "them"
    assert place.item("a")["LockID"] == lock_id  # counting the refusal has not touched it
    assert place.foreign("delete", "a", "them", lock_id) == "done"
    assert place.hf.json("acquire", "a")["fence"] == 1


def test_we_keep_a_foreign_client_out(place):
    lease = place.hf.json("acquire", "a")
    assert place.foreign("put", "a", "them", 60) == "held"
    assert place.foreign("delete", "a", "them", "x") == "not yours"
    place.hf.ok("extend", "a", lease["token"], "--ttl", "50s")
    assert place.foreign("put", "a", "them", 60) == "held"
    place.hf.ok("release", "a", lease["token"])
    lock_id = place.foreign("put", "a", "them", 60)
    assert lock_id != "held"
    assert place.hf("acquire", "a").returncode == HELD
    assert place.hf("release", "a", lease["token"]).returncode == LOST
    assert place.item("a")["LockID"] == lock_id


def test_the_item_is_the_seeds(place):
    place.hf.ok("acquire", "a", "--ttl", "30s", "--owner", "me")
    item = place.item("a")
    assert (item["PK"], item["SK"], item["Owner"]) == ("LOCK#a", "LOCK", "me")
    for name in ("AcquiredAt", "ExpiresAt"):  # whole seconds: with a fraction it would not sort
        datetime.strptime(item[name], "%Y-%m-%dT%H:%M:%SZ")
    now = datetime.now(timezone.utc).timestamp()
    expires = datetime.strptime(item["ExpiresAt"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc).timestamp()
    assert now + 15 < expires < now + 40
    assert int(item["TTL"]) >= expires


def test_stale_locks_change_hands_both_ways(place):
    theirs = place.foreign("put", "a", "them", 1, 3600)  # DynamoDB Local has a reaper, which might be there before us
    lease = poll(lambda: (done := place.hf("acquire", "a", "--ttl", "1s")).returncode == 0 and done)
    assert "STALE LOCK" in lease.stderr and "them" in lease.stderr
    assert place.foreign("delete", "a", "them", theirs) == "not yours"
    poll(lambda: place.foreign("put", "a", "them", 60) != "held")
    assert place.hf("extend", "a", lease.stdout.strip(), "--ttl", "9s").returncode == LOST


def test_the_fence_grows_whatever_becomes_of_the_item(place):
    fences = []

    def take():
        lease = place.hf.json("acquire", "a")
        fences.append(lease["fence"])
        place.hf.ok("release", "a", lease["token"])

    take()
    take()
    assert fences == [1, 2]
    lock_id = place.foreign("put", "a", "them", 60)
    place.foreign("delete", "a", "them", lock_id)  # nothing is left of the item
    assert place.item("a") == {}
    take()
    place.foreign("wipe", "a")  # as the TTL reaper does
    take()
    held = place.hf.json("acquire", "a")
    fences.append(held["fence"])
    place.foreign("wipe", "a")
    assert place.hf("extend", "a", held["token"], "--ttl", "9s").returncode == LOST
    take()
    place.hf.ok("init", "--bump-epoch")
    take()
    assert fences == sorted(set(fences)), fences
    assert fences[-1] > 1000000


# ---- requests


def test_one_request_per_acquire(place):
    with Proxy(("127.0.0.1", place.server.port)) as proxy:
        watcher = proxy.watch(DynamoWatcher())
        client = Talker(place.through(proxy.port))
        client.acquire("a", bound=0)
        client.ask("release")
        watcher.actions.clear()
        for _ in range(5):
            client.acquire("a", bound=0)
            assert watcher.actions == ["UpdateItem"]
            client.ask("release")
            assert watcher.actions == ["UpdateItem", "UpdateItem"]
            watcher.actions.clear()


def test_many_pairs_lose_no_event_and_no_fence(place):
    client = Talker(place.hf)
    for expected in range(1, 41):  # more than the lock's item keeps
        assert client.acquire("a", bound=0)[1:2] == [str(expected)]
        client.ask("release")
    told = [(event["kind"], event["fence"]) for event in place.hf.lines("events", "--name", "a")]
    assert told == [(kind, fence) for fence in range(1, 41) for kind in ("acquired", "released")]
    assert {event["owner"] for event in place.hf.lines("events", "--name", "a")} == {place.hf.lines("events")[0]["owner"]}
    assert "EventLog" in place.item("a") and len(place.item("a")["EventLog"]) < 40


@pytest.mark.parametrize("n", [1, 2])
def test_a_lost_reply_is_asked_for_again(place, n):
    """1: the quick attempt, which is done; 2: the release."""
    place.hf.ok("run", "a", "--", "true")
    with Proxy(("127.0.0.1", place.server.port)) as proxy:
        fault = proxy.watch(LosesDynamoReply("UpdateItem", n=n))
        through = place.through(proxy.port)
        assert through("run", "a", "--", "true").returncode == 0
        assert fault.happened == 1
    assert [event["kind"] for event in place.hf.lines("events")] == ["acquired", "released"] * 2
    assert place.hf.json("status", "a")["state"] == "free"
    assert place.hf.json("acquire", "a")["fence"] == 3


def test_a_lost_reply_while_events_move_loses_none(place):
    """The release of a full log writes its events twice, then the lock; each of the three replies is lost once."""
    for n in (1, 2, 3):
        client = Talker(place.hf)
        for _ in range(16):
            client.acquire(f"a{n}", bound=0)
            client.ask("release")
        with Proxy(("127.0.0.1", place.server.port)) as proxy:
            fault = proxy.watch(LosesDynamoReply("PutItem", n=n))
            assert place.through(proxy.port)("run", f"a{n}", "--", "true").returncode == 0
            assert fault.happened == 1
        expected = [(kind, fence) for fence in range(1, 18) for kind in ("acquired", "released")]
        assert [(event["kind"], event["fence"]) for event in place.hf.lines("events", "--name", f"a{n}")] == expected
    assert len(place.hf.lines("events")) == 3 * len(expected)


def test_lost_replies_make_no_second_execution(local):
    flows = Workflows(local.hf, hello={"command": ["true"]})
    for n in (1, 2, 3):  # begin, spawned, finish
        with Proxy(("127.0.0.1", local.server.port)) as proxy:
            fault = proxy.watch(LosesDynamoReply("TransactWriteItems", n=n))
            through = local.through(proxy.port)
            through.env["HOLDFAST_CONFIG"] = local.hf.env["HOLDFAST_CONFIG"]
            assert through("start", "hello", "--key", f"k{n}").returncode == 0
            assert fault.happened == 1
    assert [x["state"] for x in flows.all()] == ["SUCCESS"] * 3


# ---- clocks


@pytest.mark.parametrize("off", ["+1h", "-1h"])
def test_a_clock_that_is_off_changes_nothing(place, off):
    def skewed(*args):
        return place.hf(*args, env={"LD_PRELOAD": FAKETIME, "FAKETIME": off, "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                                    "ASAN_OPTIONS": "verify_asan_link_order=0"})

    if not os.path.exists(FAKETIME):
        pytest.skip("libfaketime is not installed")
    taken = skewed("acquire", "a", "--ttl", "40s")
    assert taken.returncode == 0, taken.stderr
    expires = datetime.strptime(place.item("a")["ExpiresAt"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
    assert timedelta(seconds=5) < expires - datetime.now(timezone.utc) < timedelta(seconds=60)
    assert place.hf("acquire", "a").returncode == HELD
    assert place.foreign("put", "a", "them", 60) == "held"
    place.hf.ok("acquire", "b", "--ttl", "40s")
    assert skewed("acquire", "b").returncode == HELD
    assert skewed("release", "a", taken.stdout.strip()).returncode == 0
    assert place.hf.json("acquire", "a")["fence"] == 2


# ---- waiting and executions


def test_waiters_are_served_in_order(local):
    holder = local.hf.json("acquire", "a")
    waiters = []
    for n in range(3):
        waiters.append(local.hf.start("run", "--wait=2m", "--owner", f"w{n}", "a", "--", "true"))
        poll(lambda n=n: local.hf.json("status", "a")["waiters"] == n + 1)
    assert local.hf("acquire", "a").returncode == HELD
    local.hf.ok("release", "a", holder["token"])
    assert [waiter.wait(timeout=120) for waiter in waiters] == [0, 0, 0]
    order = [event["owner"] for event in local.hf.lines("events") if event["kind"] == "acquired"]
    assert order[1:] == ["w0", "w1", "w2"]


def test_many_processes_never_hold_it_at_once(local, tmp_path):
    (tmp_path / "counter").write_text("")
    counters = [start_counter(local.hf, tmp_path, n, 8) for n in range(4)]
    assert [counter.wait(timeout=300) for counter in counters] == [0] * 4
    noted = read_logs(tmp_path)
    assert len(noted) == 32
    assert_exclusive(noted)


def test_scheduled_work_runs_once_each(local, tmp_path):
    out = tmp_path / "out"
    flows = Workflows(local.hf, job={"command": ["sh", "-c", f"line=$(cat); echo $line >>{out}"], "lock": "{workflow}/{key}"})
    for n in range(6):
        local.hf.ok("schedule", "job", "--in", "0s", "--key", f"k{n}", "--input", "-", input=f"item{n}")
    workers = [local.hf.start("work", "--drain", "--concurrency", "2", stderr=subprocess.DEVNULL) for _ in range(2)]
    assert [worker.wait(timeout=300) for worker in workers] == [0, 0]
    assert sorted(out.read_text().split()) == [f"item{n}" for n in range(6)]
    assert {x["state"] for x in flows.all("--workflow", "job")} == {"SUCCESS"}


def test_what_was_kept_long_enough_is_removed(local):
    flows = Workflows(local.hf, job={"command": ["true"], "keep-count": 2})
    local.hf.ok("run", "--once", "K", "other", "--", "true")
    ids = [local.hf.json("start", "job", "--key", f"k{n}")["id"] for n in range(5)]
    assert [x["id"] for x in flows.all("--workflow", "job")] == ids[:2:-1]
    assert local.hf("show", ids[0]).returncode == 65
    again = local.hf.json("start", "job", "--key", "k0")  # with the execution its key is gone
    assert again["id"] not in ids and again["state"] == "SUCCESS"
    assert local.hf.json("start", "job", "--key", "k4")["id"] == ids[4]
    assert [x["state"] for x in flows.all("--workflow", "other")] == ["SUCCESS"]


def test_what_is_more_than_an_item_holds_is_refused(local, tmp_path):
    Workflows(local.hf, job={"command": ["true"]})
    (tmp_path / "big").write_bytes(os.urandom(500 * 1024))
    refused = local.hf("schedule", "job", "--in", "1h", "--input", str(tmp_path / "big"))
    assert refused.returncode == 65 and str(380 * 1024) in refused.stderr
    assert Workflows(local.hf).all() == []


# ---- the table


def test_init_makes_the_table(local):
    table = local.server.ask("DescribeTable", TableName=local.table)["Table"]
    assert table["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
    ttl = local.server.ask("DescribeTimeToLive", TableName=local.table)["TimeToLiveDescription"]
    assert (ttl["AttributeName"], ttl["TimeToLiveStatus"]) == ("TTL", "ENABLED")
    local.hf.ok("init")  # again


def test_without_its_table(place):
    missing = place.through(place.server.port)
    missing.env["HOLDFAST_STORE"] = place.server.url("nothing-here")
    refused = missing("acquire", "a")
    assert refused.returncode == 69 and "holdfast init" in refused.stderr


def test_a_newer_format_is_refused(place):
    place.server.ask("PutItem", TableName=place.table, Item={"PK": {"S": "HOLDFAST"}, "SK": {"S": "META"}, "Format": {"N": "2"}})
    refused = place.hf("acquire", "a")
    assert refused.returncode == 69 and "format 2" in refused.stderr
