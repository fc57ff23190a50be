"""`keep` and `keep-count` of a workflow, through the program: who removes what, and by whose word."""
import time

import pytest

from workflows import Workflows

pytestmark = pytest.mark.stores("sqlite", "postgres")


def swept(hf):
    return hf.json("sweep")["removed"]


def test_a_sweep_goes_by_what_start_has_read(hf):
    flows = Workflows(hf, brief={"command": ["true"], "keep": "1s"}, usual={"command": ["true"]})
    first = hf.json("start", "brief", "--key", "k")
    hf.ok("start", "usual")
    time.sleep(1.1)  # the age is what is tested
    flows.path.unlink()  # whoever sweeps has no such file
    assert swept(hf) == 1
    assert hf("show", first["id"]).returncode == 65
    assert [x["workflow"] for x in flows.all()] == ["usual"]
    assert swept(hf) == 0
    assert hf.json("sweep", "--dry-run") == {"freed": 0, "removed": 0, "dryRun": True}


def test_start_keeps_as_many_as_it_says(hf):
    flows = Workflows(hf, some={"command": ["true"], "keep-count": 2})
    ids = [hf.json("start", "some")["id"] for _ in range(5)]
    assert [x["id"] for x in flows.all()] == ids[:2:-1]
    flows.write(some={"command": ["true"]})
    ids += [hf.json("start", "some")["id"] for _ in range(3)]
    assert [x["id"] for x in flows.all()] == ids[:2:-1]


def test_people_are_told(hf):
    Workflows(hf, brief={"command": ["true"], "keep": "1s"})
    hf.ok("start", "brief")
    time.sleep(1.1)
    said = hf("sweep")
    assert "removed 1 executions" in said.stdout + said.stderr
    assert "removed" not in hf.ok("sweep")


@pytest.mark.stores("file")
def test_a_store_that_keeps_locks_only_has_nothing_to_remove(hf):
    assert hf.json("sweep") == {"freed": 0, "removed": 0, "dryRun": False}
