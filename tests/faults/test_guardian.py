"""A dead wrapper is not a dead command: whoever is killed or stopped, nothing of a command's tree runs
when the next holder starts."""
import contextlib
import ctypes
import os
import signal
import sqlite3
import subprocess
import sys
import time

import pytest

from conftest import PATIENCE_S, ROOT, TTL_S, poll
from processes import child_named, children, is_alive, process_state
from servers import free_port
from tree import Tree, WorkedTree

def wait_until_queued(hf):
    poll(lambda: hf.json("status", "a")["waiters"] == 1)


# ---- killed --------------------------------------------------------------------------------------


def test_the_guardian_is_out_of_reach_of_what_is_sent_to_the_group(hf, tmp_path):
    tree = Tree(hf, tmp_path)
    assert os.getpgid(tree.guardian) == tree.guardian
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGTSTP, signal.SIGUSR1):
        os.kill(tree.guardian, number)
    poll(lambda: process_state(tree.guardian) == "S")
    assert hf.json("status", "a")["state"] == "held" and tree.wrapper.poll() is None


def test_kill_of_the_wrapper_ends_the_tree_before_the_next_starts(hf, tmp_path):
    tree = Tree(hf, tmp_path, "--ttl", "1h")
    successor = tree.next_holder()
    wait_until_queued(hf)
    tree.wrapper.kill()
    tree.assert_dead_before(successor)
    poll(lambda: not tree.processes())
    assert "taken-over" in [e["kind"] for e in hf.lines("events", "--name", "a")]


class Held:
    """A process held still by ptrace. SIGSTOP would not do for a guardian: when its wrapper dies its
    process group is orphaned, and the kernel continues it."""

    SEIZE, INTERRUPT, DETACH = 0x4206, 0x4207, 17

    def __init__(self, pid):
        self.pid = pid
        self.ptrace = ctypes.CDLL(None, use_errno=True).ptrace
        self.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]

    def __enter__(self):
        for request in (self.SEIZE, self.INTERRUPT):
            if self.ptrace(request, self.pid, None, None) < 0:
                pytest.skip(f"ptrace: {os.strerror(ctypes.get_errno())}")
        poll(lambda: process_state(self.pid) == "t")

    def __exit__(self, *_):
        self.ptrace(self.DETACH, self.pid, None, None)


def test_a_dead_wrapper_frees_nothing_while_its_guardian_lives(hf, tmp_path):
    tree = Tree(hf, tmp_path, "--ttl", "1h")
    successor = tree.next_holder()
    wait_until_queued(hf)
    with Held(tree.guardian):
        tree.wrapper.kill()
        tree.wrapper.wait()
        for _ in range(20):
            status = hf.json("status", "a")
            assert (status["state"], status["alive"]) == ("held", True)
        assert successor.poll() is None
    tree.assert_dead_before(successor)


def test_kill_of_the_wrappers_group_ends_the_tree_too(hf, tmp_path):
    tree = Tree(hf, tmp_path, "--ttl", "1h")
    successor = tree.next_holder()
    wait_until_queued(hf)
    os.killpg(tree.wrapper.pid, signal.SIGKILL)
    tree.assert_dead_before(successor)
    poll(lambda: not tree.processes())


def test_kill_of_the_guardian_ends_the_tree_and_gives_76(hf, tmp_path):
    tree = Tree(hf, tmp_path, "--ttl", "1h")
    successor = tree.next_holder()
    wait_until_queued(hf)
    os.kill(tree.guardian, signal.SIGKILL)
    tree.assert_dead_before(successor)
    out, err = tree.wrapper.communicate()
    assert tree.wrapper.returncode == 76
    assert "holdfast: a: the guardian process was killed, so the command was ended\n" in err
    assert tree.processes() == []


def test_kill_of_the_guardian_spares_what_was_there_before_us(hf):
    """`sleep & exec holdfast run`: the wrapper inherits a child that it did not start. (Its start must
    differ: the kernel counts in ticks of 10 ms.)"""
    script = f'sleep 1000 & echo $!; sleep 0.05; exec "{hf.program}" run a -- sh -c "echo on; sleep 1000"'
    shell = hf.start_program(["sh", "-c", script], start_new_session=True)
    older = int(shell.stdout.readline())
    assert shell.stdout.readline() == "on\n"
    guardian = child_named(shell.pid, "holdfast-guard")
    os.kill(guardian, signal.SIGKILL)
    shell.wait()
    assert shell.returncode == 76
    assert process_state(older) == "S"


def test_both_killed_at_once_frees_the_lock_and_ends_at_least_the_command(hf):
    """What is documented to remain: grandchildren, where no guardian and no wrapper is left."""
    runner = hf.start("run", "--ttl", "1h", "a", "--", sys.executable, "-c",
                      "import os, time; print(os.getpid(), flush=True); time.sleep(1000)",
                      start_new_session=True)
    command = int(runner.stdout.readline())
    guardian = child_named(runner.pid, "holdfast-guard")
    os.kill(runner.pid, signal.SIGSTOP)  # so that it can't see the guardian die
    os.kill(guardian, signal.SIGKILL)
    os.kill(runner.pid, signal.SIGKILL)
    poll(lambda: not is_alive(command))
    assert hf.ok("run", "--wait=100s", "a", "--", "echo", "next") == "next"


