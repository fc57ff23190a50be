"""schedule and work: executions that are recorded now and run by a worker."""
import json
import os
import re
import signal
import time
from datetime import datetime, timedelta, timezone

import pytest

from conftest import marked_processes, poll
from processes import child_named, children
from workflows import Workflows, said, sh, work

pytestmark = pytest.mark.stores("sqlite", "postgres", "http", "etcd")


def per_key(script, **settings):
    """Of which as many run at once as there are keys."""
    return sh(script, lock="{workflow}/{key}", **settings)


def schedule(hf, *args, **options):
    return hf.ok("schedule", *args, "--in", "0s", **options)


def drain(hf, *args, **options):
    done = hf("work", "--drain", *args, **options)
    assert done.returncode == 0, done.stderr
    return done


def running(flows, n):
    return poll(lambda: (found := flows.all("--state", "RUNNING")) and len(found) == n and found)


# ---- schedule -----------------------------------------------------------------------------------


def test_schedule_records_and_prints_the_id(hf):
    flows = Workflows(hf, pay=sh("true"))
    at = "2099-12-24T18:00:00.000Z"
    found = hf.ok("schedule", "pay", "--at", at, "--key", "k", "--priority", "7", "--input", "-", input="in")
    x = flows.only("pay")
    assert x["id"] == found
    assert (x["state"], x["runAt"], x["priority"], x["key"], x["attempt"]) == ("PENDING", at, 7, "k", 0)
    assert flows.show(found)["input"] == "in"


def test_schedule_in_so_long_and_with_jitter(hf):
    Workflows(hf, pay=sh("true"))
    before = datetime.now(timezone.utc)
    plain = hf.json("schedule", "pay", "--in", "1h")
    later = [hf.json("schedule", "pay", "--in", "1h", "--jitter", "10h") for _ in range(8)]
    after = datetime.now(timezone.utc)
    hour = timedelta(hours=1)
    tick = timedelta(milliseconds=1)
    assert before + hour - tick <= datetime.fromisoformat(plain["runAt"]) <= after + hour
    times = {datetime.fromisoformat(x["runAt"]) for x in later}
    assert len(times) > 1
    assert all(before + hour - tick <= t <= after + 11 * hour for t in times)


@pytest.mark.stores("sqlite")
@pytest.mark.parametrize("words", [[], ["--in", "1s", "--at", "2026-01-01T00:00:00Z"], ["--at", "tomorrow"],
                                   ["--at", "2026-01-01T00:00:00"], ["--in", "soon"]])
def test_schedule_needs_one_time(hf, words):
    flows = Workflows(hf, pay=sh("true"))
    refused = hf("schedule", "pay", *words)
    assert refused.returncode == 64 and refused.stdout == ""
    assert flows.all() == []


def test_schedule_with_a_key_twice_is_one(hf):
    flows = Workflows(hf, pay=sh("true"))
    first = schedule(hf, "pay", "--key", "k")
    again = hf("schedule", "pay", "--in", "2h", "--key", "k")
    assert (again.returncode, again.stdout.strip()) == (0, first)
    assert "nothing was recorded" in again.stderr
    assert hf("schedule", "pay", "--in", "2h", "--key", "k", "-q").stderr == ""
    assert hf("schedule", "pay", "--in", "0s", "--key", "k", "--input", "-", input="other").returncode == 65
    assert len(flows.all()) == 1


# ---- work ---------------------------------------------------------------------------------------


