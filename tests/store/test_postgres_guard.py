"""holdfast.guard(name, fence): a write in the caller's own transaction, refused when the fence is not current."""
import os
import re
import select
import signal
import time

import pytest
from conftest import PATIENCE_S, ROOT, poll

HELD = 75


class Session:
    """A psql that is kept open: a transaction in the hands of the test."""

    def __init__(self, server, database):
        self.process = server.start_psql(database)

    def send(self, sql):
        self.process.stdin.write(sql + ";\n\\echo =done=\n")
        self.process.stdin.flush()

    def answer(self, limit_s=PATIENCE_S):
        text = ""
        while "=done=\n" not in text:
            readable, _, _ = select.select([self.process.stdout], [], [], limit_s)
            assert readable, f"no answer in {limit_s} s; so far: {text}"
            text += os.read(self.process.stdout.fileno(), 65536).decode()
        return text.replace("=done=\n", "")

    def ask(self, sql):
        self.send(sql)
        return self.answer()

    def close(self):
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def database(hf):
    return hf.url.rsplit("/", 1)[1]


@pytest.fixture
def session(hf, shared_postgres, database):
    hf.ok("init")
    shared_postgres.psql("CREATE TABLE account (id int PRIMARY KEY, balance int); INSERT INTO account VALUES (1, 100)",
                         database)
    opened = []

    def make():
        opened.append(Session(shared_postgres, database))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


pytestmark = pytest.mark.stores("postgres")
LEVELS = pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])


def example(name):
    """The documented one, but that its work ends when the test says so and not after a second."""
    with open(os.path.join(ROOT, "docs", "postgres.md")) as text:
        blocks = re.findall(r"```(?:sh|sql)\n(.*?)```", text.read(), re.S)
    block = next(block for block in blocks if name in block)
    return re.sub(r"^sleep 1 .*$", 'until [ -e "$GO" ]; do sleep 0.05; done', block, flags=re.M)


def test_the_documented_example(hf, shared_postgres, database, tmp_path):
    hf.ok("init")
    shared_postgres.psql(example("CREATE TABLE account"), database)
    script, go = tmp_path / "pay.sh", tmp_path / "go"
    script.write_text(example("pay.sh WORKER"))
    assert "until" in script.read_text() and "holdfast.guard" in script.read_text()
    env = {"PATH": f"{os.path.dirname(hf.program)}:{os.environ['PATH']}", "GO": str(go)}
    first = hf.start_program(["sh", script, "worker-1"], env=env, start_new_session=True)
    assert first.stdout.readline().startswith("worker-1 has the lock, fence ")
    os.killpg(first.pid, signal.SIGSTOP)
    go.touch()
    poll(lambda: hf.json("status", "payout")["state"] == "stale")
    second = hf.start_program(["sh", script, "worker-2"], env=env)
    out, err = second.communicate(timeout=PATIENCE_S)
    assert "worker-2: psql exit 0" in out and "STALE LOCK taken over: payout" in err
    os.killpg(first.pid, signal.SIGCONT)
    out, err = first.communicate(timeout=PATIENCE_S)
    assert "worker-1: psql exit 3" in out and "of payout is not current" in err
    assert shared_postgres.psql("TABLE account", database) == "1|400|worker-2"


def test_a_paused_worker_wakes_and_the_database_refuses_its_update(hf, session):
    worker, other = session(), session()
    paused = hf.json("acquire", "--ttl", "500ms", "nightly")
    current = hf.json("acquire", "--wait=100s", "--ttl", "1h", "nightly")  # while the worker is paused
    update = "BEGIN; SELECT holdfast.guard('nightly', {}); UPDATE account SET balance = balance - {} WHERE id = 1; COMMIT"
    assert "HF001" in worker.ask(update.format(paused["fence"], 1))
    assert worker.ask("SELECT balance FROM account") == "100\n"
    assert "ERROR" not in other.ask(update.format(current["fence"], 10))
    assert worker.ask("SELECT balance FROM account") == "90\n"


@LEVELS
def test_a_guard_of_another_fence_is_refused(hf, session, level):
    lease = hf.json("acquire", "--ttl", "1h", "a")
    worker = session()
    for name, fence in (("a", lease["fence"] - 1), ("a", lease["fence"] + 1), ("never used", 1), ("a", 0)):
        answer = worker.ask(f"BEGIN ISOLATION LEVEL {level}; SELECT holdfast.guard('{name}', {fence}); ROLLBACK")
        assert "HF001" in answer, (name, fence)
    assert "ERROR" not in worker.ask(f"BEGIN ISOLATION LEVEL {level}; SELECT holdfast.guard('a', {lease['fence']}); COMMIT")
    hf.ok("release", "a", lease["token"])
    assert "HF001" in worker.ask(f"SELECT holdfast.guard('a', {lease['fence']})")


def test_an_expired_lease_is_refused_though_nobody_took_it(hf, session):
    lease = hf.json("acquire", "--ttl", "300ms", "a")
    worker = session()
    poll(lambda: hf.json("status", "a")["state"] != "held")
    assert "HF001" in worker.ask(f"SELECT holdfast.guard('a', {lease['fence']})")


