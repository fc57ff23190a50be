"""Workers that are killed, stopped and continued at random, and at every numbered step.

Commands write a ledger (see crew.py). What must hold whatever is killed: nothing is lost, every item ends
once; with `on-lost: abort` nothing is ever started twice; with `retry` every repeat has a higher fence and
attempt, and every item succeeds.

HOLDFAST_LOAD=full runs 50 workers and 5,000 items; without it they are fewer.
"""
import os
import random
import signal
import time

import pytest

from conftest import FULL, PATIENCE_S, TTL_S, marked_processes, poll
from crew import Crew, Ledger, check_abort, check_retry, ended, is_settled, schedule_all
from processes import process_state
from workflows import Workflows

pytestmark = pytest.mark.stores("sqlite", "postgres")

# ---- load ---------------------------------------------------------------------------------------


def test_5_workers_100_items(hf):
    """Nobody is disturbed: each item runs once, at its first attempt."""
    ledger = Ledger(hf.tmp_path)
    flows = Workflows(hf, publish=ledger.workflow("sleep 0.01"))
    keys = [f"item-{i}" for i in range(100)]
    schedule_all(hf, "publish", keys)
    crew = Crew(hf, 5, "--concurrency", "4")
    poll(lambda: is_settled(flows))
    crew.dismiss()
    by_key = ended(flows, keys)
    check_abort(ledger, by_key)
    assert all((x["state"], x["attempt"]) == ("SUCCESS", 1) for x in by_key.values())


@pytest.mark.parametrize("on_lost", ["abort", "retry"])
def test_workers_killed_stopped_and_continued_at_random(hf, on_lost):
    # Renewals must be in time while nobody is stopped, with all of it on two processors.
    n_workers, n_items, each, ttl_s = (50, 5000, 1, 20) if FULL else (8, 300, 4, 2)
    seed = int(os.environ.get("HOLDFAST_SEED") or random.getrandbits(48))
    print("seed", seed)
    chance = random.Random(seed)
    ledger = Ledger(hf.tmp_path)
    flows = Workflows(hf, publish=ledger.workflow("sleep 0.4 & sleep 0.4; wait", ttl=f"{ttl_s}s", **{"on-lost": on_lost}))
    keys = [f"item-{i}" for i in range(n_items)]
    schedule_all(hf, "publish", keys)
    crew = Crew(hf, n_workers, "--concurrency", str(each))
    deadline = time.monotonic() + (60 if FULL else 20) * PATIENCE_S
    while not is_settled(flows):
        assert time.monotonic() < deadline
        crew.strike(chance, stop_s=ttl_s + 1)
        time.sleep(chance.uniform(0, 0.3))
    crew.dismiss()
    assert not marked_processes(hf.mark)
    print(dict(crew.struck))
    by_key = ended(flows, keys)
    if on_lost == "abort":
        check_abort(ledger, by_key)
        assert any(x["state"] == "ABORTED" for x in by_key.values()), "nothing was ever lost: this proves nothing"
    else:
        check_retry(ledger, by_key)
        assert any(x["attempt"] > 1 for x in by_key.values()), "nothing was ever repeated: this proves nothing"
    assert len(crew.struck) == 4 and all(crew.struck.values()), "not everything has happened: this proves nothing"


# ---- numbered steps -----------------------------------------------------------------------------

CLAIM, SPAWN, FINISH = 1, 2, 3  # the durable commits of one execution, in their order
# Where each failpoint leaves an execution whose worker is killed there, and whether it has run by then.
STEPS = {
    "before the claim is committed": (f"1@{CLAIM}", "PENDING", False),
    "the claim is committed, nobody was told": (f"2@{CLAIM}", "PENDING", False),
    "it is claimed": ("3", "PENDING", False),
    "before the mark is committed": (f"1@{SPAWN}", "PENDING", False),
    "the mark is committed, nobody was told": (f"2@{SPAWN}", "ABORTED", False),
    "it is marked": ("4", "ABORTED", False),
    "the command has ended": ("7", "ABORTED", True),
    "before the end is committed": (f"1@{FINISH}", "ABORTED", True),
    "the end is committed, nobody was told": (f"2@{FINISH}", "SUCCESS", True),
    "it has finished": ("8", "SUCCESS", True),
}


