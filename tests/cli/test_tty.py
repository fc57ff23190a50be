"""run on a terminal: a real pty, with and without a job-control shell."""
import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time

import pytest

from conftest import PATIENCE_S, TTL_S, expect_renewals, in_files, poll
from processes import is_alive

pytestmark = in_files  # about terminals, not about stores

PROMPT = "prompt> "


class Terminal:
    """A program on a pty of its own, as session leader; expect() reads what it shows."""

    def __init__(self, hf, argv, env=None):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execvpe(argv[0], argv, {**hf.env, "PS1": PROMPT, "TERM": "dumb", "HISTFILE": "", **(env or {})})
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
        self.seen = ""

    def read(self, limit_s):
        ready, _, _ = select.select([self.fd], [], [], limit_s)
        assert ready, f"nothing more came; so far: {self.seen!r}"
        try:
            data = os.read(self.fd, 65536)
        except OSError:
            data = b""
        assert data, f"the terminal was closed; so far: {self.seen!r}"
        self.seen += data.decode(errors="replace").replace("\r", "")

    def expect(self, pattern):
        """Read until the pattern is seen; what is before and in it is consumed; .before keeps the former."""
        deadline = time.monotonic() + PATIENCE_S
        while not (match := re.search(pattern, self.seen)):
            self.read(max(0.1, deadline - time.monotonic()))
        self.before, self.seen = self.seen[:match.start()], self.seen[match.end():]
        return match

    def type(self, text):
        os.write(self.fd, text.encode())

    def run(self, line):
        """A line to the shell."""
        self.type(line + "\n")
        self.expect(re.escape(line) + "\n")  # its echo

    def press_ctrl_z(self):
        """Stop the job in the foreground: the shell says so, and is ready again."""
        self.type("\x1a")
        self.expect("Stopped")
        self.expect(PROMPT)

    def wait(self):
        pid, status = poll(lambda: (got := os.waitpid(self.pid, os.WNOHANG))[0] and got)
        self.pid = 0
        return os.waitstatus_to_exitcode(status)

    def close(self):
        os.close(self.fd)
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


@pytest.fixture
def on_terminal(hf):
    terminals = []

    def open_terminal(*argv, **options):
        terminals.append(Terminal(hf, list(map(str, argv)), **options))
        return terminals[-1]

    yield open_terminal
    for terminal in terminals:
        terminal.close()


@pytest.fixture
def shell(on_terminal):
    """bash with job control, at its prompt."""
    terminal = on_terminal("bash", "--norc", "--noprofile", "--noediting", "-i")
    terminal.expect(PROMPT)
    terminal.run("set +o history; set -b")
    terminal.expect(PROMPT)
    return terminal


COUNTING = """
import os, signal
wanted = {signal.SIGINT, signal.SIGQUIT, signal.SIGHUP}
signal.pthread_sigmask(signal.SIG_BLOCK, wanted)  # a handler could miss what comes before it sleeps
os.write(1, b"ready\\n")
while True:
    number = signal.sigwait(wanted)
    os.write(1, b"got %d\\n" % number)
    if number == signal.SIGQUIT:
        os._exit(7)
"""


# ---- alone on a terminal -------------------------------------------------------------------------


def test_the_command_is_in_the_foreground_and_can_read(hf, on_terminal):
    script = "import os; print(os.tcgetpgrp(0) == os.getpgrp(), input('name? '))"
    terminal = on_terminal(hf.program, "run", "a", "--", sys.executable, "-c", script)
    terminal.expect(r"name\? ")
    terminal.type("anna\n")
    terminal.expect("True anna\n")
    assert terminal.wait() == 0


def test_ctrl_c_reaches_the_command_once(hf, on_terminal):
    terminal = on_terminal(hf.program, "run", "a", "--", sys.executable, "-c", COUNTING)
    terminal.expect("ready\n")
    for _ in range(5):
        terminal.type("\x03")
        terminal.expect("got 2\n")
        time.sleep(0.05)
    terminal.type("\x1c")
    terminal.expect("got 3\n")
    assert "got 2" not in terminal.before
    assert terminal.wait() == 7
    assert hf.json("status", "a")["state"] == "free"