def test_a_scheduled_execution_is_run(hf):
    flows = Workflows(hf, pay=sh("cat; echo to-stderr >&2; env | grep ^HOLDFAST_ | sort; exit 7"))
    pending = schedule(hf, "pay", "--key", "evt 1", "--input", "-", input="the input\n")
    done = drain(hf)
    x = flows.show(pending)
    assert (x["state"], x["exitCode"], x["attempt"], x["key"]) == ("FAILED", 7, 1, "evt 1")
    lines = x["output"].splitlines()
    variables = dict(line.split("=", 1) for line in lines if line.startswith("HOLDFAST_"))
    assert {"the input", "to-stderr"} <= set(lines)
    assert variables["HOLDFAST_EXECUTION"] == pending
    assert variables["HOLDFAST_WORKFLOW"] == variables["HOLDFAST_NAME"] == "pay"
    assert variables["HOLDFAST_KEY"] == "evt 1" and variables["HOLDFAST_ATTEMPT"] == "1"
    assert int(variables["HOLDFAST_FENCE"]) == x["fence"]
    assert variables["HOLDFAST_STORE"] == hf.url
    assert re.search(rf"event=started execution={pending} workflow=pay key=\"evt 1\" attempt=1", done.stderr)
    assert re.search(rf"event=finished execution={pending} .*state=FAILED exit-code=7", done.stderr)
    assert hf.json("status", "pay")["state"] == "free"
    assert done.stdout == ""


@pytest.mark.stores("sqlite", "postgres", "http")  # without a warning
def test_quiet_and_json_lines(hf):
    Workflows(hf, pay=sh("true"))
    schedule(hf, "pay")
    assert drain(hf, "-q").stderr == ""  # cron would send it by mail
    schedule(hf, "pay")
    lines = [json.loads(line) for line in drain(hf, "--log-format", "json").stderr.splitlines()]
    assert [line["event"] for line in lines] == ["working", "started", "finished", "stopped"]


def test_detached_starts_are_run_too(hf):
    flows = Workflows(hf, pay=sh("echo $HOLDFAST_KEY"))
    detached = hf.ok("start", "--detach", "pay", "--key", "k")
    drain(hf)
    assert hf.ok("log", detached) == "k"
    assert flows.only("pay")["state"] == "SUCCESS"


def test_nothing_runs_before_its_time(hf):
    flows = Workflows(hf, pay=sh("true"))
    hf.ok("schedule", "pay", "--in", "1h")
    drain(hf)
    assert [x["state"] for x in flows.all()] == ["PENDING"]
    work(hf)
    soon = hf.ok("schedule", "pay", "--in", "700ms")
    x = flows.wait_for(soon, "SUCCESS")
    assert x["startedAt"] >= x["runAt"]
    assert len(flows.all("--state", "PENDING")) == 1


def test_one_at_a_time_by_priority_then_age(hf):
    flows = Workflows(hf, pay=sh("echo $HOLDFAST_KEY >> order"), other=sh("echo $HOLDFAST_KEY >> order"))
    for key, priority in (("a", 0), ("b", 5), ("c", 0), ("d", 5)):
        schedule(hf, "pay", "--key", key, "--priority", str(priority))
    drain(hf, "--concurrency", "1", cwd=hf.tmp_path)
    assert (hf.tmp_path / "order").read_text().split() == ["b", "d", "a", "c"]
    assert {x["state"] for x in flows.all()} == {"SUCCESS"}


def test_as_many_at_once_as_it_is_told(hf):
    """Each waits until five are there, and a sixth would be seen."""
    script = ("mkdir $HOLDFAST_KEY; until [ $(ls -d k* | wc -l) -ge 5 ]; do sleep 0.02; done; "
              "sleep 0.2; ls -d k* | wc -l; until [ -e go ]; do sleep 0.02; done")
    flows = Workflows(hf, pay=per_key(script))
    for i in range(7):
        schedule(hf, "pay", "--key", f"k{i}")
    worker = work(hf, "--concurrency", "5", cwd=hf.tmp_path)
    found = running(flows, 5)
    poll(lambda: all(hf.ok("log", x["id"]) == "5" for x in found))
    assert len(flows.all("--state", "PENDING")) == 2
    (hf.tmp_path / "go").touch()
    poll(lambda: len(flows.all("--state", "SUCCESS")) == 7)
    worker.terminate()
    assert worker.wait(timeout=60) == 0


def test_of_one_lock_one_runs_and_others_are_not_held_up(hf):
    flows = Workflows(hf, same=sh("mkdir here && sleep 0.05 && rmdir here"), free=per_key("true"))
    same = [schedule(hf, "same") for _ in range(6)]
    free = [schedule(hf, "free", "--key", f"k{i}") for i in range(6)]
    workers = [hf.start("work", "--concurrency", "4", cwd=hf.tmp_path) for _ in range(2)]
    for each in same + free:
        assert flows.wait_for(each, "SUCCESS", "FAILED", "ABORTED")["state"] == "SUCCESS"
    for worker in workers:
        worker.terminate()
        assert worker.wait(timeout=60) == 0


