"""run: exit codes, environment, descriptors, what is left behind, once, takeover."""
import json
import os
import re
import resource
import signal
import subprocess
import sys

import pytest

from conftest import TTL_S, expect_renewals, in_files, marked_processes, poll
from processes import is_alive


def sh(script):
    return ["--", "sh", "-c", script]


# ---- exit codes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 1, 3, 64, 75, 124, 127, 255])
def test_the_exit_code_is_the_commands(hf, code):
    assert hf("run", "a", *sh(f"exit {code}")).returncode == code


@pytest.mark.parametrize("name", ["TERM", "KILL", "INT", "SEGV"])
def test_a_command_that_dies_of_a_signal_gives_128_and_its_number(hf, name):
    done = hf("run", "a", *sh(f"ulimit -c 0; kill -{name} $$"))
    assert done.returncode == 128 + getattr(signal, f"SIG{name}")


def test_a_command_that_is_not_found_gives_127_and_says_so(hf):
    done = hf("run", "a", "--", "./no-such-program")
    assert done.returncode == 127
    assert done.stderr == "holdfast: can't run ./no-such-program: No such file or directory\n"
    assert hf.json("status", "a")["state"] == "free"


def test_a_command_that_is_not_executable_gives_126_and_says_so(hf, tmp_path):
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o644)
    done = hf("run", "a", "--", script)
    assert done.returncode == 126
    assert done.stderr == f"holdfast: can't run {script}: Permission denied\n"


def test_a_script_without_interpreter_line_is_run_by_sh(hf, tmp_path):
    script = tmp_path / "script"
    script.write_text("exit 7\n")
    script.chmod(0o755)
    assert hf("run", "a", "--", script).returncode == 7


def test_held_by_another_gives_75_and_who_and_what_to_do(hf):
    holder = hf.start("run", "--owner", "web1/1", "a", *sh("echo on; read x"), stdin=subprocess.PIPE)
    assert holder.stdout.readline() == "on\n"
    done = hf("run", "a", "--", "true")
    assert done.returncode == 75
    assert re.fullmatch(r"holdfast: a is held by web1/1 \(alive\) since .* ago, fence \d+; "
                        r"wait with --wait=5m\n", done.stderr)
    quiet = hf("-q", "run", "-E", "9", "a", "--", "true")
    assert (quiet.returncode, quiet.stderr) == (9, "")
    holder.communicate("\n")


def test_options_of_the_command_are_its_own(hf):
    assert hf.ok("run", "a", "--", "echo", "-n", "--ttl", "-q") == "--ttl -q"
    assert hf.ok("run", "a", "echo", "--", "x") == "-- x"


def test_a_string_is_run_by_the_shell(hf):
    assert hf.ok("run", "a", "-c", "echo $((1 + 2))") == "3"
    assert hf.ok("run", "a", "-c", "echo $0", env={"SHELL": "/bin/bash"}) == "/bin/bash"
    assert hf.ok("run", "a", "-c", "echo $0", env={"SHELL": ""}) == "/bin/sh"


@pytest.mark.parametrize("waiting", [[], ["--wait=100ms"]])
def test_too_few_descriptors_are_the_systems_fault(hf, waiting):
    """The bug: a process that could not be looked at was one that does not exist, exit code 65."""
    token = hf.ok("acquire", "held")
    name = "held" if waiting else "free"
    for n in range(6, 24):
        done = hf("run", *waiting, name, *sh("exit 0"),
                  preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (n, n)))
        assert done.returncode in (69, 75 if waiting else 0), (n, done.stderr)
        assert "there is no process" not in done.stderr
    hf.ok("release", "held", token)


def test_a_bad_name_is_refused_before_anything_runs(hf, tmp_path):
    done = hf("run", "a\nb", "--", "touch", tmp_path / "ran")
    assert done.returncode == 65
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "ran").exists()


# ---- what the command sees -----------------------------------------------------------------------


def test_the_environment_tells_the_command_its_lease(hf):
    out = hf.ok("run", "--ttl", "30s", "--owner", "me", "my name", *sh("env; env -0 >/dev/null"))
    env = dict(line.split("=", 1) for line in out.splitlines() if line.startswith("HOLDFAST_"))
    assert env["HOLDFAST_NAME"] == "my name"
    assert env["HOLDFAST_OWNER"] == "me"
    assert env["HOLDFAST_TTL_MS"] == "30000"
    assert env["HOLDFAST_STORE"] == hf.url
    assert int(env["HOLDFAST_FENCE"]) > 0
    assert len(env["HOLDFAST_TOKEN"]) == 36
    assert "HOLDFAST_KEY" not in env and "HOLDFAST_EXECUTION" not in env


