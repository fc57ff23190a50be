"""What workflows ask for, kept by real workers: the ledger (see crew.py) tells whether they did.

Turns at a lock that several workflows share, what becomes of lost attempts, retries, limits and overlap.
"""
import os
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone

import pytest

from conftest import TTL_S, poll
from crew import Crew, Ledger, check_abort, check_retry, ended, is_settled, schedule_all
from workflows import Workflows

pytestmark = pytest.mark.stores("sqlite", "postgres")

FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"


# ---- turns --------------------------------------------------------------------------------------


def test_nobody_waits_behind_a_workflow_that_no_worker_takes(hf):
    """Two workflows share a lock; what goes first there belongs to the one without a worker."""
    ledger = Ledger(hf.tmp_path)
    flows = Workflows(hf, ours=ledger.workflow(lock="shared"), theirs=ledger.workflow(lock="shared"))
    token = hf.ok("acquire", "shared")
    for key in ("a", "b"):
        hf.ok("schedule", "theirs", "--in", "0s", "--key", key, "--priority", "9")
    schedule_all(hf, "ours", ["c", "d", "e"])
    crew = Crew(hf, 2, "--workflow", "ours")
    hf.ok("release", "shared", token)
    poll(lambda: len(flows.all("--workflow", "ours", "--state", "SUCCESS")) == 3)
    assert set(ledger.of("start")) == {"c", "d", "e"}
    assert {x["state"] for x in flows.all("--workflow", "theirs")} == {"PENDING"}
    crew.dismiss()
    crew = Crew(hf, 1)  # takes both
    poll(lambda: len(flows.all("--state", "SUCCESS")) == 5)
    crew.dismiss()
    by_key = ended(flows, list("abcde"))
    assert all(ledger.of("end")[key] == [(x["fence"], 1)] for key, x in by_key.items())


# ---- lost attempts ------------------------------------------------------------------------------

# It hangs at its first attempt; what is called done-… has done its work by then, and verify can tell.
HANGS = """
case $HOLDFAST_KEY in done-*) touch %(done)s-$HOLDFAST_KEY;; esac
[ $HOLDFAST_ATTEMPT -gt 1 ] || sleep 1000
"""
KEYS = ["done-1", "done-2", "half-1", "half-2"]


def starts_after_loss(on_lost, key):
    """So often, and so it ends."""
    if on_lost == "abort":
        return 1, "ABORTED"
    return (1 if on_lost == "verify" and key.startswith("done") else 2), "SUCCESS"


@pytest.mark.parametrize("how", ["kill", "terminate"])
@pytest.mark.parametrize("on_lost", ["abort", "retry", "verify"])
def test_on_lost_decides(hf, on_lost, how):
    ledger = Ledger(hf.tmp_path)
    done = hf.tmp_path / "done"
    settings = {"on-lost": on_lost, "ttl": "1h"}
    if on_lost == "verify":
        settings["verify"] = ["sh", "-c", f"test -e {done}-$HOLDFAST_KEY"]
    flows = Workflows(hf, publish=ledger.workflow(HANGS % {"done": done}, **settings))
    schedule_all(hf, "publish", KEYS)
    crew = Crew(hf, 1, "--concurrency", "4", "--grace", "0s")
    poll(lambda: len(ledger.of("start")) == len(KEYS) and len(list(hf.tmp_path.glob("done-*"))) == 2)
    getattr(crew.workers[0], how)()
    crew.replace(0)
    poll(lambda: is_settled(flows))
    crew.dismiss()
    starts = ledger.of("start")
    for key, x in ended(flows, KEYS).items():
        n, state = starts_after_loss(on_lost, key)
        assert (len(starts[key]), x["state"]) == (n, state), (key, starts[key], x)
        assert sorted(set(starts[key])) == starts[key]  # fences and attempts grow


# ---- retries ------------------------------------------------------------------------------------


