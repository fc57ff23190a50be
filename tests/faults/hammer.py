"""Clients for the tests of real processes: hammer.c, started and told what to do."""
import select
import subprocess

from conftest import PATIENCE_S, built, poll

EXPIRED, HOLDER_DIED, REBOOTED = 1, 2, 3  # enum hf_stale_reason
HOUR_MS = 3600 * 1000
FOREVER = -1


class Talker:
    """A client that is told what to do, line by line."""

    def __init__(self, hf, prefix=(), env=None):
        self.process = hf.start_program([*prefix, built("tests", "hammer"), "talk"], env=env,
                                        stdin=subprocess.PIPE, stderr=None)

    def send(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self):
        readable, _, _ = select.select([self.process.stdout], [], [], PATIENCE_S)
        assert readable, f"no answer in {PATIENCE_S} s"
        line = self.process.stdout.readline()
        assert line, f"the client ended with {self.process.wait()} and no answer"
        return line.split()

    def ask(self, line):
        self.send(line)
        return self.answer()

    def acquire(self, name="it", ttl_ms=HOUR_MS, wait_ms=0, priority=0, bound=1):
        return self.ask(f"acquire {name} {ttl_ms} {wait_ms} {priority} {bound}")

    def wait(self, name="it", ttl_ms=HOUR_MS, priority=0, bound=1):
        """Start to wait; answer() comes with the grant."""
        self.send(f"acquire {name} {ttl_ms} {FOREVER} {priority} {bound}")

    def kill(self):
        self.process.kill()
        self.process.wait()


def status(hf, name="it"):
    return hf.json("status", name)


def wait_for_waiters(hf, n, name="it"):
    poll(lambda: status(hf, name)["waiters"] == n)


def start_counter(hf, tmp_path, number, rounds, manner="count"):
    """manner "endure": it asks again for as long as the store is away."""
    return hf.start_program([built("tests", "hammer"), manner, "counter", str(tmp_path / "counter"),
                             str(tmp_path / f"log.{number}"), str(rounds)], stderr=None)


def read_logs(tmp_path):
    """(number, fence, why it was taken over) of every raise, in the order of the numbers."""
    noted = []
    for log in tmp_path.glob("log.*"):
        noted += [tuple(map(int, line.split())) for line in log.read_text().splitlines()]
    return sorted(noted)


def assert_exclusive(noted):
    numbers, fences = [n for n, _, _ in noted], [f for _, f, _ in noted]
    assert len(set(numbers)) == len(numbers), "two held it at once"
    assert all(a < b for a, b in zip(fences, fences[1:])), "fences did not grow with the counter"