@in_files
def test_the_command_can_use_its_lease_from_any_directory(hf, tmp_path):
    where = tmp_path / "50% off?"
    where.mkdir()
    url = f"{hf.scheme}:store"
    script = f'cd / && "{hf.program}" guard && "{hf.program}" extend && "{hf.program}" status "$HOLDFAST_NAME"'
    done = hf("--store", url, "run", "a", *sh(script), cwd=where)
    assert done.returncode == 0, done.stderr
    assert (where / "store").exists()


def test_an_inner_run_sees_its_own_lease_only(hf):
    inner = f'"{hf.program}" run inner -- env'
    out = hf.ok("run", "outer", *sh(inner), env={"HOLDFAST_KEY": "stale", "HOLDFAST_EXECUTION": "x"})
    assert "HOLDFAST_NAME=inner\n" in out
    assert "HOLDFAST_KEY" not in out and "HOLDFAST_EXECUTION" not in out


def test_standard_files_are_the_commands_own(hf):
    done = hf("run", "a", *sh("cat; echo err >&2"), input="in\n")
    assert (done.stdout, done.stderr) == ("in\n", "err\n")


def test_no_descriptor_of_ours_reaches_the_command(hf):
    ours = {"0", "1", "2"}
    out = hf.ok("run", "a", "--", sys.executable, "-c",
                "import os; print(*os.listdir('/proc/self/fd'))", close_fds=True)
    fds = set(out.split()) - ours
    assert len(fds) == 1  # listdir's own


def test_descriptors_that_were_given_reach_the_command(hf, tmp_path):
    given = os.open(tmp_path / "given", os.O_RDWR | os.O_CREAT)
    hf.ok("run", "a", *sh(f"echo hello > /proc/self/fd/{given}"), pass_fds=[given])
    os.close(given)
    assert (tmp_path / "given").read_text() == "hello\n"


def test_signal_mask_and_dispositions_are_inherited_untouched(hf):
    show = [sys.executable, "-c", "print([l for l in open('/proc/self/status') if l[:3] == 'Sig' and l[3] != 'Q'])"]
    # Python itself ignores SIGPIPE and SIGXFSZ and restores neither: compare like with like.
    for preexec in (None, lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
                    lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),
                    lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGINT])):
        plain = subprocess.run(show, capture_output=True, text=True, preexec_fn=preexec,
                               restore_signals=True)
        assert hf.ok("run", "a", "--", *show, preexec_fn=preexec) == plain.stdout.strip()