def test_only_the_workflows_that_are_named(hf):
    flows = Workflows(hf, a=sh("true"), b=sh("true"), c=sh("true"))
    for name in "abc":
        schedule(hf, name)
    drain(hf, "--workflow", "a", "--workflow", "c")
    assert {x["workflow"]: x["state"] for x in flows.all()} == {"a": "SUCCESS", "b": "PENDING", "c": "SUCCESS"}
    odd = hf("work", "--workflow", "bb")
    assert odd.returncode == 65 and "did you mean b?" in odd.stderr


def test_what_its_file_does_not_describe_is_left_alone(hf):
    flows = Workflows(hf, a=sh("true"), b=sh("true"))
    schedule(hf, "a")
    schedule(hf, "b")
    flows.write(a=sh("true"))
    drain(hf)
    assert {x["workflow"]: x["state"] for x in flows.all()} == {"a": "SUCCESS", "b": "PENDING"}


def test_max_is_the_number_of_executions(hf):
    flows = Workflows(hf, pay=per_key("true"))
    for i in range(5):
        schedule(hf, "pay", "--key", f"k{i}")
    assert hf("work", "--max", "3", "--concurrency", "8").returncode == 0
    assert len(flows.all("--state", "SUCCESS")) == 3
    assert len(flows.all("--state", "PENDING")) == 2


def test_timeout_ends_failed_with_124(hf):
    flows = Workflows(hf, pay=sh("sleep 1000 & sleep 1000", timeout="200ms"))
    schedule(hf, "pay")
    drain(hf)
    x = flows.only("pay")
    assert (x["state"], x["exitCode"], x["reason"]) == ("FAILED", 124, "timeout")
    assert not marked_processes(hf.mark)


def test_what_can_not_be_run_is_recorded(hf):
    flows = Workflows(hf, none={"command": ["/no/such/program"]}, dir={"command": ["/tmp"]},
                      where=sh("true", cwd="/no/such/directory"), who=sh("true", user="no-such-user"))
    for name in ("none", "dir", "where", "who"):
        schedule(hf, name)
    drain(hf)
    found = {x["workflow"]: x for x in flows.all()}
    assert [(found[n]["state"], found[n]["exitCode"], found[n]["reason"]) for n in ("none", "dir")] == [
        ("FAILED", 127, "could not be run"), ("FAILED", 126, "could not be run")]
    for name, words in (("where", "/no/such/directory"), ("who", "no such user")):
        assert (found[name]["state"], found[name]["exitCode"]) == ("FAILED", 126)
        assert words in found[name]["reason"]


def test_a_command_gets_nothing_of_the_workers(hf):
    """Three descriptors, no signal ignored or blocked, a process group of its own."""
    script = ("ls /proc/self/fd | wc -l; grep -E 'Sig(Blk|Ign)' /proc/self/status | cut -f 2; "
              "ps -o pgid= -p $$ | tr -d ' '; echo $$; pwd; echo $MODE")
    flows = Workflows(hf, pay=sh(script, cwd=str(hf.tmp_path), env={"MODE": "live"}))
    schedule(hf, "pay")
    drain(hf)
    n_fds, blocked, ignored, group, pid, cwd, mode = hf.ok("log", flows.only("pay")["id"]).split()
    assert int(n_fds) == 4  # ls has opened the directory
    assert int(blocked, 16) == 0
    assert int(ignored, 16) & (1 << (signal.SIGPIPE - 1)) == 0
    assert (group, cwd, mode) == (pid, str(hf.tmp_path), "live")


def test_much_output_is_counted_not_kept(hf):
    flows = Workflows(hf, pay=sh("echo first; head -c 30000000 /dev/zero; echo last"))
    schedule(hf, "pay")
    drain(hf)
    whole = flows.show(flows.only("pay")["id"])
    assert whole["output"].startswith("first\n") and whole["outputTail"].endswith("last\n")
    assert whole["outputSkipped"] == 30000011 - 2 * 65536


