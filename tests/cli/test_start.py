"""start and the commands that look at executions."""
import base64
import json
import os
import re
import signal
import time

import pytest

from conftest import marked_processes, poll
from processes import read
from workflows import Workflows, sh

pytestmark = pytest.mark.stores("sqlite", "postgres", "http", "etcd")

EXECUTION = ["id", "workflow", "state", "key", "runAt", "priority", "attempt", "fence", "owner", "createdAt",
             "startedAt", "finishedAt", "exitCode", "reason", "retryOf", "duplicate"]
ENDLESS = ["sh", "-c", "echo begun; sleep 1000"]


# ---- what a command gets and gives --------------------------------------------------------------


@pytest.mark.stores("sqlite", "postgres", "http")  # without a warning
def test_input_output_environment_and_exit_code(hf):
    flows = Workflows(hf, pay=sh("cat; echo to-stderr >&2; env | grep ^HOLDFAST_ | sort; exit 7"))
    done = flows.start("pay", "--key", "evt 1", "--input", "-", input="the input\n")
    assert done.returncode == 7
    assert done.stderr == "to-stderr\n"
    x = flows.only("pay")
    variables = dict(line.split("=", 1) for line in done.stdout.splitlines()[1:])
    assert done.stdout.startswith("the input\n")
    assert variables["HOLDFAST_EXECUTION"] == x["id"]
    assert variables["HOLDFAST_WORKFLOW"] == variables["HOLDFAST_NAME"] == "pay"
    assert variables["HOLDFAST_KEY"] == "evt 1"
    assert variables["HOLDFAST_ATTEMPT"] == "1"
    assert int(variables["HOLDFAST_FENCE"]) == x["fence"]
    assert x["state"] == "FAILED" and x["exitCode"] == 7 and x["key"] == "evt 1"
    whole = flows.show(x["id"])
    assert whole["input"] == "the input\n"
    assert sorted(whole["output"].splitlines()) == sorted((done.stdout + done.stderr).splitlines())
    assert hf.json("status", "pay")["state"] == "free"


def test_without_input_stdin_is_empty(hf):
    flows = Workflows(hf, pay=sh("cat; echo end"))
    assert flows.start("pay", input="not for the command").stdout == "end\n"


def test_input_from_a_file(hf, tmp_path):
    flows = Workflows(hf, pay={"command": ["cat"]})
    (tmp_path / "in").write_text("from a file")
    assert flows.start("pay", "--input", tmp_path / "in").stdout == "from a file"
    missing = flows.start("pay", "--input", tmp_path / "none")
    assert missing.returncode == 65 and "can't read the input" in missing.stderr


def test_cwd_and_env_are_the_workflows(hf, tmp_path):
    flows = Workflows(hf, pay=sh("pwd; echo $MODE", cwd=str(tmp_path), env={"MODE": "live"}),
                      lost=sh("pwd", cwd="/no/such/directory"))
    assert flows.start("pay").stdout == f"{tmp_path}\nlive\n"
    lost = flows.start("lost")
    assert lost.returncode == 65 and "/no/such/directory" in lost.stderr
    assert len(flows.all()) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another")
def test_user_is_the_workflows(hf):
    flows = Workflows(hf, pay=sh("id -un; echo $HOME", user="nobody"), odd=sh("true", user="no-such-user"))
    assert flows.start("pay").stdout == "nobody\n/nonexistent\n"
    odd = flows.start("odd")
    assert odd.returncode == 77 and "no such user" in odd.stderr


def test_invalid_utf_8_survives(hf):
    flows = Workflows(hf, pay=sh(r"cat; printf 'a\377\000b'"))
    done = flows.start("pay", "--input", "-", input="\udc80 in", errors="surrogateescape")
    assert done.returncode == 0
    whole = flows.show(flows.only("pay")["id"])
    assert whole["inputEncoding"] == whole["outputEncoding"] == "base64"
    assert base64.b64decode(whole["input"]) == b"\x80 in"
    assert base64.b64decode(whole["output"]) == b"\x80 ina\xff\x00b"
    chunk = hf.json("log", whole["id"])
    assert base64.b64decode(chunk["output"]) == b"\x80 ina\xff\x00b"


