"""What makes a worker look for work: schedules, whoever records something, and the death of others."""
import os
import re
import signal
import statistics
import time
from datetime import datetime, timedelta, timezone

import pytest

from conftest import poll
from processes import read
from workflows import Workflows, said, sh, work

pytestmark = pytest.mark.stores("sqlite", "postgres", "etcd")

FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"


def works(hf, n=1):
    return poll(lambda: said(hf).count("event=working") >= n)


def moment(text):
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=timezone.utc)


def slot(ago):
    """The key of the slot of the minute that began `ago` minutes before this one."""
    at = datetime.now(timezone.utc).replace(second=0, microsecond=0) - timedelta(minutes=ago)
    return "cron:" + at.strftime("%Y-%m-%dT%H:%M:%S.000Z")


def hourly():
    """A schedule whose last slot was half an hour ago, and whose next one is as far away."""
    return f"{(datetime.now(timezone.utc).minute + 30) % 60} * * * *"


def states(flows):
    return [x["state"] for x in flows.all()]


def start_running(hf, flows, workflow, *args):
    id = hf.ok("schedule", workflow, "--in", "0s", *args)
    flows.wait_for(id, "RUNNING")
    return id


# ---- schedules ----------------------------------------------------------------------------------


def test_a_slot_that_was_missed_is_run_once_by_many(hf):
    flows = Workflows(hf, pay=sh("true", schedule=hourly()))
    hf.ok("schedule", "pay", "--in", "0s", "--key", slot(60))
    for _ in range(3):
        work(hf)
    works(hf, 3)
    poll(lambda: states(flows) == ["SUCCESS", "SUCCESS"])
    newest = flows.all()[0]
    assert newest["key"].startswith("cron:") and newest["attempt"] == 1
    assert "event=schedule" in said(hf)


def test_a_slot_that_was_missed_is_run_before_a_drain_ends(hf):
    flows = Workflows(hf, pay=sh("true", schedule="*/5 * * * *", **{"catch-up": "all"}))
    hf.ok("schedule", "pay", "--in", "0s", "--key", slot(60))
    assert hf("work", "--drain").returncode == 0
    found = flows.all()
    assert len(found) >= 12 and {x["state"] for x in found} == {"SUCCESS"}
    assert len({x["key"] for x in found}) == len(found)


def test_a_schedule_that_comes_with_a_reload(hf):
    flows, schedule = Workflows(hf, pay=sh("true")), hourly()
    hf.ok("schedule", "pay", "--in", "0s", "--key", slot(60))
    worker = work(hf)
    poll(lambda: states(flows) == ["SUCCESS"])
    flows.write(pay=sh("true", schedule=schedule))
    worker.send_signal(signal.SIGHUP)
    poll(lambda: states(flows) == ["SUCCESS", "SUCCESS"])
    # It is known how far it has got: nothing is missed again.
    flows.write(pay=sh("true", schedule=schedule), other=sh("true"))
    worker.send_signal(signal.SIGHUP)
    poll(lambda: said(hf).count("event=reloaded") == 2)
    id = hf.ok("schedule", "other", "--in", "0s")
    flows.wait_for(id, "SUCCESS")
    assert said(hf).count("event=schedule") == 1


@pytest.mark.stores("sqlite")
def test_a_slot_is_run_when_its_time_comes(hf):
    """By a clock that is put so that the next minute is near."""
    if not os.path.exists(FAKETIME):
        pytest.skip("libfaketime is not installed")
    flows = Workflows(hf, pay=sh("true", schedule="* * * * *"))
    ahead = (56 - datetime.now().second) % 60
    work(hf, env={"LD_PRELOAD": FAKETIME, "FAKETIME": f"+{ahead}s", "FAKETIME_DONT_FAKE_MONOTONIC": "1", "ASAN_OPTIONS": "verify_asan_link_order=0"})
    works(hf)
    x = poll(lambda: (found := flows.all("--state", "SUCCESS")) and found[-1])
    assert x["key"] == "cron:" + x["runAt"] and x["runAt"].endswith(":00.000Z")
    assert moment(x["startedAt"]) >= moment(x["runAt"])


# ---- soon ---------------------------------------------------------------------------------------


