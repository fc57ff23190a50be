"""Every route, and every kind of answer it has: all of them are validated against openapi.json as they come."""
import json
import os
import re
import time
import uuid

import pytest

from api_helpers import OPENAPI, api, quoted, run_node, run_tool, service  # noqa: F401
from conftest import ROOT, poll

TOKEN = "00000000-0000-4000-8000-000000000001"


def acquire(service, name, **body):
    return service.post(f"/v1/locks/{quoted(name)}", body).ok()


# ---- the description --------------------------------------------------------------------------


def test_the_table_of_routes_is_what_is_described():
    with open(os.path.join(ROOT, "src/server/routes.c")) as file:
        rows = re.findall(r'\{"(GET|POST)", "([^"]+)", VERB_(\w+)', file.read())
    table = {(method.lower(), path.replace("*", "{name}").replace("#", "{id}"), verb.lower().replace("_", ":"))
             for method, path, verb in rows}
    described = {(method, path, operation.get("x-holdfast-verb", "none"))
                 for path, item in OPENAPI["paths"].items() for method, operation in item.items() if method != "parameters"}
    assert table == described


def test_the_description_is_served(service):
    assert service.get("/openapi.json").ok() == OPENAPI


def test_the_description_is_valid():
    done = run_node("validate.mjs", os.path.join(ROOT, "src/server/openapi.json"))
    assert done.returncode == 0, done.stdout + done.stderr


# ---- single locks -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "a/b c", "nightly:report", "grün", "100%", "a+b", "x" * 200])
def test_a_lock_from_free_to_free(service, name):
    path = f"/v1/locks/{quoted(name)}"
    assert service.get(path).ok()["state"] == "free"
    lease = service.post(path, {"ttl": "30s", "owner": "me", "note": "why"}).ok()
    assert lease["name"] == name and lease["ttlMs"] == 30000 and lease["owner"] == "me" and lease["note"] == "why"
    status = service.get(path).ok()
    assert status["state"] == "held" and status["alive"] is None and status["fence"] == lease["fence"]
    problem = service.post(path).problem(409, "LOCK_HELD")
    assert problem["holder"]["fence"] == lease["fence"] and "me" in problem["detail"]
    renewed = service.post(path + "/extend", {"token": lease["token"], "ttlMs": 60000, "fence": lease["fence"]}).ok()
    assert renewed["fence"] == lease["fence"] and renewed["ttlMs"] == 60000
    assert service.post(path + "/guard", {"fence": lease["fence"]}).ok()["current"]
    assert service.post(path + "/release", {"token": lease["token"]}).ok()["released"]
    assert service.get(path).ok()["state"] == "free"


def test_a_held_lock_says_when_to_try_again(service):
    acquire(service, "a", ttl=30)
    answer = service.post("/v1/locks/a")
    assert 1 <= int(answer.headers["retry-after"]) <= 31


def test_the_same_token_is_the_same_acquire(service):
    first = acquire(service, "a", token=TOKEN)
    assert acquire(service, "a", token=TOKEN)["fence"] == first["fence"]
    service.post("/v1/locks/a/release", {"token": TOKEN}).ok()
    service.post("/v1/locks/a/release", {"token": TOKEN}).ok()  # its reply may have been lost
    service.post("/v1/locks/a", {"token": TOKEN}).problem(409, "LEASE_LOST")


def test_what_is_not_yours(service):
    lease = acquire(service, "a")
    stranger = str(uuid.uuid4())
    service.post("/v1/locks/a/extend", {"token": stranger}).problem(409, "LEASE_LOST")
    service.post("/v1/locks/a/release", {"token": stranger}).problem(409, "LEASE_LOST")
    service.post("/v1/locks/a/extend", {"token": lease["token"], "fence": lease["fence"] + 1}).problem(409, "LEASE_LOST")
    service.post("/v1/locks/a/guard", {"fence": lease["fence"] + 1}).problem(409, "FENCE_STALE")
    assert service.get("/v1/locks/a").ok()["fence"] == lease["fence"]