def test_an_ignored_sigchld_does_not_hide_the_exit_code(hf):
    done = hf("run", "a", *sh("exit 5"),
              preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
    assert done.returncode == 5


def test_the_working_directory_is_kept(hf, tmp_path):
    assert hf.ok("run", "a", "--", "pwd", cwd=tmp_path) == str(tmp_path)


# ---- the lease -----------------------------------------------------------------------------------


def test_the_lock_is_held_while_the_command_runs_and_free_after(hf):
    holder = hf.start("run", "--note", "why", "a", *sh("echo on; read x"), stdin=subprocess.PIPE)
    assert holder.stdout.readline() == "on\n"
    status = hf.json("status", "a")
    assert (status["state"], status["alive"], status["note"]) == ("held", True, "why")
    holder.communicate("\n")
    assert hf.json("status", "a")["state"] == "free"


def test_the_lease_is_renewed_for_as_long_as_the_command_runs(hf):
    holder = hf.start("run", "--ttl", TTL_S, "a", *sh("echo on; read x; exit 4"),
                      stdin=subprocess.PIPE)
    assert holder.stdout.readline() == "on\n"
    expect_renewals(hf, "a", lived_s=TTL_S)
    out, err = holder.communicate("\n")
    assert (holder.returncode, out, err) == (4, "", "")


def test_a_lease_that_was_forced_away_ends_the_command_with_76(hf):
    holder = hf.start("run", "--ttl", TTL_S, "a", *sh("echo on; sleep 100"))
    assert holder.stdout.readline() == "on\n"
    fence = hf.json("status", "a")["fence"]
    hf.ok("release", "--force", "--fence", fence, "--reason", "test", "a")
    out, err = holder.communicate()
    assert holder.returncode == 76
    assert "a: the command was ended because its lease was lost" in err
    told = [e["reason"] for e in hf.lines("events", "--name", "a") if e["kind"] == "lost"]
    assert told == ["no longer ours"]


def test_a_command_whose_lease_ran_out_before_it_began_is_not_started(hf):
    """The bug: it was started and then killed, in the middle of somebody else's lease."""
    hf.ok("acquire", "--ttl", "100ms", "a")
    poll(lambda: hf.json("status", "a")["state"] == "stale")
    reader, writer = os.pipe()  # full: who announces the takeover there can't go on
    os.set_blocking(writer, False)
    with pytest.raises(BlockingIOError):
        while True:
            os.write(writer, b"." * 4096)
    os.set_blocking(writer, True)
    late = hf.start("run", "--ttl", "300ms", "a", *sh("echo started"), stderr=writer)
    os.close(writer)
    poll(lambda: hf.json("status", "a")["fence"] > 1)
    poll(lambda: hf.json("status", "a")["state"] == "stale")
    next_one = hf.start("run", "a", *sh("echo on; sleep 100"))
    assert next_one.stdout.readline() == "on\n"
    with open(reader, encoding="utf-8") as said:
        assert "a: the command was not started because its lease was lost" in said.read()
    assert (late.wait(), late.stdout.read()) == (76, "")


def test_a_lease_that_is_found_lost_at_the_release_gives_76(hf):
    script = f'"{hf.program}" release --force --fence $HOLDFAST_FENCE --reason test a >&2; exit 0'
    done = hf("run", "a", *sh(script))
    assert done.returncode == 76
    assert "the command ended with exit code 0, but meanwhile" in done.stderr


# ---- time ----------------------------------------------------------------------------------------


def test_a_timeout_ends_the_command_and_gives_124(hf):
    done = hf("run", "--timeout", "200ms", "a", *sh("trap 'exit 0' TERM; sleep 100 & wait"))
    assert done.returncode == 124
    assert done.stderr == "holdfast: a: the command was ended because it took longer than 200 ms\n"
    assert hf.json("status", "a")["state"] == "free"


def test_a_command_that_ignores_sigterm_is_killed_after_the_grace(hf):
    done = hf("-q", "run", "--timeout", "100ms", "--grace", "200ms", "a",
              *sh("trap '' TERM; sleep 100"))
    assert (done.returncode, done.stderr) == (124, "")


def test_a_command_in_time_is_left_alone(hf):
    assert hf("run", "--timeout", "100s", "a", *sh("exit 3")).returncode == 3


# ---- what a command leaves behind ----------------------------------------------------------------

DAEMON = """
import os, sys, time, signal
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN if "stubborn" in sys.argv else signal.SIG_DFL)
for fd in range(3):
    os.close(fd)
with open(sys.argv[1], "w") as out:
    out.write(str(os.getpid()))
os.rename(sys.argv[1], sys.argv[1] + ".pid")
time.sleep(1000)
"""


@pytest.mark.parametrize("manner", ["polite", "stubborn"])
def test_a_daemon_left_behind_is_ended_and_named_in_a_warning(hf, tmp_path, manner):
    (tmp_path / "daemon.py").write_text(DAEMON)
    pid_file = tmp_path / "daemon"
    wait = f"while ! [ -e {pid_file}.pid ]; do sleep 0.01; done"
    done = hf("run", "--grace", "400ms", "a",
              *sh(f"{sys.executable} {tmp_path}/daemon.py {pid_file} {manner}; {wait}; exit 6"))
    assert done.returncode == 6
    assert done.stderr == "holdfast: a: the command left 1 process behind; ended it\n"
    assert not is_alive(int((tmp_path / "daemon.pid").read_text()))


def test_several_leftovers_that_hold_the_pipe_are_ended(hf):
    done = hf("run", "--grace", "400ms", "a", *sh("sleep 1000 & sleep 1000 & exit 0"))
    assert done.returncode == 0
    assert done.stderr == "holdfast: a: the command left 2 processes behind; ended them\n"


def test_what_is_left_may_finish_its_last_words(hf, tmp_path):
    """bash's > >(tee log): tee sees the end only when bash has gone, and must not be cut off."""
    log = tmp_path / "log"
    done = hf("run", "a", "--", "bash", "-c",
              f"exec > >(sleep 0.05; exec tee {log}) 2>&1; seq 1000; echo end")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("1000\nend\n")
    assert log.read_text() == done.stdout


RUNAWAY = """
import os, time
for _ in range(3):
    if os.fork() == 0:
        while True:
            time.sleep(0.002)
            if os.fork():
                os._exit(0)
time.sleep(0.1)
"""


def test_what_keeps_forking_and_exiting_is_caught(hf):
    """Its pid changes all the time; each generation is an orphan."""
    done = hf("-q", "run", "--grace", "0", "a", "--", sys.executable, "-c", RUNAWAY)
    assert done.returncode == 0
    assert marked_processes(hf.mark) == []


# ---- once ----------------------------------------------------------------------------------------


@pytest.mark.stores("sqlite", "postgres")
def test_once_runs_only_until_it_has_succeeded(hf, tmp_path):
    count = tmp_path / "count"
    script = f"echo $HOLDFAST_KEY >> {count}; [ $(wc -l < {count}) -ge 2 ]"
    assert hf("run", "--once", "k", "a", *sh(script)).returncode == 1
    assert hf("run", "--once", "k", "a", *sh(script)).returncode == 0
    done = hf("run", "--once", "k", "a", *sh(script))
    assert done.returncode == 0
    assert done.stderr == "holdfast: a has already succeeded with key k; nothing was run\n"
    assert hf("-q", "run", "--once", "k", "a", *sh(script)).stderr == ""
    assert hf("run", "--once", "other", "a", "--", "true").stderr == ""
    assert count.read_text() == "k\nk\n"


@pytest.mark.stores("sqlite", "postgres")
def test_once_tells_the_command_its_execution(hf):
    out = hf.ok("run", "--once", "k", "a", "--", "env")
    env = dict(line.split("=", 1) for line in out.splitlines() if line.startswith("HOLDFAST_"))
    assert len(env["HOLDFAST_EXECUTION"]) == 36
    assert (env["HOLDFAST_KEY"], env["HOLDFAST_WORKFLOW"], env["HOLDFAST_ATTEMPT"]) == ("k", "a", "1")


@pytest.mark.stores("sqlite", "postgres")
def test_once_per_uses_the_local_calendar(hf):
    key = hf.ok("run", "--once-per", "day", "a", *sh("echo $HOLDFAST_KEY"), env={"TZ": "UTC-14"})
    assert re.fullmatch(r"day:\d{4}-\d\d-\d\d", key)
    key = hf.ok("run", "--once-per", "hour", "a", *sh("echo $HOLDFAST_KEY"),
                env={"TZ": "Asia/Kolkata"})
    assert re.fullmatch(r"hour:\d{4}-\d\d-\d\dT\d\d\+05:30", key)
    again = hf("run", "--once-per", "day", "a", "--", "false", env={"TZ": "UTC-14"})
    assert again.returncode == 0 and "already" in again.stderr


@pytest.mark.stores("file")
def test_once_is_refused_where_the_store_keeps_no_executions(hf, tmp_path):
    done = hf("run", "--once", "k", "a", "--", "touch", tmp_path / "ran")
    assert done.returncode == 69
    assert not (tmp_path / "ran").exists()


# ---- taking over ---------------------------------------------------------------------------------


@pytest.mark.parametrize("quiet", [[], ["-q"]])
def test_taking_over_a_stale_lock_is_announced(hf, quiet):
    hf.ok("acquire", "--ttl", "100ms", "--owner", "web9/77", "a")
    poll(lambda: hf.json("status", "a")["state"] == "stale")
    done = hf(*quiet, "run", "a", "--", "true")
    assert done.returncode == 0
    for word in ("STALE LOCK", "web9/77", "expired", "lock id", "held for"):
        assert word in done.stderr
    assert "taken-over" in [event["kind"] for event in hf.lines("events", "--name", "a")]
    assert hf("run", "a", "--", "true").stderr == ""


def test_a_waiting_run_needs_little_memory(hf):
    hf.ok("acquire", "a")
    waiter = hf.start("run", "--wait", "a", "--", "true")
    poll(lambda: hf.json("status", "a")["waiters"] == 1)
    with open(f"/proc/{waiter.pid}/smaps_rollup") as smaps:
        numbers = dict(line.split()[:2] for line in smaps.read().splitlines()[1:])
    if "san.so" not in open(f"/proc/{waiter.pid}/maps").read():  # sanitizers have a shadow
        assert int(numbers["Pss:"]) < 8 * 1024


def test_json_is_no_concern_of_run(hf):
    assert json.loads(hf.ok("--json", "run", "a", "--", "echo", "{}")) == {}