class Pace:
    """How fast this machine is now: by how long it takes to record something, from the shell."""

    SOON = 30  # of these; who only looks every few seconds needs more than a hundred, where nothing else is done

    def __init__(self, hf):
        self.hf, self.took_s = hf, []

    def schedule(self, workflow, *args):
        began = time.monotonic()
        id = self.hf.ok("schedule", workflow, *(args or ("--in", "0s")))
        self.took_s.append(time.monotonic() - began)
        return id

    def is_soon(self, delays_s):
        return statistics.median(delays_s) < self.SOON * statistics.median(self.took_s)


# ---- sleeping -----------------------------------------------------------------------------------


def delays_s(flows, pace, n):
    """How long it took from recording until it was started, one after the other."""
    found = []
    for _ in range(n):
        x = flows.wait_for(pace.schedule("quick"), "SUCCESS")
        found.append((moment(x["startedAt"]) - moment(x["createdAt"])).total_seconds())
    return found


def test_a_sleeping_worker_is_woken(hf):
    """One that only looked every 5 to 10 seconds would be late, most of the time."""
    flows, pace = Workflows(hf, quick=sh("true")), Pace(hf)
    work(hf)
    works(hf)
    delays = delays_s(flows, pace, 7)
    assert pace.is_soon(delays), (delays, pace.took_s)


def test_a_busy_worker_is_not_woken_in_the_place_of_another(hf):
    flows = Workflows(hf, quick=sh("true"), slow=sh("exec sleep 1000", lock="{workflow}/{key}"))
    for i in range(3):
        work(hf, "--concurrency", "1", "--workflow", "slow", "--workflow", "quick", "--grace", "0s")
        works(hf, i + 1)
        start_running(hf, flows, "slow", "--key", str(i))
    work(hf)
    works(hf, 4)
    pace = Pace(hf)
    delays = delays_s(flows, pace, 7)
    assert pace.is_soon(delays), (delays, pace.took_s)


def test_what_is_due_later_is_run_then(hf):
    flows, pace = Workflows(hf, quick=sh("true")), Pace(hf)
    work(hf)
    works(hf)
    late = []
    for _ in range(3):
        x = flows.wait_for(pace.schedule("quick", "--in", "1s"), "SUCCESS")
        assert moment(x["startedAt"]) >= moment(x["runAt"])
        late.append((moment(x["startedAt"]) - moment(x["runAt"])).total_seconds())
    assert pace.is_soon(late), (late, pace.took_s)


def test_a_worker_that_was_stopped_while_it_slept_is_passed_over_or_replaced(hf):
    """What it was woken for is found by another one, at the latest when that looks by itself."""
    flows = Workflows(hf, quick=sh("true"))
    sleeper = work(hf)
    works(hf)
    work(hf)
    works(hf, 2)
    sleeper.send_signal(signal.SIGSTOP)
    try:
        delays_s(flows, Pace(hf), 3)
    finally:
        sleeper.send_signal(signal.SIGCONT)


def test_what_is_due_for_others_costs_a_sleeping_worker_nothing(hf):
    """It must not run in circles because of something that it does not claim."""
    flows = Workflows(hf, quick=sh("true"), other=sh("true"))
    hf.ok("schedule", "other", "--in", "0s")
    worker = work(hf, "--workflow", "quick")
    works(hf)

    def ticks():
        with open(f"/proc/{worker.pid}/stat") as file:
            return sum(map(int, file.read().rsplit(")", 1)[1].split()[11:13]))

    before = ticks()
    time.sleep(3)
    assert ticks() - before < 100, "of 300"
    assert flows.only("other")["state"] == "PENDING"


# ---- the death of others ------------------------------------------------------------------------


def watched_by(worker):
    """The pids that it watches."""
    found = set()
    for fd in os.listdir(f"/proc/{worker.pid}/fdinfo"):
        found |= {int(pid) for pid in re.findall(r"^Pid:\s*(-?\d+)", read(worker.pid, f"fdinfo/{fd}"), re.M)}
    return found


