"""kill -9 at every numbered step of an execution's life (src/base/failpoint.h).

What must hold whatever is killed: an acknowledged execution is not lost and ends once (I6), its key
maps to it (I5), nothing stays RUNNING without a lease after a sweep (I7), and no command runs twice
unless its workflow asked for that.
"""
import os
import signal
import time

import pytest

from conftest import marked_processes, poll
from processes import process_state
from workflows import Workflows

pytestmark = pytest.mark.stores("sqlite", "postgres")

BEGIN, SPAWN, FINISH = 1, 2, 3  # the durable commits of one `start`, in their order
# Where each failpoint leaves an execution: is there one, may its command have run, what it becomes.
STEPS = {
    "before begin is committed": (f"1@{BEGIN}", None),
    "begin is committed, nobody was told": (f"2@{BEGIN}", "PENDING"),
    "it has begun": ("3", "PENDING"),
    "before the mark is committed": (f"1@{SPAWN}", "PENDING"),
    "the mark is committed, nobody was told": (f"2@{SPAWN}", "ABORTED"),
    "it is marked": ("4", "ABORTED"),
    "the command has ended": ("7", "ABORTED"),
    "before the end is committed": (f"1@{FINISH}", "ABORTED"),
    "the end is committed, nobody was told": (f"2@{FINISH}", "SUCCESS"),
    "it has finished": ("8", "SUCCESS"),
}
RAN = {"the command has ended", "before the end is committed", "the end is committed, nobody was told",
       "it has finished"}


def prepare(hf):
    """The store is made by somebody else, so that its own commits are not counted."""
    hf.ok("init")
    log = hf.tmp_path / "ran"
    log.touch()
    return log


def marks(log):
    return log.read_text().split()


def workflow(log, **settings):
    return {"command": ["sh", "-c", f"echo $HOLDFAST_EXECUTION >> {log}; echo done"], **settings}


def sweep_until_none_runs(hf, flows):
    poll(lambda: not marked_processes(hf.mark))
    poll(lambda: hf("sweep").returncode == 0 and not flows.all("--state", "RUNNING"))


@pytest.mark.parametrize("step", STEPS)
def test_the_wrapper_is_killed(hf, step):
    failpoint, becomes = STEPS[step]
    log = prepare(hf)
    flows = Workflows(hf, pay=workflow(log))
    killed = flows.start("pay", "--key", "k", env={"HOLDFAST_FAILPOINT": failpoint})
    assert killed.returncode == -signal.SIGKILL, "the failpoint was not passed"
    sweep_until_none_runs(hf, flows)
    found = flows.all()
    assert len(found) == (0 if becomes is None else 1)
    if found:
        assert found[0]["state"] == becomes, found[0]
        assert found[0]["key"] == "k"
    assert len(marks(log)) == (1 if step in RAN else 0)
    # The same event again: what was never begun or is PENDING runs now, anything else does not.
    again = flows.start("pay", "--key", "k")
    runs_now = becomes in (None, "PENDING")
    assert again.stdout == ("done\n" if runs_now else "")
    x = flows.only("pay")
    assert x["state"] == ("SUCCESS" if runs_now else becomes)
    assert len(marks(log)) == len(set(marks(log))) == (1 if runs_now or step in RAN else 0)
    assert hf.json("status", "pay")["state"] == "free"


@pytest.mark.parametrize("failpoint", ["5", "6"])
def test_the_guardian_or_the_command_is_killed_before_exec(hf, failpoint):
    log = prepare(hf)
    flows = Workflows(hf, pay=workflow(log))
    done = flows.start("pay", "--key", "k", env={"HOLDFAST_FAILPOINT": failpoint})
    assert done.returncode in (76, 137)
    sweep_until_none_runs(hf, flows)
    assert flows.only("pay")["state"] in ("FAILED", "ABORTED")
    assert flows.start("pay", "--key", "k").stdout == ""
    assert marks(log) == []


