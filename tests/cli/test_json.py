"""--json: the fields of every answer, their types and forms, as users' scripts rest on them."""
import json
import re

from conftest import poll

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z\Z")
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")

LEASE = ["name", "token", "fence", "owner", "note", "acquiredAt", "expiresAt", "ttlMs", "executionId"]
STATUS = ["name", "state", "fence", "owner", "alive", "note", "executionId", "lockedSince",
          "expiresAt", "remainingMs", "waiters"]
EVENT = ["seq", "at", "kind", "name", "fence", "owner", "executionId", "reason", "detail"]


def compact_line(text):
    """One JSON object on one line, without a space that JSON does not need."""
    assert text.count("\n") == 1 and text.endswith("\n")
    value = json.loads(text)
    assert text == json.dumps(value, separators=(",", ":"), ensure_ascii=False) + "\n"
    return value


def test_lease(hf):
    note = 'ü "quoted" \\'
    lease = compact_line(hf("--json", "acquire", "--note", note, "--ttl", "90s", "ä").stdout)
    assert list(lease) == LEASE
    assert lease["name"] == "ä" and lease["note"] == note
    assert UUID.match(lease["token"])
    assert isinstance(lease["fence"], int) and 0 < lease["fence"] < 2**53
    assert isinstance(lease["owner"], str) and "/" in lease["owner"]
    assert TIME.match(lease["acquiredAt"]) and TIME.match(lease["expiresAt"])
    assert lease["acquiredAt"] < lease["expiresAt"]
    assert lease["ttlMs"] == 90000 and lease["executionId"] is None
    extended = compact_line(hf("extend", "--json", "ä", lease["token"]).stdout)
    assert list(extended) == LEASE
    assert extended.pop("expiresAt") >= lease.pop("expiresAt")
    assert extended == lease


def test_status_of_a_free_name(hf):
    assert compact_line(hf("--json", "status", "a").stdout) == {
        "name": "a", "state": "free", "fence": 0, "owner": None, "alive": None, "note": None,
        "executionId": None, "lockedSince": None, "expiresAt": None, "remainingMs": 0, "waiters": 0}


def test_status_of_a_held_name(hf):
    lease = hf.json("acquire", "--owner", "me", "--ttl", "1h", "a")
    status = compact_line(hf("status", "a", "--json").stdout)
    assert list(status) == STATUS
    assert status["state"] == "held" and status["fence"] == lease["fence"]
    assert status["owner"] == "me" and status["alive"] is None and status["note"] is None
    assert TIME.match(status["lockedSince"]) and TIME.match(status["expiresAt"])
    assert 0 < status["remainingMs"] <= 3600000 and status["waiters"] == 0
    assert lease["token"] not in json.dumps(status)


def test_status_of_a_stale_name(hf):
    hf.ok("acquire", "--ttl", "100ms", "a")
    status = poll(lambda: (s := hf.json("status", "a"))["state"] == "stale" and s)
    assert list(status) == STATUS
    assert status["remainingMs"] <= 0


def test_status_after_a_release_keeps_the_fence(hf):
    lease = hf.json("acquire", "a")
    hf.ok("release", "a", lease["token"])
    status = hf.json("status", "a")
    assert (status["state"], status["fence"]) == ("free", lease["fence"])


def test_list_is_one_status_per_line(hf):
    hf.ok("acquire", "a")
    hf.ok("acquire", "b")
    lines = hf("--json", "list").stdout.splitlines(keepends=True)
    assert [list(compact_line(line)) for line in lines] == [STATUS, STATUS]


def test_events(hf):
    lease = hf.json("acquire", "--owner", "me", "a")
    hf("acquire", "--owner", "you", "a")
    hf.ok("release", "a", lease["token"])
    events = [compact_line(line) for line in hf("--json", "events").stdout.splitlines(keepends=True)]
    assert [list(event) for event in events] == [EVENT] * 3
    assert [event["kind"] for event in events] == ["acquired", "denied", "released"]
    assert [event["owner"] for event in events] == ["me", "you", "me"]
    assert all(TIME.match(event["at"]) and event["name"] == "a" for event in events)
    assert all(event["fence"] == lease["fence"] for event in events)
    sequence = [event["seq"] for event in events]
    assert sequence == sorted(set(sequence))
    assert lease["token"] not in json.dumps(events)


def test_why_is_one_object(hf):
    hf.ok("acquire", "a")
    hf("acquire", "a")
    why = compact_line(hf("--json", "why", "a").stdout)
    assert list(why) == ["status", "events"]
    assert list(why["status"]) == STATUS
    assert [list(event) for event in why["events"]] == [EVENT] * 2
    assert compact_line(hf("--json", "why", "b").stdout)["events"] == []


def test_release(hf):
    lease = hf.json("acquire", "a")
    done = {"name": "a", "released": True}
    assert compact_line(hf("--json", "release", "a", lease["token"]).stdout) == done
    fence = hf.json("acquire", "a")["fence"]
    assert compact_line(hf("--json", "release", "--force", "--fence", fence, "a").stdout) == done


def test_guard(hf):
    fence = hf.json("acquire", "a")["fence"]
    assert compact_line(hf("--json", "guard", "a", fence).stdout) == {
        "name": "a", "fence": fence, "current": True}


def test_sweep(hf):
    hf.ok("acquire", "--ttl", "100ms", "a")
    poll(lambda: hf.json("status", "a")["state"] == "stale")
    assert compact_line(hf("--json", "sweep", "--dry-run").stdout) == {"freed": 1, "removed": 0, "dryRun": True}
    assert compact_line(hf("--json", "sweep").stdout) == {"freed": 1, "removed": 0, "dryRun": False}


def test_metrics(hf):
    hf.ok("acquire", "a")
    assert compact_line(hf("--json", "metrics").stdout) == {
        "acquireGranted": 1, "acquireHeld": 0, "releaseDone": 0, "releaseLost": 0,
        "takeoverExpired": 0, "takeoverHolderDied": 0, "takeoverRebooted": 0, "forced": 0, "lost": 0,
        "locksHeld": 1, "locksStale": 0, "locksFree": 0, "waiters": 0}


def test_init(hf):
    assert compact_line(hf("--json", "init").stdout) == {"store": hf.url, "epochBumped": False}
    assert compact_line(hf("--json", "init", "--bump-epoch").stdout)["epochBumped"] is True


def test_errors_stay_lines_on_stderr(hf):
    hf.ok("acquire", "--owner", "me", "a")
    refused = hf("--json", "acquire", "a")
    assert (refused.returncode, refused.stdout) == (75, "")
    assert refused.stderr.startswith("holdfast: a is held by me")