def test_output_can_be_followed(hf, tmp_path):
    flows = Workflows(hf, pay=sh(f"echo one; until [ -e {tmp_path}/go ]; do sleep 0.05; done; echo two"))
    pending = schedule(hf, "pay")
    work(hf)
    running(flows, 1)
    follower = hf.start("log", "--follow", pending)
    assert follower.stdout.readline() == "one\n"
    (tmp_path / "go").touch()
    assert follower.stdout.readline() == "two\n"
    assert follower.wait(timeout=60) == 0


def test_cancel_ends_one_and_not_the_others(hf):
    flows = Workflows(hf, pay=per_key("echo begun; sleep 1000", ttl="1h"))
    first, second = (schedule(hf, "pay", "--key", key) for key in "ab")
    worker = work(hf, "--concurrency", "2")
    for each in (first, second):
        poll(lambda each=each: hf.ok("log", each) == "begun")
    assert "asked to stop" in hf.ok("cancel", first)
    x = flows.wait_for(first, "ABORTED")
    assert (x["reason"], x["exitCode"]) == ("cancelled", 143)
    assert flows.show(second)["state"] == "RUNNING"
    hf.ok("cancel", second)
    flows.wait_for(second, "ABORTED")
    worker.terminate()
    assert worker.wait(timeout=60) == 0


def test_processes_that_are_left_behind_are_ended(hf):
    flows = Workflows(hf, pay=sh("setsid sh -c 'trap \"\" TERM; sleep 1000' & echo done", ttl="3s"))
    schedule(hf, "pay")
    done = drain(hf)
    assert flows.only("pay")["state"] == "SUCCESS"
    assert "left-behind=" in done.stderr
    assert not marked_processes(hf.mark)


@pytest.mark.stores("file")
def test_the_file_store_keeps_no_executions(hf):
    Workflows(hf, pay=sh("true"))
    for words in (["schedule", "pay", "--in", "1s"], ["work", "--drain"]):
        refused = hf(*words, timeout=20)
        assert refused.returncode == 69, words
        assert "the file store keeps locks only" in refused.stderr


@pytest.mark.stores("sqlite")
def test_a_bad_file_is_refused_at_the_start(hf):
    Workflows(hf, pay=sh("true")).path.write_text("workflows: {pay: {comand: [true]}}")
    refused = hf("work", "--drain")
    assert refused.returncode == 65 and "comand" in refused.stderr


# ---- signals ------------------------------------------------------------------------------------


def test_sigterm_lets_commands_finish(hf, tmp_path):
    flows = Workflows(hf, pay=per_key(f"until [ -e {tmp_path}/go ]; do sleep 0.05; done"))
    first = schedule(hf, "pay", "--key", "a")
    worker = work(hf)
    running(flows, 1)
    poll(lambda: "event=started" in said(hf))  # what has not begun yet is given back
    worker.terminate()
    poll(lambda: "event=stopping running=1" in said(hf))
    second = schedule(hf, "pay", "--key", "b")
    (tmp_path / "go").touch()
    assert worker.wait(timeout=60) == 0
    assert flows.show(first)["state"] == "SUCCESS"
    assert flows.show(second)["state"] == "PENDING"
    assert not marked_processes(hf.mark)


@pytest.mark.parametrize("on_lost, becomes", [("abort", "ABORTED"), ("retry", "PENDING")])
@pytest.mark.parametrize("how", ["grace", "twice"])
def test_a_worker_that_stops_ends_what_takes_too_long(hf, on_lost, becomes, how):
    flows = Workflows(hf, pay=sh("echo begun; sleep 1000 & sleep 1000", ttl="1h", **{"on-lost": on_lost}))
    pending = schedule(hf, "pay")
    worker = work(hf, "--grace", "0s" if how == "grace" else "1h")
    poll(lambda: hf.ok("log", pending) == "begun")
    worker.send_signal(signal.SIGINT)
    if how == "twice":
        poll(lambda: "event=stopping" in said(hf))
        worker.send_signal(signal.SIGINT)
    assert worker.wait(timeout=60) == 0
    x = flows.show(pending)
    assert (x["state"], x["reason"]) == (becomes, "its worker was stopped")
    assert hf.ok("log", pending) == "begun"  # also what is repeated has told how far it got
    assert "forced" not in {e["kind"] for e in hf.lines("events", "--name", "pay")}
    assert hf.json("status", "pay")["state"] == "free"
    assert not marked_processes(hf.mark)