def test_on_lost_retry_repeats_it_and_counts(hf):
    log = prepare(hf)
    flows = Workflows(hf, pay=workflow(log, **{"on-lost": "retry", "retries": 1}))
    assert flows.start("pay", "--key", "k", env={"HOLDFAST_FAILPOINT": "7"}).returncode == -signal.SIGKILL
    sweep_until_none_runs(hf, flows)
    assert flows.only("pay")["state"] == "PENDING"
    assert flows.start("pay", "--key", "k", env={"HOLDFAST_FAILPOINT": "7"}).returncode == -signal.SIGKILL
    sweep_until_none_runs(hf, flows)
    x = flows.only("pay")
    assert (x["state"], x["attempt"]) == ("ABORTED", 2)
    assert marks(log) == [x["id"]] * 2


def test_on_lost_verify_is_never_silently_repeated(hf):
    log = prepare(hf)
    flows = Workflows(hf, pay=workflow(log, **{"on-lost": "verify", "verify": ["true"]}))
    assert flows.start("pay", "--key", "k", env={"HOLDFAST_FAILPOINT": "7"}).returncode == -signal.SIGKILL
    sweep_until_none_runs(hf, flows)
    assert flows.only("pay")["state"] == "PENDING"
    assert flows.start("pay", "--key", "k").returncode == 75
    assert flows.only("pay")["state"] == "PENDING"
    assert len(marks(log)) == 1


def test_a_running_command_dies_with_its_wrapper_and_is_aborted(hf):
    flows = Workflows(hf, pay={"command": ["sh", "-c", "echo begun; sleep 1000 & sleep 1000"]})
    started = hf.start("start", "pay", "--key", "k")
    assert started.stdout.readline() == "begun\n"
    started.kill()
    started.wait(timeout=60)
    sweep_until_none_runs(hf, flows)
    x = flows.only("pay")
    assert (x["state"], x["reason"]) == ("ABORTED", "holder-died")


def test_a_zombies_finish_is_refused(hf):
    """Stopped with its end not recorded until its lease is over, then continued."""
    log = prepare(hf)
    flows = Workflows(hf, pay=workflow(log, ttl="1s"))
    stopped = hf.start("start", "pay", "--key", "k", env={"HOLDFAST_FAILPOINT": "7:stop"})
    poll(lambda: process_state(stopped.pid) == "T")
    first = flows.only("pay")
    assert first["state"] == "RUNNING"
    poll(lambda: hf("sweep").returncode == 0 and flows.only("pay")["state"] != "RUNNING")
    assert flows.only("pay")["state"] == "ABORTED"
    other = flows.start("pay", "--key", "k2")
    assert other.stdout == "done\n"
    os.kill(stopped.pid, signal.SIGCONT)
    assert stopped.wait(timeout=60) == 76
    by_key = {x["key"]: x for x in flows.all()}
    assert by_key["k"]["state"] == "ABORTED" and by_key["k"]["exitCode"] is None
    assert by_key["k2"]["state"] == "SUCCESS"
    assert len(marks(log)) == 2


def test_many_starts_with_one_key_are_one_execution(hf):
    log = prepare(hf)
    flows = Workflows(hf, pay=workflow(log))
    started = [hf.start("start", "--wait", "pay", "--key", "k") for _ in range(20)]
    for each in started:
        assert each.wait(timeout=100) in (0, 75)
    assert len(marks(log)) == 1
    assert flows.only("pay")["state"] == "SUCCESS"


def test_kills_at_random_moments(hf):
    """Twenty runs of one workflow, each killed somewhere; each key's command runs at most once."""
    log = prepare(hf)
    flows = Workflows(hf, pay={"command": ["sh", "-c", f"echo $HOLDFAST_EXECUTION >> {log}; sleep 0.02"]})
    n_killed = 0
    for i in range(20):
        started = hf.start("start", "--wait", "pay", "--key", f"k{i}")
        time.sleep(0.004 * i)
        started.kill()
        n_killed += started.wait(timeout=60) == -signal.SIGKILL
    assert n_killed > 0
    sweep_until_none_runs(hf, flows)
    before = {x["key"]: x for x in flows.all()}
    for i in range(20):
        flows.start("--wait", "pay", "--key", f"k{i}")
    sweep_until_none_runs(hf, flows)
    after = {x["key"]: x for x in flows.all()}
    assert sorted(after) == sorted(f"k{i}" for i in range(20))
    for key, x in before.items():
        assert after[key]["id"] == x["id"]
        assert x["state"] == "PENDING" or after[key]["state"] == x["state"]
    assert len(marks(log)) == len(set(marks(log)))