def test_commands_that_can_not_be_run_are_recorded(hf):
    flows = Workflows(hf, none={"command": ["/no/such/program"]}, dir={"command": ["/tmp"]})
    assert flows.start("none").returncode == 127
    assert flows.start("dir").returncode == 126
    assert [(x["state"], x["exitCode"], x["reason"]) for x in flows.all()] == [
        ("FAILED", 126, "could not be run"), ("FAILED", 127, "could not be run")]


def test_timeout_ends_failed_with_124(hf):
    flows = Workflows(hf, pay=sh("sleep 1000 & sleep 1000", timeout="200ms"))
    assert flows.start("pay").returncode == 124
    x = flows.only("pay")
    assert (x["state"], x["exitCode"], x["reason"]) == ("FAILED", 124, "timeout")
    assert not marked_processes(hf.mark)


def test_a_signal_is_passed_on(hf):
    flows = Workflows(hf, pay=sh("trap 'echo got it; exit 9' TERM; echo begun; while :; do sleep 0.1; done"))
    started = hf.start("start", "pay")
    assert started.stdout.readline() == "begun\n"
    started.terminate()
    assert started.wait(timeout=60) == 9
    assert flows.only("pay")["state"] == "FAILED"


def test_json_prints_the_execution_and_nothing_else(hf):
    flows = Workflows(hf, pay=sh("echo hello; exit 3"))
    done = flows.start("--json", "pay")
    assert done.returncode == 3
    x = json.loads(done.stdout)
    assert list(x)[:len(EXECUTION)] == EXECUTION
    assert x["state"] == "FAILED" and x["duplicate"] is False
    assert hf.ok("log", x["id"]) == "hello"


# ---- one at a time, one per key -----------------------------------------------------------------


def test_a_concurrent_start_is_refused_with_the_running_id(hf):
    flows = Workflows(hf, pay={"command": ENDLESS})
    hf.start("start", "pay")
    running = flows.running("pay")
    refused = flows.start("pay")
    assert refused.returncode == 75
    assert running in refused.stderr
    assert len(flows.all()) == 1
    assert hf.json("status", "pay")["executionId"] == running
    assert flows.start("-E", "9", "pay").returncode == 9


def test_wait_waits(hf, tmp_path):
    flows = Workflows(hf, pay=sh(f"until [ -e {tmp_path}/go ]; do sleep 0.05; done"))
    first = hf.start("start", "pay")
    flows.running("pay")
    second = hf.start("start", "--wait=100s", "pay")
    poll(lambda: hf.json("status", "pay")["waiters"] == 1)
    (tmp_path / "go").touch()
    assert first.wait(timeout=60) == 0 and second.wait(timeout=60) == 0
    assert [x["state"] for x in flows.all()] == ["SUCCESS", "SUCCESS"]


def test_a_key_is_run_once_and_tells_how_that_went(hf):
    flows = Workflows(hf, pay=sh("echo run; exit 4"))
    assert flows.start("pay", "--key", "k").returncode == 4
    again = flows.start("pay", "--key", "k")
    assert (again.returncode, again.stdout) == (4, "")
    assert "nothing was run" in again.stderr
    assert json.loads(flows.start("pay", "--key", "k", "--json").stdout)["duplicate"] is True
    reused = flows.start("pay", "--key", "k", "--input", "-", input="other")
    assert reused.returncode == 65 and "another input" in reused.stderr
    assert len(flows.all()) == 1


def test_a_key_that_is_running_is_75(hf):
    flows = Workflows(hf, pay={"command": ENDLESS})
    hf.start("start", "pay", "--key", "k")
    flows.running("pay")
    assert flows.start("pay", "--key", "k").returncode == 75