def sweep_until_none_runs(hf, flows):
    poll(lambda: not marked_processes(hf.mark))
    poll(lambda: hf("sweep").returncode == 0 and not flows.all("--state", "RUNNING"))


@pytest.mark.parametrize("on_lost", ["abort", "retry"])
@pytest.mark.parametrize("step", STEPS)
def test_a_worker_is_killed_at_a_step(hf, step, on_lost):
    failpoint, becomes, has_run = STEPS[step]
    if becomes == "ABORTED" and on_lost == "retry":
        becomes = "PENDING"
    ledger = Ledger(hf.tmp_path)
    hf.ok("init")
    flows = Workflows(hf, publish=ledger.workflow(**{"on-lost": on_lost}))
    schedule_all(hf, "publish", ["a"])
    # One that goes on to claim would have more to commit.
    killed = hf("work", "--drain", "--max", "1", env={"HOLDFAST_FAILPOINT": failpoint})
    assert killed.returncode == -signal.SIGKILL, "the failpoint was not passed"
    sweep_until_none_runs(hf, flows)
    x = flows.only("publish")
    assert x["state"] == becomes, x
    assert len(ledger.of("start")["a"]) == has_run
    assert hf("work", "--drain").returncode == 0
    by_key = ended(flows, ["a"])
    if on_lost == "abort":
        check_abort(ledger, by_key)
        assert by_key["a"]["state"] == ("SUCCESS" if becomes == "PENDING" else becomes)
    else:
        check_retry(ledger, by_key)
    assert hf.json("status", "publish/a")["state"] == "free"


@pytest.mark.parametrize("failpoint, becomes", [("5", "ABORTED"), ("6", "FAILED")])
def test_a_guardian_or_command_is_killed_before_exec(hf, failpoint, becomes):
    ledger = Ledger(hf.tmp_path)
    flows = Workflows(hf, publish=ledger.workflow())
    schedule_all(hf, "publish", ["a"])
    assert hf("work", "--drain", env={"HOLDFAST_FAILPOINT": failpoint}).returncode == 0
    x = flows.only("publish")
    assert (x["state"], x["attempt"]) == (becomes, 1)
    assert hf("work", "--drain").returncode == 0
    assert not ledger.of("start")


def test_a_zombies_finish_is_refused(hf):
    """Stopped with an end that is not recorded, until another worker has run the item; then continued."""
    ledger = Ledger(hf.tmp_path)
    flows = Workflows(hf, publish=ledger.workflow(ttl="1s", **{"on-lost": "retry"}))
    schedule_all(hf, "publish", ["a"])
    log = hf.tmp_path / "zombie.log"
    with open(log, "w") as out:
        zombie = hf.start("work", stderr=out, env={"HOLDFAST_FAILPOINT": "7:stop"})
    poll(lambda: process_state(zombie.pid) == "T")
    first = flows.only("publish")
    assert first["state"] == "RUNNING"
    other = hf.start("work")
    second = poll(lambda: (x := flows.only("publish"))["state"] == "SUCCESS" and x)
    assert second["fence"] > first["fence"] and second["attempt"] == 2
    zombie.send_signal(signal.SIGCONT)
    poll(lambda: "event=lost" in log.read_text())
    assert flows.only("publish") == second
    check_retry(ledger, ended(flows, ["a"]))
    for worker in (zombie, other):
        worker.terminate()
        assert worker.wait(timeout=PATIENCE_S) == 0