def test_sighup_reads_the_workflows_again(hf):
    flows = Workflows(hf, pay=sh("echo old"))
    worker = work(hf)
    assert hf.ok("log", flows.wait_for(schedule(hf, "pay"), "SUCCESS")["id"]) == "old"
    flows.path.write_text("nonsense: [")
    worker.send_signal(signal.SIGHUP)
    poll(lambda: "event=not-reloaded" in said(hf))
    flows.write(pay=sh("echo new"), more=sh("echo more"))
    worker.send_signal(signal.SIGHUP)
    poll(lambda: "event=reloaded" in said(hf))
    assert hf.ok("log", flows.wait_for(schedule(hf, "pay"), "SUCCESS")["id"]) == "new"
    assert hf.ok("log", flows.wait_for(schedule(hf, "more"), "SUCCESS")["id"]) == "more"


# ---- what is killed -----------------------------------------------------------------------------


def test_a_killed_guardian_ends_its_command_and_no_other(hf):
    flows = Workflows(hf, pay=per_key("setsid sleep 1000 & echo begun; sleep 1000", ttl="1h"))
    pending = {schedule(hf, "pay", "--key", key): key for key in "ab"}
    worker = work(hf, "--concurrency", "2")
    for each in pending:
        poll(lambda each=each: hf.ok("log", each) == "begun")
    nursery = child_named(worker.pid, "holdfast-nurse")
    before = set(marked_processes(hf.mark))
    os.kill(children(nursery)[0], signal.SIGKILL)
    lost = poll(lambda: flows.all("--state", "ABORTED"))
    assert [(x["reason"], x["exitCode"]) for x in lost] == [("its guardian was killed", None)]
    assert len(flows.all("--state", "RUNNING")) == 1
    assert len(set(marked_processes(hf.mark)) & before) == len(before) - 4  # guardian, shell and its two
    worker.send_signal(signal.SIGTERM)
    poll(lambda: "event=stopping" in said(hf))
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(timeout=60) == 0
    assert not marked_processes(hf.mark)


def test_a_killed_nursery_ends_every_command_and_the_worker(hf):
    flows = Workflows(hf, pay=per_key("setsid sleep 1000 & echo begun; sleep 1000", ttl="1h"))
    pending = [schedule(hf, "pay", "--key", key) for key in "ab"]
    worker = work(hf, "--concurrency", "2")
    for each in pending:
        poll(lambda each=each: hf.ok("log", each) == "begun")
    os.kill(child_named(worker.pid, "holdfast-nurse"), signal.SIGKILL)
    assert worker.wait(timeout=60) == 76
    assert not marked_processes(hf.mark)
    assert {(x["state"], x["reason"]) for x in flows.all()} == {("ABORTED", "its guardian was killed")}
    assert "was killed, so every command was ended" in said(hf)


def test_a_guardian_that_is_stopped_is_killed_when_its_lease_is_lost(hf):
    flows = Workflows(hf, pay=sh("echo begun; sleep 1000", ttl="1h"))
    pending = schedule(hf, "pay")
    worker = work(hf)
    poll(lambda: hf.ok("log", pending) == "begun")
    nursery = child_named(worker.pid, "holdfast-nurse")
    os.kill(children(nursery)[0], signal.SIGSTOP)
    hf.ok("release", "--force", "--fence", str(flows.show(pending)["fence"]), "pay")
    assert flows.show(pending)["state"] == "ABORTED"
    poll(lambda: not children(nursery))
    poll(lambda: "event=lost" in said(hf))
    assert "no longer ours" in hf.ok("why", "pay")
    time.sleep(0.1)
    assert flows.show(pending)["exitCode"] is None
