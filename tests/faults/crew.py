"""A crew of workers, and the ledger that their commands write: what the tests of both share.

Commands write one line at a time: item, fence, attempt, start or end; and they hold a kernel lock per
item for as long as anything of their tree lives, so that two at once would be seen.

    ledger = Ledger(hf.tmp_path)
    flows = Workflows(hf, publish=ledger.workflow("sleep 0.1"))
    schedule_all(hf, "publish", keys)
    crew = Crew(hf, 5, "--concurrency", "4")
    poll(lambda: is_settled(flows))
    crew.dismiss()
    check_abort(ledger, ended(flows, keys))
"""
import os
import re
import signal
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

from conftest import PATIENCE_S, poll
from processes import children, read

SCRIPT = """
say() { echo "$HOLDFAST_KEY $HOLDFAST_FENCE $HOLDFAST_ATTEMPT $1" >> %(ledger)s; }
exec 9> %(locks)s/$HOLDFAST_KEY
flock -n 9 || say overlap
say start
%(work)s
say end
"""


class Ledger:
    """What commands did, in the order in which they did it."""

    def __init__(self, tmp_path):
        self.path = tmp_path / "ledger"
        self.locks = tmp_path / "items"
        self.path.touch()
        self.locks.mkdir()

    def workflow(self, work="true", **settings):
        script = SCRIPT % {"ledger": self.path, "locks": self.locks, "work": work}
        return {"command": ["sh", "-c", script], "lock": "{workflow}/{key}", **settings}

    def of(self, what):
        """Per item its (fence, attempt)s, in order."""
        found = defaultdict(list)
        for line in self.path.read_text().splitlines():
            key, fence, attempt, kind = line.split()
            assert kind in ("start", "end"), line  # not "overlap"
            if kind == what:
                found[key].append((int(fence), int(attempt)))
        return found


def heeds_sigterm(pid):
    """Does it take signals by itself by now? One that has just been started is ended by them."""
    blocked = re.search(r"^SigBlk:\s*(\w+)", read(pid, "status"), re.M)
    return blocked is not None and bool(int(blocked.group(1), 16) & 1 << (signal.SIGTERM - 1))


class Crew:
    """Workers, one of which may be killed at any time; another takes its place."""

    def __init__(self, hf, n, *options):
        self.hf, self.options = hf, options
        self.log = open(hf.tmp_path / "work.log", "a")
        self.workers = [self.hire() for _ in range(n)]
        self.struck = defaultdict(int)
        self.stopped = {}  # worker: when it goes on

    def hire(self):
        return self.hf.start("work", *self.options, stderr=self.log, stdout=self.log)

    def replace(self, i):
        self.workers[i].wait(timeout=PATIENCE_S)
        self.workers[i] = self.hire()

    def nursery(self, i):
        """The pid of a worker's nursery, and those of its guardians."""
        pid = self.workers[i].pid
        below = children(pid)
        return (below[0], children(below[0])) if below else (None, [])

    def resume(self, before):
        for worker, until in list(self.stopped.items()):
            if until < before:
                worker.send_signal(signal.SIGCONT)
                del self.stopped[worker]

    def strike(self, chance, stop_s):
        self.resume(time.monotonic())
        i = chance.randrange(len(self.workers))
        ways = ["kill", "stop", "guardian", "nursery"]
        unused = [way for way in ways if not self.struck[way]]
        how = unused[0] if unused else chance.choice(ways)
        nursery, guardians = self.nursery(i)
        try:
            if how == "kill":
                self.workers[i].kill()
                self.replace(i)
            elif how == "stop":
                self.workers[i].send_signal(signal.SIGSTOP)
                self.stopped[self.workers[i]] = time.monotonic() + stop_s
            elif how == "guardian" and guardians:
                os.kill(chance.choice(guardians), signal.SIGKILL)
            elif how == "nursery" and nursery:
                self.resume(float("inf"))
                os.kill(nursery, signal.SIGKILL)
                self.replace(i)
            else:
                return
        except ProcessLookupError:
            return
        self.struck[how] += 1

    def dismiss(self):
        self.resume(float("inf"))
        for worker in self.workers:
            poll(lambda worker=worker: worker.poll() is not None or heeds_sigterm(worker.pid))
            worker.terminate()
        for worker in self.workers:
            assert worker.wait(timeout=PATIENCE_S) == 0
        self.log.close()


def schedule_all(hf, workflow, keys):
    with ThreadPoolExecutor(4) as pool:
        ids = list(pool.map(lambda key: hf.ok("schedule", workflow, "--in", "0s", "--key", key), keys))
    assert len(set(ids)) == len(keys)


def is_settled(flows):
    """Has every one ended? That can't change any more; PENDING and RUNNING come and go."""
    return all(x["state"] in ("SUCCESS", "FAILED", "ABORTED") for x in flows.all("--limit", "1000000"))


def ended(flows, keys):
    """Every item's execution, by its key; none is lost and none is there twice."""
    found = flows.all("--limit", str(len(keys) + 1))
    by_key = {x["key"]: x for x in found}
    assert len(found) == len(by_key) == len(keys) and set(by_key) == set(keys)
    return by_key


def check_abort(ledger, by_key):
    starts, ends = ledger.of("start"), ledger.of("end")
    for key, x in by_key.items():
        assert len(starts[key]) <= 1, (key, starts[key])
        assert x["state"] in ("SUCCESS", "FAILED", "ABORTED"), x
        if x["state"] == "SUCCESS":
            assert starts[key] == ends[key] == [(x["fence"], x["attempt"])], (key, x)


def check_retry(ledger, by_key):
    starts, ends = ledger.of("start"), ledger.of("end")
    for key, x in by_key.items():
        assert x["state"] == "SUCCESS", x
        assert starts[key][-1] == ends[key][-1] == (x["fence"], x["attempt"]), (key, x)
        for earlier, later in zip(starts[key], starts[key][1:]):
            assert earlier[0] < later[0] and earlier[1] < later[1], (key, starts[key])
