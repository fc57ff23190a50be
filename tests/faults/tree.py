"""A command whose processes cling to life, and how a test sees that none outlives its lease."""
import sys
import uuid

from conftest import marked_processes, poll
from processes import child_named, is_alive
from workflows import Workflows, work

# A tree that clings to life: a daemon in a session of its own, a child that ignores SIGTERM and holds
# the pipes, and a shell pipeline. Each writes the boot clock into a file of its own all the time.
TREE = r"""
import os, signal, subprocess, sys, time

def beat(path):
    beats = open(path, "w")
    while True:
        beats.seek(0)
        beats.write("%.6f" % time.clock_gettime(time.CLOCK_BOOTTIME))
        beats.flush()
        time.sleep(0.002)

where = sys.argv[1]
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for fd in range(3):
            os.close(fd)
        beat(where + "/daemon")
    os._exit(0)
if os.fork() == 0:
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    os.setpgid(0, 0)
    beat(where + "/stubborn")
subprocess.Popen("sleep 1000 | cat", shell=True)
while len([f for f in os.listdir(where) if os.path.getsize(where + "/" + f)]) < 2:
    time.sleep(0.002)
print("on", flush=True)
beat(where + "/command")
"""

# The next holder: says when it started, and which processes of the first tree it found alive.
NEXT = r"""
import os, sys, time
now = time.clock_gettime(time.CLOCK_BOOTTIME)
alive = []
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        stat = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
        if stat[0] not in "ZX" and sys.argv[1].encode() in open(f"/proc/{pid}/environ", "rb").read().split(b"\0"):
            alive.append(pid)
    except OSError:
        pass
print(now, *alive)
"""


class Tree:
    """A wrapper whose command is TREE, and what is known of it."""

    def __init__(self, hf, tmp_path, *options, name="a"):
        self.hf, self.name, self.tag = hf, name, f"TREE_TAG={uuid.uuid4()}"
        self.where = tmp_path / "beats"
        self.where.mkdir()
        self.start([sys.executable, "-c", TREE, str(self.where)], options, dict([self.tag.split("=")]))

    def start(self, command, options, env):
        self.wrapper = self.hf.start("run", *options, self.name, "--", *command, env=env, start_new_session=True)
        assert self.wrapper.stdout.readline() == "on\n"
        self.guardian = child_named(self.wrapper.pid, "holdfast-guard")
        self.ours = {self.wrapper.pid, self.guardian}

    def processes(self):
        """All but the wrapper, living."""
        pids = set(marked_processes(self.tag)) - {self.wrapper.pid}
        return [pid for pid in pids if is_alive(pid)]

    def last_beat(self):
        return max(float(path.read_text() or 0) for path in self.where.iterdir())

    def next_holder(self, *options):
        """Start the next one, waiting for its turn."""
        return self.hf.start("run", "--wait=100s", *options, self.name, "--", sys.executable, "-c",
                             NEXT, self.tag, start_new_session=True)

    def assert_dead_before(self, successor):
        out, err = successor.communicate()
        assert successor.returncode == 0, err
        started, *alive = out.split()
        # Wrapper and guardian of the first may still be about; nothing of the command.
        assert {int(pid) for pid in alive} <= self.ours
        assert self.last_beat() < float(started)


class WorkedTree(Tree):
    """The same as an execution that a worker runs; `options` are its workflow's."""

    def start(self, command, options, env):
        flows = Workflows(self.hf, **{self.name: {"command": command, **dict(options)}})
        self.hf.ok("schedule", self.name, "--in", "0s")
        self.wrapper = work(self.hf, env=env)
        flows.running(self.name)
        poll(lambda: len(list(self.where.iterdir())) == 3 and self.last_beat())
        nursery = child_named(self.wrapper.pid, "holdfast-nurse")
        self.guardian = child_named(nursery, "holdfast-guard")
        self.ours = {self.wrapper.pid, nursery, self.guardian}