@pytest.mark.parametrize("busy", [False, True])
def test_what_a_killed_worker_ran_is_taken_over_at_once(hf, busy):
    """Not when the next one sweeps, in 4 to 8 seconds, nor when the ttl is over; but when nothing of it lives."""
    script = 'test "$HOLDFAST_ATTEMPT" = 2 || exec sleep 1000'
    flows = Workflows(hf, item=sh(script, ttl="5m", **{"on-lost": "retry"}), slow=sh("exec sleep 1000"))
    took, pace = [], Pace(hf)
    for _ in range(3):
        victim = work(hf, "--workflow", "item")
        id = pace.schedule("item")
        flows.wait_for(id, "RUNNING")
        other = work(hf, "--concurrency", "2", "--grace", "0s")
        if busy:
            start_running(hf, flows, "slow")
        poll(lambda: victim.pid in watched_by(other))
        killed = datetime.now(timezone.utc)
        victim.kill()
        victim.wait()
        x = flows.wait_for(id, "SUCCESS")
        assert x["attempt"] == 2
        took.append((moment(x["startedAt"]) - killed).total_seconds())
        other.terminate()
        other.wait()
    assert pace.is_soon(took), (took, pace.took_s)


def test_a_worker_does_not_watch_itself(hf):
    flows = Workflows(hf, slow=sh("exec sleep 1000", lock="{workflow}/{key}"))
    worker = work(hf, "--workflow", "slow", "--concurrency", "1", "--grace", "0s")
    start_running(hf, flows, "slow", "--key", "a")
    other = work(hf, "--concurrency", "1", "--grace", "0s")
    start_running(hf, flows, "slow", "--key", "b")
    poll(lambda: worker.pid in watched_by(other) and other.pid in watched_by(worker))
    assert other.pid not in watched_by(other)


# ---- on-lost: verify ----------------------------------------------------------------------------


def lose_one(hf, tmp_path, verify, **settings):
    """An execution whose worker was stopped when its command may have done something; the command succeeds from now on."""
    started, ready = tmp_path / "started", tmp_path / "ready"
    script = f"echo >> {started}; test -e {ready} || exec sleep 1000"
    flows = Workflows(hf, pay=sh(script, verify=["sh", "-c", verify], **{"on-lost": "verify", **settings}))
    worker = work(hf, "--grace", "0s")
    id = hf.ok("schedule", "pay", "--in", "0s", "--input", "-", input="the input")
    poll(lambda: started.exists() and started.read_text())
    worker.terminate()
    worker.wait()
    ready.touch()
    assert flows.show(id)["state"] == "PENDING"
    return flows, id, lambda: len(started.read_text())


def test_what_verify_finds_done_is_done(hf, tmp_path):
    asked = tmp_path / "asked"
    flows, id, n_started = lose_one(hf, tmp_path, f"cat > {asked}; echo found it")
    assert hf("work", "--drain").returncode == 0
    x = flows.show(id)
    assert (x["state"], x["exitCode"], n_started()) == ("SUCCESS", 0, 1)
    assert "verify" in x["reason"] and asked.read_text() == "the input"


def test_what_verify_finds_not_done_is_run(hf, tmp_path):
    flows, id, n_started = lose_one(hf, tmp_path, "exit 1")
    done = hf("work", "--drain")
    x = flows.show(id)
    assert (x["state"], x["attempt"], n_started()) == ("SUCCESS", 2, 2), done.stderr
    assert "event=verifying" in done.stderr and "event=started" in done.stderr


@pytest.mark.parametrize("verify, says", [("exit 7", "verify ended with 7"), ("kill -9 $$", "verify ended with 137")])
def test_what_verify_can_not_tell_is_aborted(hf, tmp_path, verify, says):
    flows, id, n_started = lose_one(hf, tmp_path, verify)
    assert hf("work", "--drain").returncode == 0
    x = flows.show(id)
    assert (x["state"], n_started()) == ("ABORTED", 1) and says in x["reason"], x


def test_verify_that_is_no_more(hf, tmp_path):
    flows, id, n_started = lose_one(hf, tmp_path, "exit 1")
    flows.write(pay=sh("true"))
    assert hf("work", "--drain").returncode == 0
    x = flows.show(id)
    assert x["state"] == "ABORTED" and "no verify" in x["reason"] and n_started() == 1


def test_a_worker_that_is_killed_while_it_verifies(hf, tmp_path):
    """Then it is asked again, by another one."""
    asked = tmp_path / "asked"
    flows, id, n_started = lose_one(hf, tmp_path, f"test -e {asked} && exit 1; touch {asked}; exec sleep 1000")
    worker = work(hf)
    poll(asked.exists)
    worker.kill()
    worker.wait()
    work(hf)
    x = flows.wait_for(id, "SUCCESS")
    assert (x["attempt"], n_started(), x["reason"]) == (3, 2, None)
