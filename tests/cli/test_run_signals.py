"""run: signals in every phase. Each wrapper gets a session of its own, so that no terminal is there."""
import os
import random
import signal
import sys
import time

import pytest

from conftest import poll

# Writes each signal that comes; SIGTERM ends it.
LISTENER = """
import os, signal, sys
wanted = set(map(int, sys.argv[1:]))
signal.pthread_sigmask(signal.SIG_BLOCK, wanted)  # a handler could miss what comes before it sleeps
for number in wanted:
    signal.signal(number, signal.SIG_DFL)
os.write(1, b"ready\\n")
while True:
    number = signal.sigwait(wanted)
    os.write(1, b"%d\\n" % number)
    if number == signal.SIGTERM:
        os._exit(7)
"""


def listener(*signals):
    return ["--", sys.executable, "-c", LISTENER, *map(str, map(int, signals))]


def start(hf, *args, **options):
    return hf.start(*args, start_new_session=True, **options)


# ---- waiting -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["INT", "TERM", "HUP", "QUIT", "USR1"])
def test_a_signal_ends_the_waiting_and_leaves_the_queue(hf, tmp_path, name):
    number = getattr(signal, f"SIG{name}")
    hf.ok("acquire", "a")
    waiter = start(hf, "run", "--wait", "a", "--", "touch", tmp_path / "ran")
    poll(lambda: hf.json("status", "a")["waiters"] == 1)
    waiter.send_signal(number)
    out, err = waiter.communicate()
    assert (waiter.returncode, out, err) == (128 + number, "", "")
    assert hf.json("status", "a")["waiters"] == 0
    assert not (tmp_path / "ran").exists()


def test_an_ignored_signal_does_not_end_the_waiting(hf):
    lease = hf.json("acquire", "a")
    waiter = start(hf, "run", "--wait", "a", "--", "echo", "ran",
                   preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    poll(lambda: hf.json("status", "a")["waiters"] == 1)
    waiter.send_signal(signal.SIGHUP)
    waiter.send_signal(signal.SIGWINCH)
    waiter.send_signal(signal.SIGCONT)
    hf.ok("release", "a", lease["token"])
    assert waiter.communicate()[0] == "ran\n"
    assert waiter.returncode == 0


def test_a_signal_at_any_moment_of_the_start_is_not_lost(hf):
    """Whether it comes before, while or after the command starts: nothing goes on running."""
    rng = random.Random(7)
    for _ in range(25):
        runner = start(hf, "run", "a", "--", "sleep", "1000")
        time.sleep(rng.uniform(0, 0.02))
        runner.send_signal(signal.SIGTERM)
        runner.communicate()
        # The negative code: before we could hold it back.
        assert runner.returncode in (128 + signal.SIGTERM, -signal.SIGTERM)
    poll(lambda: hf.json("status", "a")["state"] != "held")


# ---- running -------------------------------------------------------------------------------------


def test_every_signal_reaches_the_command_once(hf):
    signals = [signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2,
               signal.SIGALRM, signal.SIGWINCH, signal.SIGCONT, signal.SIGRTMIN + 3, signal.SIGTERM]
    runner = start(hf, "run", "a", *listener(*signals))
    assert runner.stdout.readline() == "ready\n"
    for number in signals:
        runner.send_signal(number)
        assert runner.stdout.readline() == f"{int(number)}\n"
    out, err = runner.communicate()
    assert (runner.returncode, out, err) == (7, "", "")


def test_a_signal_to_the_whole_group_reaches_the_command_once(hf):
    runner = start(hf, "run", "a", *listener(signal.SIGINT, signal.SIGTERM))
    assert runner.stdout.readline() == "ready\n"
    for _ in range(5):
        os.killpg(runner.pid, signal.SIGINT)
        assert runner.stdout.readline() == f"{int(signal.SIGINT)}\n"
    time.sleep(0.1)
    os.killpg(runner.pid, signal.SIGTERM)
    out, _ = runner.communicate()
    assert (runner.returncode, out) == (7, f"{int(signal.SIGTERM)}\n")


def test_a_signal_that_was_ignored_is_passed_on_all_the_same(hf):
    """As it would reach a command with a handler of its own."""
    runner = start(hf, "run", "a", *listener(signal.SIGINT, signal.SIGTERM),
                   preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    assert runner.stdout.readline() == "ready\n"
    runner.send_signal(signal.SIGINT)
    assert runner.stdout.readline() == f"{int(signal.SIGINT)}\n"
    runner.send_signal(signal.SIGTERM)
    runner.communicate()
    assert runner.returncode == 7


def test_a_second_interrupt_is_nothing_special(hf):
    runner = start(hf, "run", "a", *listener(signal.SIGINT, signal.SIGTERM))
    assert runner.stdout.readline() == "ready\n"
    for _ in range(3):
        runner.send_signal(signal.SIGINT)
        assert runner.stdout.readline() == f"{int(signal.SIGINT)}\n"
    assert hf.json("status", "a")["state"] == "held"
    runner.send_signal(signal.SIGTERM)
    runner.communicate()
    assert runner.returncode == 7


def test_a_signal_that_ends_a_shell_takes_its_children_along(hf):
    runner = start(hf, "run", "--grace", "1s", "a", "--", "sh", "-c", "echo on; sleep 1000; true")
    assert runner.stdout.readline() == "on\n"
    runner.send_signal(signal.SIGTERM)
    runner.communicate()
    assert runner.returncode == 128 + signal.SIGTERM
    assert hf.json("status", "a")["state"] == "free"


# ---- ending and releasing ------------------------------------------------------------------------


def test_signals_while_leftovers_are_ended_do_not_interrupt_it(hf):
    script = "trap '' HUP; (trap '' TERM; sleep 1000; sleep 1000) & echo done; exit 5"
    runner = start(hf, "run", "--grace", "1s", "a", "--", "sh", "-c", script)
    assert runner.stdout.readline() == "done\n"
    for _ in range(10):
        runner.send_signal(signal.SIGHUP)
        time.sleep(0.02)
    runner.communicate()
    assert runner.returncode == 5
    assert hf.json("status", "a")["state"] == "free"


def test_signals_during_the_release_do_not_interrupt_it(hf):
    for _ in range(10):
        runner = start(hf, "run", "a", "--", "sh", "-c", "trap '' INT HUP; echo on; exit 5")
        assert runner.stdout.readline() == "on\n"
        while runner.poll() is None:
            runner.send_signal(signal.SIGINT)
            runner.send_signal(signal.SIGHUP)
        runner.communicate()
        assert runner.returncode == 5
        assert hf.json("status", "a")["state"] == "free"


def test_a_closed_stderr_does_not_keep_the_lock(hf):
    """What we say there must not kill us before the release."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    runner = hf.start("run", "--grace", "0", "a", "--", "sh", "-c", "sleep 1000 & exit 3",
                      stderr=write_end, start_new_session=True)
    os.close(write_end)
    runner.wait()
    assert runner.returncode == 3
    assert hf.json("status", "a")["state"] == "free"