def test_ctrl_c_ends_a_command_that_does_not_mind(hf, on_terminal):
    terminal = on_terminal(hf.program, "run", "a", "--", "sh", "-c", "echo on; exec sleep 1000")
    terminal.expect("on\n")
    terminal.type("\x03")
    assert terminal.wait() == 128 + signal.SIGINT
    assert hf.json("status", "a")["state"] == "free"


def test_ctrl_c_while_waiting_gives_up(hf, on_terminal):
    hf.ok("acquire", "a")
    terminal = on_terminal(hf.program, "run", "--wait", "a", "--", "true")
    poll(lambda: hf.json("status", "a")["waiters"] == 1)
    terminal.type("\x03")
    assert terminal.wait() == 128 + signal.SIGINT
    assert hf.json("status", "a")["waiters"] == 0


def test_without_a_shell_ctrl_z_does_not_stop_for_ever(hf, on_terminal):
    """There is nobody who could continue it (docker run -it, ssh -t)."""
    terminal = on_terminal(hf.program, "run", "a", "--", "sh", "-c", "echo on; read x; echo got $x")
    terminal.expect("on\n")
    terminal.type("\x1a")
    time.sleep(0.2)
    terminal.type("hello\n")
    terminal.expect("got hello\n")
    assert terminal.wait() == 0


def test_a_hangup_reaches_the_command(hf, on_terminal):
    terminal = on_terminal(hf.program, "run", "a", "--", "sh", "-c", "echo on; exec sleep 1000")
    terminal.expect("on\n")
    os.close(terminal.fd)
    terminal.fd = os.open("/dev/null", os.O_RDONLY)
    assert terminal.wait() in (128 + signal.SIGHUP, -signal.SIGHUP)
    poll(lambda: hf.json("status", "a")["state"] == "free")


# ---- under a shell -------------------------------------------------------------------------------


def test_ctrl_z_gives_the_prompt_and_fg_goes_on(hf, shell):
    shell.run(f"'{hf.program}' run a -- sh -c 'echo on; read x; echo got $x; exit 4'")
    shell.expect("on\n")
    shell.press_ctrl_z()
    assert hf.json("status", "a")["state"] == "held"
    shell.run("fg")
    shell.type("hello\n")
    shell.expect("got hello\n")
    shell.expect(PROMPT)
    shell.run("echo code $?")
    shell.expect("code 4\n")


def test_a_stopped_job_keeps_its_lease_for_longer_than_its_ttl(hf, shell):
    shell.run(f"'{hf.program}' run --ttl {TTL_S}s a -- sh -c 'echo on; read x; echo got $x'")
    shell.expect("on\n")
    shell.press_ctrl_z()
    expect_renewals(hf, "a", lived_s=TTL_S)
    shell.run("fg")
    expect_renewals(hf, "a")
    shell.press_ctrl_z()
    expect_renewals(hf, "a")
    shell.run("fg")
    shell.type("bye\n")
    shell.expect("got bye\n")
    shell.expect(PROMPT)
    assert hf.json("status", "a")["state"] == "free"


def test_bg_lets_it_go_on_in_the_background(hf, shell, tmp_path):
    go, done = tmp_path / "go", tmp_path / "done"
    script = f"echo on; until test -e {go}; do sleep 0.1; done; touch {done}"
    shell.run(f"'{hf.program}' run --ttl {TTL_S}s a -- bash -c '{script}'")
    shell.expect("on\n")
    shell.press_ctrl_z()
    shell.run("bg")
    expect_renewals(hf, "a")
    go.touch()
    poll(done.exists)
    shell.expect("Done")
    assert hf.json("status", "a")["state"] == "free"


def test_a_background_job_that_reads_is_stopped_until_it_is_foreground(hf, shell):
    shell.run(f"'{hf.program}' run a -- sh -c 'read x; echo got $x' &")
    shell.expect("Stopped")
    shell.run("fg")
    shell.type("hello\n")
    shell.expect("got hello\n")
    shell.expect(PROMPT)


