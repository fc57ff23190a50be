"""`holdfast retry`: one, or all of a workflow that ended in a state; each is repeated once, whoever asks."""
import json
import sqlite3
import subprocess

import pytest

from workflows import Workflows

pytestmark = pytest.mark.stores("sqlite", "postgres")

FAILS = {"command": ["sh", "-c", "cat; exit 1"], "lock": "{workflow}/{key}"}
WORDS = ["retry", "--state", "FAILED", "--workflow", "pay"]


def fail(hf, n, workflow="pay"):
    """So many that have failed, each with an input of its own; their ids, oldest first."""
    return [json.loads(hf("--json", "start", workflow, "--key", f"k{i}", "--input", "-", input=f"in {i}").stdout)["id"]
            for i in range(n)]


def test_the_count_is_said_first_and_the_oldest_goes_first(hf):
    flows = Workflows(hf, pay=FAILS, other=FAILS)
    failed = fail(hf, 4)
    fail(hf, 1, "other")
    looked = hf(*WORDS, "--dry-run")
    assert looked.stdout.split() == failed
    assert looked.stderr == "holdfast: 4 of pay: FAILED, and not retried yet; these would be retried\n"
    assert len(flows.all()) == 5
    done = hf(*WORDS)
    assert done.returncode == 0
    assert done.stderr == "holdfast: 4 of pay: FAILED, and not retried yet; retrying them, the oldest first\n"
    made = done.stdout.split()
    shown = [flows.show(x) for x in made]
    assert [(x["retryOf"], x["input"], x["key"], x["state"]) for x in shown] == \
        [(old, f"in {i}", None, "PENDING") for i, old in enumerate(failed)]
    assert [x["id"] for x in flows.all("--state", "PENDING")] == made[::-1]


def test_twice_is_once(hf):
    flows = Workflows(hf, pay=FAILS)
    failed = fail(hf, 2)
    by_hand = hf.ok("retry", failed[0])
    again = hf("retry", failed[0])
    assert (again.returncode, again.stdout) == (0, by_hand + "\n")
    assert f"was retried before, by {by_hand}, which is PENDING" in again.stderr
    assert len(hf.ok(*WORDS).split()) == 1
    last = hf(*WORDS)
    assert (last.returncode, last.stdout) == (0, "")
    assert last.stderr == "holdfast: 0 of pay: FAILED, and not retried yet; nothing to do\n"
    assert hf("-q", *WORDS).stderr == ""
    assert sorted(x["retryOf"] for x in flows.all("--state", "PENDING")) == sorted(failed)


def test_what_was_retried_and_has_failed_again_is_retried(hf):
    Workflows(hf, pay=FAILS)
    failed = fail(hf, 1)
    first = hf.ok(*WORDS)
    hf.ok("cancel", first)
    aborted = ["retry", "--state", "ABORTED", "--workflow", "pay"]
    second = hf.json(*aborted)
    assert second["retryOf"] == first and first != failed[0]
    assert hf.ok(*aborted) == ""


def test_several_at_once_repeat_each_once(hf):
    flows = Workflows(hf, pay=FAILS)
    failed = fail(hf, 6)
    retries = [hf.start(*WORDS) for _ in range(4)]
    printed = []
    for retry in retries:
        out, said = retry.communicate(timeout=120)
        assert retry.returncode == 0, said
        printed += out.split()
    assert len(set(printed)) == 6
    assert sorted(x["retryOf"] for x in flows.all("--state", "PENDING")) == sorted(failed)


def test_what_waits_or_runs_does_not_refuse_them(hf):
    flows = Workflows(hf, pay={"command": ["sh", "-c", "exit 1"]})
    for _ in range(3):
        flows.start("pay")
    assert len(hf.ok(*WORDS).split()) == 3, "all of one lock"


def test_more_than_are_held_in_memory(hf):
    """Two and a half thousands, made past the program: each of them is repeated, in its order."""
    flows = Workflows(hf, pay=FAILS)
    fail(hf, 1)
    copies(hf, 2500)
    failed = [x["id"] for x in flows.all("--workflow", "pay", "--limit", "9999")][::-1]
    assert len(failed) == 2500
    made = hf.lines(*WORDS)
    assert [x["retryOf"] for x in made] == failed
    assert hf(*WORDS).stdout == ""


def copies(hf, n):
    """Let there be n of the only execution that there is."""
    if hf.scheme == "sqlite":
        db = sqlite3.connect(hf.url.split(":", 1)[1], timeout=60)
        with db:
            db.execute("CREATE TEMP TABLE copy AS WITH RECURSIVE n(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < ?)"
                       " SELECT execution.* FROM execution, n", (n,))
            db.execute("UPDATE copy SET seq = NULL, key = NULL, id = printf('00000000-0000-4000-8000-%012d', rowid)")
            db.execute("INSERT INTO execution SELECT * FROM copy")
        db.close()
    else:
        columns = "run_at, created_at, started_at, finished_at, attempt, state, workflow, lock"
        subprocess.run(["psql", hf.url, "-qc", f"INSERT INTO holdfast.execution (id, {columns}) SELECT gen_random_uuid(),"
                        f" {columns} FROM holdfast.execution, generate_series(2, {n})"], check=True)