def test_a_stopped_worker_is_passed_over(hf):
    """Its guardians end the commands by the deadline, others run the items; it finds out when it is back."""
    ledger = Ledger(hf.tmp_path)
    flows = Workflows(hf, publish=ledger.workflow("[ $HOLDFAST_ATTEMPT -gt 1 ] || sleep 1000", ttl="2s",
                                                  **{"on-lost": "retry"}))
    keys = ["a", "b", "c"]
    schedule_all(hf, "publish", keys)
    log = hf.tmp_path / "stopped.log"
    with open(log, "w") as out:
        stopped = hf.start("work", "--concurrency", "3", stderr=out)
    poll(lambda: len(ledger.of("start")) == 3)
    stopped.send_signal(signal.SIGSTOP)
    crew = Crew(hf, 1, "--concurrency", "3")
    poll(lambda: is_settled(flows))
    by_key = ended(flows, keys)
    check_retry(ledger, by_key)
    stopped.send_signal(signal.SIGCONT)
    poll(lambda: log.read_text().count("event=lost") == 3)
    stopped.terminate()
    assert stopped.wait(timeout=PATIENCE_S) == 0
    crew.dismiss()
    assert ended(flows, keys) == by_key


def test_what_a_killed_worker_ran_is_not_started_before_its_tree_is_gone(hf):
    """Only the guardian can end the tree, and it is held up; no other worker may begin meanwhile."""
    ledger = Ledger(hf.tmp_path)
    flows = Workflows(hf, publish=ledger.workflow("[ $HOLDFAST_ATTEMPT -gt 1 ] || sleep 1000", ttl="1h",
                                                  **{"on-lost": "retry"}))
    schedule_all(hf, "publish", ["a"])
    crew = Crew(hf, 1)
    poll(lambda: ledger.of("start"))
    _, (guardian,) = crew.nursery(0)
    os.kill(guardian, signal.SIGSTOP)
    crew.workers[0].kill()
    crew.replace(0)
    for _ in range(20):  # each sweep would free what is dead
        hf.ok("sweep")
        assert hf.json("status", "publish/a")["alive"] is True
        time.sleep(0.05)
    os.kill(guardian, signal.SIGCONT)
    poll(lambda: is_settled(flows))
    crew.dismiss()
    check_retry(ledger, ended(flows, ["a"]))
    assert len(ledger.of("start")["a"]) == 2


def test_a_long_command_with_a_live_heartbeat_is_run_once(hf):
    ledger = Ledger(hf.tmp_path)
    flows = Workflows(hf, publish=ledger.workflow(f"sleep {2 * TTL_S}", ttl=f"{TTL_S}s", **{"on-lost": "retry"}))
    schedule_all(hf, "publish", ["a"])
    crew = Crew(hf, 3)
    poll(lambda: is_settled(flows))
    crew.dismiss()
    by_key = ended(flows, ["a"])
    check_retry(ledger, by_key)
    assert by_key["a"]["attempt"] == 1


@pytest.mark.stores("postgres")
def test_a_server_that_restarts_in_the_middle(start_postgres, make_holdfast):
    """Killed and stopped, and back within the ttl: workers wait for it, every item runs once."""
    server = start_postgres()
    hf = make_holdfast(server.create_database("work"))
    ledger = Ledger(hf.tmp_path)
    flows = Workflows(hf, publish=ledger.workflow("sleep 0.1"))
    keys = [f"item-{i}" for i in range(60)]
    schedule_all(hf, "publish", keys)
    crew = Crew(hf, 3, "--concurrency", "4")
    for at, end in ((10, server.kill), (30, server.stop)):
        poll(lambda at=at: len(ledger.of("end")) >= at)
        end()
        assert len(ledger.of("end")) < len(keys), "it was over before: this proves nothing"
        time.sleep(1)
        server.start()
    poll(lambda: is_settled(flows))
    crew.dismiss()
    by_key = ended(flows, keys)
    check_abort(ledger, by_key)
    assert all(x["state"] == "SUCCESS" for x in by_key.values()), [x for x in by_key.values() if x["state"] != "SUCCESS"]