def test_lock_is_a_template(hf):
    flows = Workflows(hf, pay={"command": ENDLESS, "lock": "user/{input.user.id}"},
                      keyed={"command": ["true"], "lock": "{workflow}/{key}"})
    hf.start("start", "pay", "--input", "-", stdin=open_text(hf, '{"user":{"id":7}}'))
    flows.running("pay")
    assert hf.json("status", "user/7")["state"] == "held"
    refused = flows.start("pay", "--input", "-", input='{"user": {"id": 7}, "x": 1}')
    assert refused.returncode == 75
    for bad in ("", "nonsense", '{"user":{}}', '{"user":{"id":[]}}'):
        assert flows.start("pay", "--input", "-", input=bad).returncode == 65, bad
    assert flows.start("keyed").returncode == 65
    assert flows.start("keyed", "--key", "k").returncode == 0
    assert flows.only("keyed")["lock"] == "keyed/k"


def open_text(hf, text):
    path = hf.tmp_path / "stdin"
    path.write_text(text)
    return open(path)


def test_pending_is_taken_up_by_its_key(hf):
    flows = Workflows(hf, pay=sh("cat"))
    pending = hf.ok("start", "--detach", "pay", "--key", "k", "--input", "-", input="queued")
    assert flows.show(pending)["state"] == "PENDING"
    assert flows.start("pay", "--key", "k", "--input", "-", input="queued").stdout == "queued"
    assert flows.only("pay")["id"] == pending


def held_by_another(hf, flows, workflow="slow"):
    process = hf.start("start", workflow)
    return process, flows.running(workflow)


def overlapping(hf, overlap):
    """`slow` runs until it is stopped or `go` is there; `pay` shares its lock."""
    go = hf.tmp_path / "go"
    slow = {**sh(f"until test -e {go}; do sleep 0.05; done"), "lock": "both"}
    flows = Workflows(hf, slow=slow, pay={**sh("echo ran"), "lock": "both", "overlap": overlap})
    return flows, go, *held_by_another(hf, flows)


@pytest.mark.parametrize("words, code", [(["start"], 0), (["start", "--detach"], 0)])
def test_overlap_skip(hf, words, code):
    flows, go, process, _ = overlapping(hf, "skip")
    done = hf(*words, "pay")
    assert (done.returncode, done.stdout) == (code, "") and "skipped" in done.stderr
    assert flows.all("--workflow", "pay") == []
    go.touch()
    assert process.wait() == 0
    assert flows.start("pay").stdout == "ran\n"


@pytest.mark.parametrize("overlap", ["queue", "replace"])
def test_overlap_waits_for_its_turn(hf, overlap):
    flows, go, process, _ = overlapping(hf, overlap)
    for words in (["-n"], ["--wait=10ms"]):
        assert flows.start("pay", *words).returncode == 75
    waiting = hf.start("start", "pay")
    poll(lambda: hf.json("status", "both")["waiters"] == 1)
    go.touch()
    assert (process.wait(), waiting.wait()) == (0, 0)
    assert flows.only("pay")["state"] == "SUCCESS"


def test_overlap_cancel_asks_the_other_to_stop(hf):
    flows, _, process, id = overlapping(hf, "cancel")
    done = flows.start("pay")
    assert (done.returncode, done.stdout) == (0, "ran\n")
    process.wait()
    assert flows.show(id)["state"] == "ABORTED"


def test_concurrency_of_starts(hf):
    go = hf.tmp_path / "go"
    flows = Workflows(hf, pay={**sh(f"until test -e {go}; do sleep 0.05; done"), "concurrency": 2, "lock": "{workflow}/{key}"})
    two = [hf.start("start", "pay", "--key", key) for key in "ab"]
    poll(lambda: len(flows.all("--state", "RUNNING")) == 2)
    assert flows.start("pay", "--key", "c").returncode == 75
    go.touch()
    assert [p.wait() for p in two] == [0, 0]
    assert flows.start("pay", "--key", "c").returncode == 0


@pytest.mark.stores("file")
def test_the_file_store_keeps_no_executions(hf):
    flows = Workflows(hf, pay={"command": ["true"]})
    for words in (["start", "pay"], ["executions"], ["cancel", "x"], ["log", "x"], ["start", "--detach", "pay"]):
        refused = hf(*words)
        assert refused.returncode == 69
        assert "the file store keeps locks only" in refused.stderr, refused.stderr
    assert flows.path.exists()


# ---- output -------------------------------------------------------------------------------------