def test_retries_are_as_many_and_as_late_as_they_should_be(hf):
    """`never` always fails, `twice` succeeds at its third attempt, `once` at its first."""
    ledger = Ledger(hf.tmp_path)
    times = hf.tmp_path / "times"
    script = f"""date +"$HOLDFAST_KEY %s%3N" >> {times}
                 case $HOLDFAST_KEY-$HOLDFAST_ATTEMPT in never-*|twice-1|twice-2) exit 3;; esac"""
    flows = Workflows(hf, publish=ledger.workflow(script, retries=3, **{"retry-backoff": "200ms"}))
    schedule_all(hf, "publish", ["never", "twice", "once"])
    crew = Crew(hf, 3, "--concurrency", "2")
    poll(lambda: is_settled(flows))
    crew.dismiss()
    by_key = ended(flows, ["never", "twice", "once"])
    expected = {"never": (4, "FAILED", 3), "twice": (3, "SUCCESS", 0), "once": (1, "SUCCESS", 0)}
    began = {key: [] for key in expected}
    for line in times.read_text().splitlines():
        key, ms = line.split()
        began[key].append(int(ms))
    for key, (n, state, code) in expected.items():
        x = by_key[key]
        assert (x["attempt"], x["state"], x["exitCode"]) == (n, state, code), x
        attempts = [attempt for _, attempt in ledger.of("start")[key]]
        assert attempts == list(range(1, n + 1)) and len(began[key]) == n
        waited = [later - earlier for earlier, later in zip(began[key], began[key][1:])]
        assert all(ms >= 200 << i for i, ms in enumerate(waited)), (key, waited)


# ---- limits -------------------------------------------------------------------------------------


def test_a_limit_is_never_exceeded(hf):
    """Three slots, each a kernel lock; who finds none says so. Workers are killed meanwhile."""
    n_slots, keys = 3, [f"item-{i}" for i in range(40)]
    ledger = Ledger(hf.tmp_path)
    slots = hf.tmp_path / "slots"
    slots.mkdir()
    script = f"""
        for slot in {" ".join(map(str, range(n_slots)))} none; do
            [ $slot = none ] && {{ say overlap; break; }}
            exec 8> {slots}/$slot
            flock -n 8 && {{ echo x >> {slots}/used-$slot; break; }}
        done
        sleep 0.2"""
    flows = Workflows(hf, publish=ledger.workflow(script, concurrency=n_slots, ttl="5s", **{"on-lost": "retry"}))
    schedule_all(hf, "publish", keys)
    crew = Crew(hf, 4, "--concurrency", "4")
    for i, ended_by_then in enumerate((5, 15, 25)):
        poll(lambda n=ended_by_then: len(ledger.of("end")) >= n)
        crew.workers[i].kill()
        crew.replace(i)
    poll(lambda: is_settled(flows))
    crew.dismiss()
    check_retry(ledger, ended(flows, keys))
    assert len(list(slots.glob("used-*"))) == n_slots, "they never ran side by side: this proves nothing"


def test_what_is_past_due_is_begun_in_order_and_at_its_rate(hf):
    """After an outage. Nothing else waits for it."""
    interval_s, keys, others = 0.2, [f"late-{i:02}" for i in range(10)], [f"other-{i}" for i in range(5)]
    ledger = Ledger(hf.tmp_path)
    flows = Workflows(hf, late=ledger.workflow("sleep 0.3", rate="5/s"), other=ledger.workflow())
    now = datetime.now(timezone.utc)
    for i, key in enumerate(reversed(keys)):
        due = now - timedelta(hours=1, minutes=i)
        hf.ok("schedule", "late", "--at", due.strftime("%Y-%m-%dT%H:%M:%SZ"), "--key", key)
    schedule_all(hf, "other", others)
    assert hf("work", "--drain", "--concurrency", "4").returncode == 0
    by_key = ended(flows, keys + others)
    assert all((x["state"], x["attempt"]) == ("SUCCESS", 1) for x in by_key.values())
    began = [datetime.fromisoformat(by_key[key]["startedAt"]) for key in keys]
    between_s = [(later - earlier).total_seconds() for earlier, later in zip(began, began[1:])]
    assert min(between_s) >= interval_s - 0.002, between_s  # times are whole milliseconds
    assert max(datetime.fromisoformat(by_key[key]["startedAt"]) for key in others) < began[-1]


# ---- overlap ------------------------------------------------------------------------------------

BEGUN, RECORDED, REFUSED = 0, 0, 75


@pytest.fixture
def busy(hf):
    """busy(overlap, …): a worker that runs "a" of a workflow with one lock, until it is told to go on."""

    def make(overlap, **settings):
        ledger = Ledger(hf.tmp_path)
        go = hf.tmp_path / "go"
        script = f"exec 8> {hf.tmp_path}/one; flock -n 8 || say overlap; until test -e {go}; do sleep 0.02; done"
        flows = Workflows(hf, publish=ledger.workflow(script, lock="one", overlap=overlap, **settings))
        crew = Crew(hf, 2)
        hf.ok("start", "--detach", "publish", "--key", "a")
        poll(lambda: ledger.of("start"))
        return ledger, flows, crew, go.touch

    return make


def offer(hf, key):
    return hf("start", "--detach", "publish", "--key", key).returncode


def finish_all(flows, crew, go):
    go()
    poll(lambda: is_settled(flows))
    crew.dismiss()
    return {x["key"]: x["state"] for x in flows.all()}