def test_a_waiting_wrapper_that_is_killed_leaves_nobody(hf):
    hf.ok("acquire", "a")
    waiter = hf.start("run", "--wait", "a", "--", "true", start_new_session=True)
    poll(lambda: hf.json("status", "a")["waiters"] == 1)
    guardian = children(waiter.pid)[0]
    waiter.kill()
    poll(lambda: not is_alive(guardian))


# Its main thread ends at once, and looks like a zombie from then on; another one goes on.
HEADLESS = r"""
import ctypes, os, threading, time

def go_on():
    while open(f"/proc/{os.getpid()}/stat").read().rsplit(")", 1)[1].split()[0] != "Z":
        time.sleep(0.002)
    print(os.getpid(), flush=True)
    time.sleep(1000)

threading.Thread(target=go_on).start()
ctypes.CDLL(None).pthread_exit(None)
"""


@pytest.mark.stores("sqlite")
@pytest.mark.parametrize("kind, options", [(Tree, ("--ttl", "10s")), (WorkedTree, [("ttl", "10s")])], ids=["run", "work"])
def test_where_nobody_renews_a_stopped_guardian_does_not_keep_its_tree_alive(hf, make_holdfast, tmp_path, kind, options):
    """The bug (exclusion.md, row 8): the program had patience with its guardian until after the lease had expired."""
    port = free_port()
    service = hf.start("serve", "--no-work", "--listen", f"127.0.0.1:{port}", stderr=subprocess.DEVNULL)
    remote = make_holdfast(f"http://127.0.0.1:{port}")
    poll(lambda: remote("list").returncode == 0)
    tree = kind(remote, tmp_path, *options)
    os.kill(tree.guardian, signal.SIGSTOP)
    service.send_signal(signal.SIGSTOP)
    tree.hf = hf  # on the database itself
    tree.assert_dead_before(tree.next_holder())


def test_where_all_that_watch_are_stopped_the_documented_command_ends_itself(hf, tmp_path):
    """exclusion.md, row 9: `pkill -STOP holdfast` leaves the command running; its next question tells it that it was overtaken."""
    text = open(os.path.join(ROOT, "docs", "promise.md"), encoding="utf-8").read()
    line = next(line for line in text.splitlines() if "make-report" in line)
    work = tmp_path / "make-report"
    work.write_text('#!/bin/sh\necho on >&2; until [ -e go ]; do sleep 0.05; done; echo done\n')
    work.chmod(0o755)
    path = f"{tmp_path}:{os.path.dirname(hf.program)}:{os.environ['PATH']}"
    script = line.strip().replace("--ttl 1m", f"--ttl {TTL_S}s").replace("holdfast run", "exec holdfast run")
    wrapper = hf.start_program(["sh", "-c", script], cwd=tmp_path, env={"PATH": path}, start_new_session=True)
    assert wrapper.stderr.readline() == "on\n"
    guardian = child_named(wrapper.pid, "holdfast-guard")
    command, = children(guardian)
    for pid in (wrapper.pid, guardian):
        os.kill(pid, signal.SIGSTOP)
    hf.ok("run", "--wait=100s", "report", "--", "true")
    assert is_alive(command)
    (tmp_path / "go").touch()
    poll(lambda: not is_alive(command))
    assert (tmp_path / "report.new").read_text() == "done\n" and not (tmp_path / "report").exists()
    for pid in (wrapper.pid, guardian):
        os.kill(pid, signal.SIGCONT)
    wrapper.communicate()
    assert wrapper.returncode == 76


@pytest.mark.parametrize("how", ["timeout", "wrapper killed", "left behind"])
def test_a_process_whose_main_thread_has_ended_is_ended(hf, how):
    options = ["--timeout", "1s"] if how == "timeout" else []
    command = [sys.executable, "-c", HEADLESS]
    if how == "left behind":
        command = ["bash", "-c", 'read -r pid < <("$@"); echo $pid', "bash", *command]
    runner = hf.start("run", *options, "a", "--", *command, start_new_session=True)
    pid = int(runner.stdout.readline())
    if how == "wrapper killed":
        runner.kill()
    runner.communicate(timeout=PATIENCE_S)
    assert runner.returncode == {"timeout": 124, "wrapper killed": -signal.SIGKILL, "left behind": 0}[how]
    assert hf.ok("run", "--wait=100s", "a", "--", "sh", "-c", f"ls /proc/{pid}/task 2>&- || echo gone") == "gone"


# ---- stopped -------------------------------------------------------------------------------------