def test_an_editor_that_stops_itself_is_continued_by_fg(hf, shell):
    """vim catches the key and stops its own process group."""
    script = "import os, signal; print('on', flush=True); os.kill(0, signal.SIGTSTP); print('back')"
    shell.run(f"'{hf.program}' run a -- '{sys.executable}' -c \"{script}\"")
    shell.expect("on\n")
    shell.expect("Stopped")
    shell.expect(PROMPT)
    shell.run("fg")
    shell.expect("back\n")
    shell.expect(PROMPT)


def test_a_stopped_job_whose_command_is_killed_ends(hf, shell, tmp_path):
    pid_file = tmp_path / "pid"
    shell.run(f"'{hf.program}' run a -- sh -c 'echo $$ > {pid_file}; echo on; read x'")
    shell.expect("on\n")
    shell.press_ctrl_z()
    os.kill(int(pid_file.read_text()), signal.SIGKILL)
    shell.expect("Exit 137")
    assert hf.json("status", "a")["state"] == "free"


def test_a_stopped_job_that_is_killed_leaves_nothing(hf, shell, tmp_path):
    pid_file = tmp_path / "pid"
    shell.run(f"'{hf.program}' run a -- sh -c 'echo $$ > {pid_file}; echo on; read x'")
    shell.expect("on\n")
    shell.press_ctrl_z()
    shell.run("kill -9 %1")
    poll(lambda: not is_alive(int(pid_file.read_text())))
    assert hf("run", "--wait=100s", "a", "--", "true").returncode == 0


def test_a_lease_lost_while_stopped_ends_the_job(hf, shell):
    shell.run(f"'{hf.program}' run --ttl {TTL_S}s a -- sh -c 'echo on; read x'")
    shell.expect("on\n")
    fence = hf.json("status", "a")["fence"]
    shell.press_ctrl_z()
    hf.ok("release", "--force", "--fence", fence, "--reason", "test", "a")
    shell.expect("a: the command was ended because its lease was lost")
    shell.expect("Exit 76")


def test_in_a_pipeline_the_terminal_is_not_taken_from_the_others(hf, shell):
    """The pager reads the terminal while the command writes to it."""
    pager = "import sys; t = open('/dev/tty'); data = sys.stdin.read(); print('page', data.split(), t.readline())"
    shell.run(f"'{hf.program}' run a -- seq 3 | '{sys.executable}' -c \"{pager}\"")
    shell.type("next\n")
    shell.expect(r"page \['1', '2', '3'\] next\n")
    shell.expect(PROMPT)


def test_ctrl_c_ends_a_script_or_a_loop_around_it_too(hf, shell, tmp_path):
    command = f"'{hf.program}' run a -- sh -c 'echo on; exec sleep 1000'"
    script = tmp_path / "script"
    script.write_text(f"{command}\necho not reached\n")
    for line in (f"bash {script}", f"for i in 1 2; do {command}; done; echo not reached"):
        shell.run(line)
        shell.expect("on\n")
        shell.type("\x03")
        shell.expect(PROMPT)
        assert "not reached" not in shell.before and "on\n" not in shell.before
        shell.run("echo code $?")
        shell.expect("code 130\n")
        shell.expect(PROMPT)
    assert hf.json("status", "a")["state"] == "free"


def test_a_shell_as_the_command_has_job_control_of_its_own(hf, shell):
    shell.run(f"'{hf.program}' run a -- bash --norc --noprofile --noediting -i")
    shell.expect(PROMPT)
    shell.run("sh -c 'echo sleeping; exec sleep 1000'")
    shell.expect("sleeping\n")
    shell.press_ctrl_z()
    shell.run("kill -KILL %1; disown %1; echo inner $HOLDFAST_NAME")  # exit asks about jobs
    shell.expect("inner a\n")
    shell.run("exit 9")
    shell.expect(PROMPT)
    shell.run("echo code $?")
    shell.expect("code 9\n")