def test_a_gigabyte_is_counted_not_kept(hf):
    flows = Workflows(hf, pay=sh("echo first; head -c 1000000000 /dev/zero; echo last"))
    with open(os.devnull, "w") as null:
        started = hf.start("start", "pay", stdout=null)
        peak = 0
        while started.poll() is None:
            found = re.search(r"VmHWM:\s+(\d+)", read(started.pid, "status"))
            peak = max(peak, int(found.group(1)) if found else 0)
            time.sleep(0.05)
    assert started.returncode == 0
    whole = flows.show(flows.only("pay")["id"])
    assert whole["output"].startswith("first\n") and len(whole["output"]) == 65536
    assert whole["outputTail"].endswith("last\n") and len(whole["outputTail"]) == 65536
    assert whole["outputSkipped"] == 1000000011 - 2 * 65536
    assert 0 < peak < 300 * 1024, peak  # kilobytes; sanitizers need many
    log = hf.ok("log", whole["id"])
    assert f"[holdfast: {whole['outputSkipped']} bytes were not kept]" in log


def test_who_does_not_read_does_not_keep_the_lock(hf):
    flows = Workflows(hf, pay=sh("head -c 130000 /dev/zero"))
    read_end, write_end = os.pipe()
    started = hf.start("start", "pay", stdout=write_end)
    os.close(write_end)
    x = poll(lambda: [x for x in flows.all() if x["state"] == "SUCCESS"])[0]
    assert hf.json("status", "pay")["state"] == "free"
    assert started.poll() is None
    passed_on = b""
    while chunk := os.read(read_end, 65536):
        passed_on += chunk
    os.close(read_end)
    assert len(passed_on) == 130000
    assert started.wait(timeout=60) == 0
    assert len(flows.show(x["id"])["output"]) + len(flows.show(x["id"])["outputTail"]) == 130000


def test_a_closed_stdout_does_not_end_the_command(hf, tmp_path):
    flows = Workflows(hf, pay=sh(f"echo a; until [ -e {tmp_path}/go ]; do sleep 0.05; done; echo b; echo c >&2"))
    started = hf.start("start", "pay")
    assert started.stdout.readline() == "a\n"
    started.stdout.close()
    (tmp_path / "go").touch()
    assert started.wait(timeout=60) == 0
    assert flows.show(flows.only("pay")["id"])["output"] == "a\nb\nc\n"


def test_children_that_daemonise_and_hold_pipes_are_ended(hf):
    flows = Workflows(hf, pay=sh("setsid sh -c 'trap \"\" TERM; sleep 1000' & echo done", ttl="3s"))
    done = flows.start("pay")
    assert done.returncode == 0 and done.stdout == "done\n"
    assert not marked_processes(hf.mark)
    assert flows.only("pay")["state"] == "SUCCESS"


def test_log_follows_until_the_end(hf, tmp_path):
    flows = Workflows(hf, pay=sh(f"echo one; until [ -e {tmp_path}/go ]; do sleep 0.05; done; echo two"))
    hf.start("start", "pay")
    running = flows.running("pay")
    follower = hf.start("log", "--follow", running)
    assert follower.stdout.readline() == "one\n"
    (tmp_path / "go").touch()
    assert follower.stdout.readline() == "two\n"
    assert follower.wait(timeout=60) == 0
    assert hf.ok("log", running) == "one\ntwo"


# ---- cancel, retry, lists -----------------------------------------------------------------------


def test_cancel_stops_a_running_command(hf):
    flows = Workflows(hf, pay={"command": ENDLESS, "ttl": "1h"})
    started = hf.start("start", "pay")
    assert started.stdout.readline() == "begun\n"
    running = flows.running("pay")
    assert "asked to stop" in hf.ok("cancel", running)
    assert started.wait(timeout=60) == 143
    x = flows.show(running)
    assert (x["state"], x["reason"], x["exitCode"]) == ("ABORTED", "cancelled", 143)
    assert not marked_processes(hf.mark)
    assert "ended already (ABORTED)" in hf.ok("cancel", running)


