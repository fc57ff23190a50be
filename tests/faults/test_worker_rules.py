"""What workflows ask for, kept by real workers: the ledger (see crew.py) tells whether they did.

Turns at a lock that several workflows share, what becomes of lost attempts, retries, limits and overlap.
"""
import pytest

from conftest import poll
from crew import Crew, Ledger, ended, schedule_all
from workflows import Workflows

pytestmark = pytest.mark.stores("sqlite", "postgres")


# ---- turns --------------------------------------------------------------------------------------


def test_nobody_waits_behind_a_workflow_that_no_worker_takes(hf):
    """Two workflows share a lock; what goes first there belongs to the one without a worker."""
    ledger = Ledger(hf.tmp_path)
    flows = Workflows(hf, ours=ledger.workflow(lock="shared"), theirs=ledger.workflow(lock="shared"))
    token = hf.ok("acquire", "shared")
    for key in ("a", "b"):
        hf.ok("schedule", "theirs", "--in", "0s", "--key", key, "--priority", "9")
    schedule_all(hf, "ours", ["c", "d", "e"])
    crew = Crew(hf, 2, "--workflow", "ours")
    hf.ok("release", "shared", token)
    poll(lambda: len(flows.all("--workflow", "ours", "--state", "SUCCESS")) == 3)
    assert set(ledger.of("start")) == {"c", "d", "e"}
    assert {x["state"] for x in flows.all("--workflow", "theirs")} == {"PENDING"}
    crew.dismiss()
    crew = Crew(hf, 1)  # takes both
    poll(lambda: len(flows.all("--state", "SUCCESS")) == 5)
    crew.dismiss()
    by_key = ended(flows, list("abcde"))
    assert all(ledger.of("end")[key] == [(x["fence"], 1)] for key, x in by_key.items())