@pytest.mark.parametrize("overlap, answer", [("reject", REFUSED), ("skip", 0)])
def test_overlap_refuses(hf, busy, overlap, answer):
    """Also from many at once; and when nothing runs any more, the same key is begun."""
    ledger, flows, crew, go = busy(overlap)
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(lambda i: offer(hf, f"b-{i}"), range(8))) == {answer}
    go()
    poll(lambda: is_settled(flows))
    assert offer(hf, "b-0") == BEGUN
    assert finish_all(flows, crew, go) == {"a": "SUCCESS", "b-0": "SUCCESS"}
    assert set(ledger.of("start")) == {"a", "b-0"}


def test_overlap_queues_up_to_a_limit(hf, busy):
    ledger, flows, crew, go = busy("queue", **{"queue-limit": 3})
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda i: offer(hf, f"b-{i}"), range(8)))
    assert sorted(answers) == [RECORDED] * 3 + [REFUSED] * 5
    recorded = {"a"} | {f"b-{i}" for i, answer in enumerate(answers) if answer == RECORDED}
    assert finish_all(flows, crew, go) == {key: "SUCCESS" for key in recorded}
    assert {key: len(at) for key, at in ledger.of("end").items()} == {key: 1 for key in recorded}


@pytest.mark.parametrize("overlap, first", [("replace", "SUCCESS"), ("cancel", "ABORTED")])
def test_overlap_replaces(hf, busy, overlap, first):
    """Of those that come while one runs, the newest is run; with cancel the one that runs is stopped."""
    ledger, flows, crew, go = busy(overlap)
    if overlap == "cancel":
        assert offer(hf, "b") == RECORDED
        poll(lambda: "b" in ledger.of("start"))
        assert finish_all(flows, crew, go) == {"a": first, "b": "SUCCESS"}
        assert set(ledger.of("end")) == {"b"}
        return
    assert [offer(hf, key) for key in "bcd"] == [RECORDED] * 3
    assert finish_all(flows, crew, go) == {"a": first, "b": "ABORTED", "c": "ABORTED", "d": "SUCCESS"}
    assert set(ledger.of("start")) == {"a", "d"}


# ---- clocks -------------------------------------------------------------------------------------


@pytest.mark.parametrize("step_s", [3600, -3600])
def test_a_clock_that_is_stepped_on_one_worker(hf, step_s):
    """In the middle of its commands, and back again: no lease is lost, nothing runs twice or early."""
    if not os.path.exists(FAKETIME):
        pytest.skip("libfaketime is not installed")
    offset = hf.tmp_path / "offset"
    offset.write_text("+0")
    fake = {"LD_PRELOAD": FAKETIME, "FAKETIME_TIMESTAMP_FILE": str(offset), "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1", "ASAN_OPTIONS": "verify_asan_link_order=0"}
    ledger = Ledger(hf.tmp_path)
    flows = Workflows(hf, publish=ledger.workflow("sleep 0.3", ttl=f"{TTL_S}s"))
    keys = [f"item-{i}" for i in range(24)]
    schedule_all(hf, "publish", keys)
    crew = Crew(hf, 1, "--concurrency", "2")
    log = hf.tmp_path / "odd.log"
    with open(log, "w") as out:
        odd = hf.start("work", "--concurrency", "2", env=fake, stdout=out, stderr=out)
    crew.workers.append(odd)
    for n, now in ((4, step_s), (12, 0)):
        poll(lambda n=n: len(ledger.of("end")) >= n)
        offset.write_text(f"{now:+d}")
    poll(lambda: is_settled(flows))
    by_key = ended(flows, keys)
    check_abort(ledger, by_key)
    assert all((x["state"], x["attempt"]) == ("SUCCESS", 1) for x in by_key.values()), by_key
    offset.write_text(f"{step_s:+d}")
    later = hf.json("schedule", "publish", "--in", "2s" if step_s < 0 else "30m", "--key", "later")["id"]
    if step_s < 0:
        x = flows.wait_for(later, "SUCCESS")  # by whoever has the right time
        assert x["startedAt"] >= x["runAt"]
    elif hf.scheme == "postgres":  # the server's clock counts; in a file the clock is that of whoever looks
        time.sleep(2)
        assert flows.show(later)["state"] == "PENDING"
    crew.dismiss()
    said = [datetime.fromisoformat(line.split()[0][len("at="):]) for line in log.read_text().splitlines()]
    assert max(said) - min(said) > timedelta(minutes=50), "its clock was never stepped: this proves nothing"
    assert any(x["owner"].endswith(f"/{odd.pid}") for x in by_key.values()), "it did nothing: this proves nothing"