def test_cancel_kills_what_ignores_sigterm(hf):
    flows = Workflows(hf, pay=sh("trap '' TERM; echo begun; while :; do sleep 0.1; done", ttl="3s"))
    started = hf.start("start", "pay")
    assert started.stdout.readline() == "begun\n"
    running = flows.running("pay")
    hf.ok("cancel", running)
    assert started.wait(timeout=60) == 137
    assert flows.show(running)["state"] == "ABORTED"
    assert not marked_processes(hf.mark)


def test_cancel_of_a_pending_one(hf):
    flows = Workflows(hf, pay={"command": ["true"]})
    pending = hf.ok("start", "--detach", "pay")
    assert hf.json("cancel", pending)["state"] == "ABORTED"
    assert flows.show(pending)["reason"] == "cancelled"


def test_unknown_ids(hf):
    for command in ("show", "cancel", "log", "retry"):
        done = hf(command, "00000000-0000-4000-8000-000000000000")
        assert done.returncode == 65
        assert done.stderr.startswith("holdfast: there is no execution 0000")


def test_retry_queues_a_new_one_with_the_input(hf):
    flows = Workflows(hf, pay=sh("exit 1"))
    flows.start("pay", "--key", "k", "--input", "-", input="in")
    old = flows.only("pay")
    new = hf.json("retry", old["id"])
    assert new["retryOf"] == old["id"] and new["state"] == "PENDING" and new["key"] is None
    assert flows.show(new["id"])["input"] == "in"
    refused = hf("retry", new["id"])
    assert refused.returncode == 65 and "only what has ended" in refused.stderr


def test_retry_of_a_state_takes_each_once(hf):
    flows = Workflows(hf, pay=sh("exit 1"), other=sh("exit 1"))
    for name in ("pay", "pay", "other"):
        flows.start(name)
    failed = [x["id"] for x in flows.all("--workflow", "pay")]
    words = ["retry", "--state", "FAILED", "--workflow", "pay"]
    assert sorted(hf.ok(*words, "--dry-run").split()) == sorted(failed)
    assert len(flows.all()) == 3
    assert len(hf.ok(*words).split()) == 2
    assert hf.ok(*words) == ""
    assert sorted(x["retryOf"] for x in flows.all("--state", "PENDING")) == sorted(failed)
    for bad in (["retry"], ["retry", "--state", "FAILED"], ["retry", "--state", "RUNNING", "--workflow", "pay"],
                ["retry", failed[0], "--workflow", "pay"], ["retry", "--state", "ODD", "--workflow", "pay"]):
        assert hf(*bad).returncode == 64, bad


def test_executions_are_listed_newest_first(hf):
    flows = Workflows(hf, a=sh("exit 0"), b=sh("exit 1"))
    for name in ("a", "b", "a"):
        flows.start(name)
    assert [x["workflow"] for x in flows.all()] == ["a", "b", "a"]
    assert [x["workflow"] for x in flows.all("--state", "failed")] == ["b"]
    assert len(flows.all("--workflow", "a", "--limit", "1")) == 1
    table = hf.ok("executions").splitlines()
    assert table[0].split() == ["ID", "WORKFLOW", "STATE", "KEY", "CREATED", "TOOK", "EXIT", "REASON"]
    assert len(table) == 4
    shown = hf.ok("show", flows.all()[1]["id"])
    assert "is FAILED" in shown and "exit code   1" in shown


def test_once_runs_are_executions_too(hf):
    hf.ok("run", "--once", "k", "report", "--", "true")
    x = hf.lines("executions")[0]
    assert (x["workflow"], x["key"], x["state"], x["exitCode"]) == ("report", "k", "SUCCESS", 0)
    refused = hf("retry", x["id"])
    assert refused.returncode == 65 and "--once" in refused.stderr


def test_ctrl_c_before_it_starts_leaves_nothing_running(hf):
    flows = Workflows(hf, pay={"command": ENDLESS})
    hf.start("start", "pay")
    flows.running("pay")
    waiting = hf.start("start", "--wait", "pay")
    poll(lambda: hf.json("status", "pay")["waiters"] == 1)
    waiting.send_signal(signal.SIGINT)
    assert waiting.wait(timeout=60) in (130, -signal.SIGINT)
    poll(lambda: hf.json("status", "pay")["waiters"] == 0)
    assert len(flows.all()) == 1