@LEVELS
def test_a_guard_never_delays_the_holders_heartbeats_nor_its_release(hf, session, level):
    lease = hf.json("acquire", "--ttl", "1h", "a")
    worker = session()
    assert "ERROR" not in worker.ask(f"BEGIN ISOLATION LEVEL {level}; SELECT holdfast.guard('a', {lease['fence']})")
    for _ in range(3):
        assert hf.json("extend", "a", lease["token"], timeout=PATIENCE_S)["fence"] == lease["fence"]
    hf.ok("release", "a", lease["token"])
    assert "ERROR" not in worker.ask("COMMIT")


@LEVELS
def test_a_takeover_waits_until_the_guarded_transaction_has_ended(hf, session, level):
    lease = hf.json("acquire", "--ttl", "500ms", "a")
    worker = session()
    assert "ERROR" not in worker.ask(f"BEGIN ISOLATION LEVEL {level}; SELECT holdfast.guard('a', {lease['fence']})")
    successor = hf.start("acquire", "--wait=100s", "a")
    poll(lambda: hf.json("status", "a")["state"] != "held")
    assert hf("acquire", "a").returncode == HELD  # after a bounded wait
    assert successor.poll() is None
    assert "ERROR" not in worker.ask("UPDATE account SET balance = balance - 1")
    assert "ERROR" not in worker.ask("COMMIT")
    assert successor.wait(timeout=PATIENCE_S) == 0
    assert hf.json("status", "a")["fence"] > lease["fence"]
    assert "HF001" in worker.ask(f"SELECT holdfast.guard('a', {lease['fence']})")


def test_force_waits_for_a_guard_too_or_says_so(hf, session):
    lease = hf.json("acquire", "--ttl", "1h", "a")
    worker = session()
    assert "ERROR" not in worker.ask(f"BEGIN; SELECT holdfast.guard('a', {lease['fence']})")
    force = hf.start("release", "--force", "--fence", lease["fence"], "a")
    time.sleep(0.3)
    assert hf.json("status", "a")["state"] == "held", "it was freed under a guard"
    assert "ERROR" not in worker.ask("COMMIT")
    force.communicate(timeout=PATIENCE_S)
    assert hf.json("status", "a")["state"] == ("free" if force.returncode == 0 else "held")


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_an_old_snapshot_does_not_hide_a_takeover(hf, session, level):
    """The worker's transaction began while it held the lock, and sees that time; the guard must not."""
    lease = hf.json("acquire", "--ttl", "1h", "a")
    worker = session()
    assert worker.ask(f"BEGIN ISOLATION LEVEL {level}; SELECT balance FROM account") == "100\n"
    hf.ok("release", "a", lease["token"])
    hf.ok("acquire", "--ttl", "1h", "a")
    answer = worker.ask(f"SELECT holdfast.guard('a', {lease['fence']})")
    assert re.search("HF001|40001", answer), answer
    worker.ask("ROLLBACK")


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_an_old_snapshot_does_not_hide_a_renewal(hf, session, level):
    """Renewed since the snapshot: still the current fence, so it may go on (or be told to try again)."""
    lease = hf.json("acquire", "--ttl", "1h", "a")
    worker = session()
    assert worker.ask(f"BEGIN ISOLATION LEVEL {level}; SELECT balance FROM account") == "100\n"
    hf.ok("extend", "a", lease["token"])
    answer = worker.ask(f"SELECT holdfast.guard('a', {lease['fence']})")
    assert "HF001" not in answer
    worker.ask("ROLLBACK")


def test_a_statement_that_outlives_its_client_keeps_the_next_holder_out(hf, session, shared_postgres, database):
    """exclusion.md, row 11: psql was killed at its timeout, and its transaction went on in the server beside the next holder's."""
    assert "ERROR" not in session().ask("CREATE TABLE entry (n serial, who text)")
    sql = "BEGIN; SELECT holdfast.guard('payout', %s); SELECT pg_sleep(2); INSERT INTO entry (who) VALUES ('first'); COMMIT"
    first = hf("run", "--timeout", "500ms", "payout", "--", "sh", "-c", 'exec psql -qX "$1" -c "$(printf "$2" "$HOLDFAST_FENCE")"',
               "sh", hf.url, sql)
    assert first.returncode == 124, first.stderr
    assert shared_postgres.psql("SELECT count(*) FROM entry", database) == "0", "it was done before its client was killed"
    hf.ok("run", "--wait=100s", "payout", "--", "psql", "-qX", hf.url, "-c", "INSERT INTO entry (who) VALUES ('second')")
    assert shared_postgres.psql("SELECT string_agg(who, ' ' ORDER BY n) FROM entry", database) == "first second"


def test_a_guard_rolled_back_leaves_nothing(hf, session):
    lease = hf.json("acquire", "--ttl", "500ms", "a")
    worker = session()
    worker.ask(f"BEGIN; SELECT holdfast.guard('a', {lease['fence']}); ROLLBACK")
    assert hf.json("acquire", "--wait=100s", "a")["fence"] > lease["fence"]