def test_force_names_the_fence(service):
    lease = acquire(service, "a")
    service.post("/v1/locks/a/force-release", {"fence": lease["fence"] + 1}).problem(409, "FENCE_STALE")
    assert service.post("/v1/locks/a/force-release", {"fence": lease["fence"], "reason": "it is dead"}).ok()["freed"]
    service.post("/v1/locks/a/release", {"token": lease["token"]}).problem(409, "LEASE_LOST")
    forced = [e for e in service.get("/v1/events?name=a").ok()["items"] if e["kind"] == "forced"]
    assert forced[0]["reason"] == "it is dead" and "127.0.0.1" in forced[0]["detail"]


def test_a_stale_lease_is_taken_over_loudly(service):
    acquire(service, "a", ttlMs=100, owner="sleeper")
    poll(lambda: service.get("/v1/locks/a").ok()["state"] == "stale")
    acquire(service, "a", owner="next")
    assert "STALE LOCK" in poll(lambda: service.logged("takeover"))
    assert "sleeper" in service.logged("takeover")


def test_sweep(service):
    acquire(service, "a", ttlMs=100)
    acquire(service, "b", ttl="1h")
    poll(lambda: service.get("/v1/locks/a").ok()["state"] == "stale")
    assert service.post("/v1/sweep").ok() == {"freed": 1}
    assert service.post("/v1/sweep").ok() == {"freed": 0}


# ---- lists ------------------------------------------------------------------------------------


def test_pages_of_locks(service):
    names = [f"n{i:03}" for i in range(25)]
    for name in names:
        acquire(service, name)
    seen, cursor = [], ""
    while True:
        page = service.get(f"/v1/locks?limit=10&prefix=n&cursor={cursor}").ok()
        seen += [item["name"] for item in page["items"]]
        assert len(page["items"]) <= 10
        cursor = page["nextCursor"]
        if cursor is None:
            break
    assert seen == names
    assert service.get("/v1/locks?state=stale").ok()["items"] == []
    assert [i["name"] for i in service.get("/v1/locks?prefix=n00").ok()["items"]] == names[:10]


def test_pages_of_events(service):
    for i in range(7):
        lease = acquire(service, "a")
        service.post("/v1/locks/a/release", {"token": lease["token"]}).ok()
    acquire(service, "b")
    first = service.get("/v1/events?name=a&limit=10").ok()
    rest = service.get(f"/v1/events?name=a&limit=10&after={first['nextCursor']}").ok()
    kinds = [e["kind"] for e in first["items"] + rest["items"]]
    assert kinds == ["acquired", "released"] * 7 and rest["nextCursor"] is None
    assert [e["name"] for e in service.get("/v1/events?newest=1").ok()["items"]] == ["b"]


def test_the_stream_of_events(service):
    acquire(service, "a")
    connection = service.connect()
    connection.request("GET", "/v1/events/stream")
    response = connection.getresponse()
    assert response.getheader("content-type") == "text/event-stream"

    def next_event():
        lines = {}
        while (line := response.readline().decode().rstrip("\n")) or not lines:
            if line and not line.startswith(":"):
                key, value = line.split(": ", 1)
                lines[key] = value
        return lines

    first = next_event()
    assert first["event"] == "acquired" and json.loads(first["data"])["name"] == "a"
    acquire(service, "b")
    second = next_event()
    assert json.loads(second["data"])["name"] == "b"
    connection.close()
    again = service.connect()
    again.request("GET", "/v1/events/stream", headers={"Last-Event-ID": first["id"]})
    response = again.getresponse()
    assert next_event()["id"] == second["id"]
    again.close()


# ---- the rest ---------------------------------------------------------------------------------