def test_a_stopped_wrappers_tree_is_dead_by_the_deadline(hf, tmp_path):
    tree = Tree(hf, tmp_path, "--ttl", TTL_S)
    successor = tree.next_holder()
    wait_until_queued(hf)
    os.kill(tree.wrapper.pid, signal.SIGSTOP)
    tree.assert_dead_before(successor)
    assert tree.processes() == []
    os.kill(tree.wrapper.pid, signal.SIGCONT)
    out, err = tree.wrapper.communicate()
    assert tree.wrapper.returncode == 76
    assert "a: the command was ended because its lease was lost" in err
    assert hf.json("status", "a")["state"] == "free"


def test_a_stopped_wrappers_command_is_asked_first(hf):
    """SIGTERM comes a grace before the deadline: who heeds it can clean up."""
    script = "trap 'echo asked; exit 0' TERM; echo on; sleep 1000 & wait; echo late"
    runner = hf.start("run", "--ttl", TTL_S, "a", "--", "bash", "-c", script,
                      start_new_session=True)
    assert runner.stdout.readline() == "on\n"
    os.kill(runner.pid, signal.SIGSTOP)
    assert runner.stdout.readline() == "asked\n"
    os.kill(runner.pid, signal.SIGCONT)
    runner.communicate()
    assert runner.returncode == 76


def test_a_wrapper_stopped_before_its_release_does_not_free_its_successor(hf):
    runner = hf.start("run", "--ttl", TTL_S, "a", "--", "sh", "-c", "echo on; read x; exit 0",
                      stdin=subprocess.PIPE, start_new_session=True)
    assert runner.stdout.readline() == "on\n"
    guardian = child_named(runner.pid, "holdfast-guard")
    os.kill(runner.pid, signal.SIGSTOP)
    runner.stdin.write("\n")
    runner.stdin.flush()
    poll(lambda: process_state(guardian) == "Z")
    successor = hf.json("acquire", "--wait=100s", "--ttl", "1h", "a")
    os.kill(runner.pid, signal.SIGCONT)
    runner.communicate()
    assert runner.returncode == 76
    assert hf.json("status", "a")["fence"] == successor["fence"]
    assert hf.json("status", "a")["state"] == "held"


def test_everything_stopped_past_the_ttl_is_killed_on_waking_and_harms_nobody(hf, tmp_path):
    tree = Tree(hf, tmp_path, "--ttl", TTL_S)
    everything = tree.processes() + [tree.wrapper.pid]
    for pid in everything:
        os.kill(pid, signal.SIGSTOP)
    successor = hf.json("acquire", "--wait=100s", "--ttl", "1h", "a")
    for pid in everything:
        with contextlib.suppress(ProcessLookupError):  # the guardian, once awake, kills the others
            os.kill(pid, signal.SIGCONT)
    tree.wrapper.communicate()
    assert tree.wrapper.returncode == 76
    assert tree.processes() == []
    status = hf.json("status", "a")
    assert (status["state"], status["fence"]) == ("held", successor["fence"])


def test_a_stopped_guardian_does_not_keep_the_wrapper_from_ending_a_lost_tree(hf, tmp_path):
    tree = Tree(hf, tmp_path, "--ttl", TTL_S)
    os.kill(tree.guardian, signal.SIGSTOP)
    fence = hf.json("status", "a")["fence"]
    hf.ok("release", "--force", "--fence", fence, "--reason", "test", "a")
    out, err = tree.wrapper.communicate()
    assert tree.wrapper.returncode == 76
    assert tree.processes() == []


@pytest.mark.stores("sqlite")
def test_a_store_that_hangs_does_not_hide_the_loss(hf, tmp_path):
    """Renewals block while another process keeps the database locked."""
    tree = Tree(hf, tmp_path, "--ttl", TTL_S)
    database = sqlite3.connect(hf.url.split(":", 1)[1], isolation_level=None)
    for _ in range(1000):
        try:
            database.execute("BEGIN IMMEDIATE")
            break
        except sqlite3.OperationalError:
            time.sleep(0.001)
    _, err = tree.wrapper.communicate()
    assert tree.wrapper.returncode == 76
    assert "a: the command was ended because its lease was lost" in err
    assert tree.processes() == []
    database.execute("ROLLBACK")


# ---- by chance -----------------------------------------------------------------------------------


def test_wrappers_killed_at_random_never_let_two_run_at_once(hf, tmp_path):
    """Each command takes an exclusive file lock that its children inherit: nobody may find it taken."""
    lock = tmp_path / "exclusive"
    worker = ("import fcntl, os, sys, time\n"
              "f = open(sys.argv[1], 'w')\n"
              "try: fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
              "except OSError: os._exit(99)\n"
              "if os.fork() == 0:\n"
              "    os.setsid()\n"
              "    time.sleep(1000)\n"
              "print('on', flush=True)\n"
              "time.sleep(1000)\n")
    for round_number in range(12):
        runner = hf.start("run", "--wait=100s", "a", "--", sys.executable, "-c", worker, lock,
                          start_new_session=True)
        assert runner.stdout.readline() == "on\n", (round_number, runner.communicate())
        victim = runner.pid
        if round_number % 3 == 1:
            victim = child_named(runner.pid, "holdfast-guard")
        os.kill(victim, signal.SIGKILL)
    runner.communicate()