def test_batches(service):
    answers = service.post("/v1/batch", {"requests": [
        {"op": "acquire", "name": "a", "token": TOKEN, "ttlMs": 1000, "owner": "x"},
        {"op": "status", "name": "a"},
        {"op": "acquire", "name": "a", "token": str(uuid.uuid4()), "ttlMs": 1000, "waitMs": 5000},
        {"op": "release", "name": "a", "token": TOKEN},
        {"op": "status", "name": "a"}]}).ok()["answers"]
    assert [a["code"] for a in answers] == [None, None, "LOCK_HELD", None, None]
    assert answers[2]["queued"] and answers[1]["holder"]["owner"] == "x"
    assert answers[4]["holder"]["state"] == "held"  # offered to who waited
    service.post("/v1/batch", {"requests": []}).problem(400, "INVALID")
    service.post("/v1/batch", {"requests": [{"op": "nonsense", "name": "a"}]}).problem(400, "INVALID")
    service.post("/v1/batch", {"requests": [{"op": "status", "name": "a", "x": 1}]}).problem(400, "INVALID")
    service.post("/v1/batch", {"requests": [{"op": "extend", "name": "a"}]}).problem(400, "INVALID")


def test_metrics_please_promtool(service):
    lease = acquire(service, "a")
    service.post("/v1/locks/a").problem(409, "LOCK_HELD")
    service.post("/v1/locks/a/extend", {"token": lease["token"]}).ok()
    service.post("/v1/locks/a/release", {"token": lease["token"]}).ok()
    text = service.get("/metrics").body
    done = run_tool("promtool", "check", "metrics", input=text)
    assert done.returncode == 0 and done.stdout + done.stderr == ""
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    for name in ("acquire", "hold", "renewal"):
        counts = [v for k, v in values.items() if re.match(rf"holdfast_{name}_\w+_seconds_count", k)]
        assert counts == ["1"], name
    assert values['holdfast_acquire_total{result="granted"}'] == "1"
    assert values['holdfast_acquire_total{result="held"}'] == "1"
    assert '"a"' not in text
    assert service.get("/v1/totals").ok()["acquireGranted"] == 1


def test_probes_and_the_page(service):
    assert service.get("/healthz").ok() == service.get("/readyz").ok() == {"status": "ok"}
    assert "Holdfast" in service.get("/").body
    assert service.ask("HEAD", "/v1/locks/a").status == 200


def test_request_ids_come_back(service):
    assert service.get("/healthz", headers={"X-Request-Id": "abc-1"}).headers["x-request-id"] == "abc-1"
    odd = service.get("/healthz", headers={"X-Request-Id": "a b<script>"}).headers["x-request-id"]
    assert re.fullmatch("[0-9a-f]{24}", odd)
    assert service.post("/v1/locks/a", {"x": 1}, headers={"X-Request-Id": "q"}).json["requestId"] == "q"


@pytest.mark.parametrize("method, path, status", [
    ("GET", "/nothing", 404), ("GET", "/v1/locks/a/b", 404), ("DELETE", "/v1/locks/a", 405), ("PUT", "/v1/sweep", 405),
    ("GET", "/v1/locks/a/extend", 405)])
def test_what_is_not_there(service, method, path, status):
    answer = service.ask(method, path)
    assert answer.status == status
    assert ("allow" in answer.headers) == (status == 405)


def test_a_wake_stream(service):
    import hashlib
    acquire(service, "a", token=TOKEN)
    waiter = str(uuid.uuid4())
    lock_id = hashlib.sha256(waiter.encode()).hexdigest()[:32]
    connection = service.connect()
    connection.request("GET", f"/v1/locks/a/wakes?id={lock_id}")
    response = connection.getresponse()
    assert response.readline() == b": watching\n"
    service.post("/v1/batch", {"requests": [{"op": "acquire", "name": "a", "token": waiter, "ttlMs": 9000, "waitMs": -1}]}).ok()
    service.post("/v1/locks/a/release", {"token": TOKEN}).ok()
    assert [response.readline() for _ in range(2)][1] == b"event: woken\n"
    connection.close()
    service.get("/v1/locks/a/wakes?id=zz").problem(400, "INVALID")
