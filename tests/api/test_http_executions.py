"""Executions over HTTP: created, begun, claimed, looked at, cancelled, repeated. Every answer is validated as it comes."""
import base64
import json
import os
import re
import threading
import time
import uuid

import pytest

from api_helpers import Service, api, make_service, run_tool, service  # noqa: F401
from conftest import PATIENCE_S, Holdfast, poll
from workflows import Workflows

NOBODY = "00000000-0000-4000-8000-000000000000"
MIB = 1 << 20


def create(service, workflow="pay", status=201, **body):
    return service.post("/v1/executions", {"workflow": workflow, **body}).ok(status)


def claim(service, **body):
    return service.post("/v1/executions/claim", body).ok()["items"]


def claim_one(service, **body):
    items = claim(service, **body)
    assert len(items) == 1, items
    return items[0]


def at(x, route=""):
    return f"/v1/executions/{x['id']}{route}"


def finish(service, x, state="SUCCESS", **body):
    return service.post(at(x, "/finish"), {"token": x["token"], "state": state, **body})


def state_of(service, x):
    return service.get(at(x, "?brief=true")).ok()["state"]


# ---- a life -----------------------------------------------------------------------------------


def test_from_creation_to_its_end(service):
    made = create(service, key="evt_1", input={"amount": 5}, priority=3, owner="shop")
    assert (made["state"], made["key"], made["priority"], made["attempt"]) == ("PENDING", "evt_1", 3, 0)
    x = claim_one(service, worker="w1", ttlMs=30000)
    assert x["id"] == made["id"] and x["owner"] == "w1" and x["attempt"] == 1 and x["ttlMs"] == 30000
    assert json.loads(x["input"]) == {"amount": 5} and x["spawned"]
    assert service.get("/v1/locks/pay").ok()["executionId"] == x["id"]
    beat = service.post(at(x, "/heartbeat"), {"token": x["token"], "fence": x["fence"], "ttlMs": 60000, "output": "so far"}).ok()
    assert beat["cancelRequested"] is False and beat["ttlMs"] == 60000 and beat["executionId"] == x["id"]
    assert service.get(at(x, "/log")).body == "so far"
    done = finish(service, x, "FAILED", exitCode=7, output="so far, so good\n", reason="no money", fence=x["fence"]).ok()
    assert (done["state"], done["exitCode"], done["reason"]) == ("FAILED", 7, "no money")
    whole = service.get(at(x)).ok()
    assert whole["input"] == '{"amount":5}' and whole["output"] == "so far, so good\n" and whole["outputSkipped"] == 0
    assert service.get(at(x, "/input")).bytes == b'{"amount":5}'
    assert service.get(at(x, "/output")).ok()["output"] == "so far, so good\n"
    assert service.get("/v1/locks/pay").ok()["state"] == "free"
    kinds = [e["kind"] for e in service.get("/v1/events?name=pay").ok()["items"] if e["executionId"] == x["id"]]
    assert kinds[-1] == "finished" and "started" in kinds


def test_the_same_finish_again_is_done_and_another_is_refused(service):
    create(service)
    x = claim_one(service)
    first = finish(service, x, exitCode=0).ok()
    assert finish(service, x, exitCode=0).ok() == first
    finish(service, x, "FAILED").problem(409, "LEASE_LOST")
    service.post(at(x, "/heartbeat"), {"token": x["token"]}).problem(409, "LEASE_LOST")
    finish(service, {**x, "token": str(uuid.uuid4())}, "ABORTED").problem(409, "LEASE_LOST")
    assert state_of(service, x) == "SUCCESS"


def test_what_is_acknowledged_survives_a_kill(service):
    made = [create(service, key=f"k{i}", input=i, lock=f"l{i}") for i in range(20)]
    running = claim(service, max=10)
    ended = [finish(service, x).ok() for x in running[:5]]
    service.kill()
    service.start()
    states = {x["id"]: x["state"] for x in service.get("/v1/executions?limit=100").ok()["items"]}
    assert set(states) == {x["id"] for x in made}
    assert all(states[x["id"]] == "SUCCESS" for x in ended)
    assert all(states[x["id"]] == "RUNNING" for x in running[5:])
    for x in running[5:]:
        service.post(at(x, "/heartbeat"), {"token": x["token"]}).ok()
        finish(service, x).ok()


def test_many_finishes_share_a_commit(api, service):
    """While one commit is on its way to a slow disk, the others gather."""
    for i in range(24):
        create(service, lock=f"l{i}")
    claimed = claim(service, max=24)
    trace = f"{api.tmp_path}/trace"
    strace = api.start_program(["strace", "-f", "-e", "trace=fdatasync,fsync", "-e", "inject=fdatasync,fsync:delay_exit=200000",
                                "-o", trace, "-p", str(service.process.pid)])
    poll(lambda: os.path.exists(trace))
    poll(lambda: "attached" in strace.stderr.readline())
    answers = [service.later("POST", at(x, "/finish"), {"token": x["token"], "state": "SUCCESS"}) for x in claimed]
    assert all(a.join().ok()["state"] == "SUCCESS" for a in answers)
    strace.terminate()
    strace.wait(timeout=PATIENCE_S)
    with open(trace) as file:
        syncs = sum("sync(" in line for line in file)
    assert 0 < syncs < len(claimed) / 2, syncs


# ---- keys -------------------------------------------------------------------------------------


def test_a_key_is_one_execution(service):
    first = create(service, key="k", input=[1, 2])
    again = create(service, key="k", input=[1, 2], status=200)
    assert again["id"] == first["id"] and again["duplicate"]
    problem = service.post("/v1/executions", {"workflow": "pay", "key": "k", "input": [1]}).problem(422, "KEY_REUSED")
    assert problem["existingExecutionId"] == first["id"] and "holder" not in problem
    assert create(service, "other", key="k")["id"] != first["id"]
    x = claim_one(service, workflows=["pay"])
    finish(service, x).ok()
    assert create(service, key="k", input=[1, 2], status=200)["state"] == "SUCCESS"


def test_the_same_id_is_the_same_execution(service):
    wanted = str(uuid.uuid4())
    assert create(service, id=wanted)["id"] == wanted
    assert create(service, id=wanted)["id"] == wanted
    assert len(service.get("/v1/executions").ok()["items"]) == 1


def test_many_starts_of_one_key(service):
    answers = [service.later("POST", "/v1/executions", {"workflow": "pay", "key": "k", "input": "x"}) for _ in range(100)]
    answers = [a.join() for a in answers]
    assert [a.status for a in answers].count(201) == 1 and {a.status for a in answers} == {200, 201}
    assert len({a.json["id"] for a in answers}) == 1


# ---- who runs it itself -----------------------------------------------------------------------


def begin(service, workflow="own", token=None, **body):
    return service.post("/v1/executions", {"workflow": workflow, "token": token or str(uuid.uuid4()), **body})


def test_begin_with_a_token(service):
    token = str(uuid.uuid4())
    x = begin(service, token=token, input="in", ttlMs=30000, note="why", owner="me").ok(201)
    assert (x["state"], x["token"], x["ttlMs"], x["owner"], x["spawned"]) == ("RUNNING", token, 30000, "me", True)
    assert service.get("/v1/locks/own").ok()["note"] == "why"
    refused = begin(service)
    problem = refused.problem(409, "LOCK_HELD")
    assert problem["existingExecutionId"] == problem["holder"]["executionId"] == x["id"] and "retry-after" in refused.headers
    again = begin(service, token=token, input="in", ttlMs=30000).ok(201)
    assert (again["id"], again["fence"], again["attempt"]) == (x["id"], x["fence"], 1)
    assert len(service.get("/v1/executions").ok()["items"]) == 1
    finish(service, x).ok()
    begin(service).ok(201)


def test_begin_of_a_key_that_was_begun(service):
    x = begin(service, key="k").ok(201)
    again = begin(service, key="k").ok(200)
    assert again["duplicate"] and again["id"] == x["id"] and "token" not in again
    begin(service, key="k", input=1).problem(422, "KEY_REUSED")


def test_a_lease_that_runs_out(service):
    begun = begin(service, "aborts", ttlMs=200).ok(201)
    repeated = begin(service, "repeats", ttlMs=200, onLost="retry").ok(201)
    not_started = begin(service, "waits", ttlMs=200, spawned=False).ok(201)
    assert not not_started["spawned"]

    def swept():
        service.post("/v1/sweep").ok()
        return state_of(service, begun) != "RUNNING" and state_of(service, not_started) != "RUNNING"

    poll(swept)
    assert (state_of(service, begun), state_of(service, repeated), state_of(service, not_started)) == ("ABORTED", "PENDING", "PENDING")
    finish(service, begun).problem(409, "LEASE_LOST")


def test_spawned_is_told_by_a_heartbeat(service):
    x = begin(service, spawned=False).ok(201)
    service.post(at(x, "/heartbeat"), {"token": x["token"]}).ok()
    assert not service.get(at(x)).ok()["spawned"]
    service.post(at(x, "/heartbeat"), {"token": x["token"], "spawned": True}).ok()
    assert service.get(at(x)).ok()["spawned"]


def test_what_is_cancelled_is_not_marked(service):
    x = begin(service, spawned=False).ok(201)
    service.post(at(x, "/cancel")).ok()
    assert service.post(at(x, "/heartbeat"), {"token": x["token"], "spawned": True}).ok()["cancelRequested"]
    assert not service.get(at(x)).ok()["spawned"]


@pytest.mark.parametrize("body, says", [
    ({}, "workflow"), ({"workflow": ""}, "workflow"), ({"workflow": "a", "x": 1}, "'x'"), ({"workflow": "a", "key": ""}, "key"),
    ({"workflow": "a", "runAt": "soon"}, "runAt"), ({"workflow": "a", "token": "x"}, "UUID"), ({"workflow": "a", "lock": " b"}, "lock"),
    ({"workflow": "a", "overlap": "maybe"}, "overlap"), ({"workflow": "a", "onLost": 1}, "onLost"), ({"workflow": "a", "id": "1"}, "id"),
    ({"workflow": "a", "maxAttempts": -1}, "maxAttempts"), ({"workflow": "a", "spawned": True}, "token"),
    ({"workflow": "a", "token": NOBODY, "runAt": "2030-01-01T00:00:00Z"}, "runAt"), ({"workflow": "a", "inputBase64": "!"}, "base64"),
    ({"workflow": "a", "inputBase64": "AAAA", "input": 1}, "twice"), ('{"workflow":"a","input":1,"input":2}', "duplicate"),
    ('{"workflow":"a","input":[1,}', "input"), ('{"workflow":"a","input":' + "[" * 201 + "]" * 201 + "}", "deeper"),
    ('{"workflow":"a","\\u0069nput":1}', "escapes"), (b'{"workflow":"a","input":"\xff"}', "input"), ("[]", "object"), ("{", "JSON"),
    ('{"workflow":"a","input":01}', "JSON"), ('{"workflow":"a","input":"\x01"}', "input"), ('{"workflow":"a","input":"\\x"}', "input")])
def test_bad_creations(service, body, says):
    assert says in service.post("/v1/executions", body).problem(400, "INVALID")["detail"]
    assert service.get("/v1/executions").ok()["items"] == []


# ---- workflows of the service -----------------------------------------------------------------


def test_a_workflow_of_the_service(api):
    flows = Workflows(api, pay={"command": ["cat"], "lock": "user/{input.user}", "overlap": "queue", "queue-limit": 1, "retries": 2,
                                "retry-backoff": "7s", "on-lost": "retry", "concurrency": 5})
    service = Service(api, "--no-work")
    made = create(service, input={"user": "ann"}, priority=2)
    assert (made["lock"], made["onLost"], made["maxAttempts"], made["retryBackoffMs"], made["concurrency"], made["priority"]) == (
        "user/ann", "retry", 3, 7000, 5, 2)
    service.post("/v1/executions", {"workflow": "pay", "input": {"user": "ann"}}).problem(429, "QUEUE_FULL")
    create(service, input={"user": "bob"})
    assert "user" in service.post("/v1/executions", {"workflow": "pay", "input": {}}).problem(400, "INVALID")["detail"]
    for field, value in (("token", NOBODY), ("lock", "x"), ("ttlMs", 1000), ("overlap", "skip"), ("onLost", "abort"), ("concurrency", 1)):
        body = {"workflow": "pay", "input": {"user": "carl"}, field: value}
        assert "configuration" in service.post("/v1/executions", body).problem(400, "INVALID")["detail"], field
    create(service, "not-configured", overlap="skip", lock="other")
    api.ok("work", "--drain", "--workflow", "pay")
    assert service.get(at(made)).ok()["output"] == '{"user":"ann"}'
    assert {x["state"] for x in flows.all("--workflow", "pay")} == {"SUCCESS"}


# ---- inputs -----------------------------------------------------------------------------------


@pytest.mark.parametrize("sent, kept", [
    ('{ "a" : [ 1.10, 1e400 , -0 ] }', '{"a":[1.10,1e400,-0]}'), (' " a  \\"b " ', '" a  \\"b "'), ("123456789012345678901234567890", None),
    ("true", None), ('"grün"', None), ("[]", None), ("{}", None), ('{"input":{"input":1}}', None), ("[" * 150 + "]" * 150, None),
    ('"\\u0000\\ud83d"', None), ("0", None), ("null", "")])
def test_a_json_input_is_kept_as_it_was_written(service, sent, kept):
    made = service.post("/v1/executions", ('{"key":"k", "input":' + sent + ',"workflow":"pay"}').encode()).ok(201)
    assert service.get(at(made, "/input")).body == (sent if kept is None else kept)
    assert claim_one(service)["input"] == (sent if kept is None else kept)


def test_any_bytes_are_an_input(service):
    blob = bytes(range(256)) * 5
    made = create(service, inputBase64=base64.b64encode(blob).decode())
    assert service.get(at(made, "/input")).bytes == blob
    whole = service.get(at(made)).ok()
    assert whole["inputEncoding"] == "base64" and base64.b64decode(whole["input"]) == blob
    x = claim_one(service)
    assert x["inputEncoding"] == "base64" and base64.b64decode(x["input"]) == blob and x["inputSize"] == len(blob)


def test_large_inputs(service):
    blob = os.urandom(16 * MIB)
    made = create(service, key="k", inputBase64=base64.b64encode(blob).decode())
    assert service.get(at(made, "/input")).bytes == blob
    assert base64.b64decode(service.get(at(made)).ok()["input"]) == blob
    x = claim_one(service)
    assert x["input"] is None and x["inputSize"] == len(blob)
    finish(service, x).ok()
    assert service.get(at(service.post(at(x, "/retry")).ok(), "/input")).bytes == blob
    many = "[" + "1," * (4 * MIB) + "1]"
    service.post("/v1/executions", '{"workflow":"many","input":' + many + "}").ok(201)
    assert claim_one(service, workflows=["many"])["inputSize"] == len(many)


def test_too_large_inputs(service):
    over = base64.b64encode(b"x" * (16 * MIB + 1)).decode()
    assert "16777216" in service.post("/v1/executions", {"workflow": "a", "inputBase64": over}).problem(413, "TOO_LARGE")["detail"]
    text = "y" * (16 * MIB - 1)
    service.post("/v1/executions", {"workflow": "a", "input": text}).problem(413, "TOO_LARGE")
    huge = b"x" * (25 * MIB)
    answer = service.raw(b"POST /v1/executions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(huge) + huge)
    assert answer.startswith(b"HTTP/1.1 413")
    chunk = b"100000\r\n" + b"x" * MIB + b"\r\n"
    answer = service.raw(b"POST /v1/executions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk * 25 + b"0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 413")
    # Many values are not built in memory, wherever they stand.
    bomb = '{"workflow":"a","workflows":[' + "1," * (4 * MIB) + "1]}"
    assert "values" in service.post("/v1/executions", bomb).problem(400, "INVALID")["detail"]
    assert service.memory_kib() < 600 * 1024
    assert service.get("/v1/executions").ok()["items"] == []


def test_chunked_bodies(service):
    body = json.dumps({"workflow": "pay", "input": "x" * (2 * MIB)}).encode()
    chunks = b"".join(b"%x\r\n" % len(part) + part + b"\r\n" for part in (body[i:i + 100000] for i in range(0, len(body), 100000)))
    answer = service.raw(b"POST /v1/executions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 201")
    assert claim_one(service)["inputSize"] == 2 * MIB + 2


def test_large_bodies_are_bounded_in_total(service):
    """Five of 24 MiB have room; those beyond are told to try again, and when some are gone there is room again."""
    import socket
    head = b"POST /v1/executions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (24 * MIB)
    open_ones = []
    for _ in range(5):
        s = socket.create_connection(("127.0.0.1", service.port), timeout=PATIENCE_S)
        s.sendall(head + b'{"workflow"')
        open_ones.append(s)

    def is_full():
        answer = service.raw(head)
        return answer.startswith(b"HTTP/1.1 503") and b"Retry-After" in answer

    poll(is_full)
    create(service)  # a small one is served all the same
    for s in open_ones:
        s.close()
    text = "x" * (20 * MIB // 2)
    poll(lambda: service.post("/v1/executions", {"workflow": "large", "input": text}).status == 201)


def test_only_who_may_sends_much(api):
    service = Service(api, "--require-token")
    answer = service.raw(b"POST /v1/executions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (20 * MIB))
    assert answer.startswith(b"HTTP/1.1 401")


# ---- outputs ----------------------------------------------------------------------------------


def test_of_a_long_output_the_middle_is_left_out(service):
    create(service)
    x = claim_one(service)
    text = "".join(f"{i:7}\n" for i in range(60000))
    finish(service, x, output=text).ok()
    out = service.get(at(x, "/output")).ok()
    assert out["output"] == text[:65536] and out["outputTail"] == text[-65536:]
    assert out["outputSkipped"] == len(text) - 2 * 65536
    log = service.get(at(x, "/log"))
    assert log.body == text[:65536] + f"\n[holdfast: {out['outputSkipped']} bytes were not kept]\n" + text[-65536:]
    assert log.headers["content-type"] == "text/plain" and log.headers["x-content-type-options"] == "nosniff"


def test_outputs_as_base64_and_in_parts(service):
    create(service)
    x = claim_one(service)
    both = {"token": x["token"], "output": "a", "outputBase64": "YQ=="}
    service.post(at(x, "/heartbeat"), both).problem(400, "INVALID")
    service.post(at(x, "/heartbeat"), {"token": x["token"], "outputTailBase64": "?"}).problem(400, "INVALID")
    service.post(at(x, "/heartbeat"), {"token": x["token"], "output": "x" * 65537, "outputTail": "y"}).problem(400, "INVALID")
    finish(service, x, outputBase64=base64.b64encode(b"\xff\x00").decode(), outputTail="end", outputSkipped=10).ok()
    assert service.get(at(x, "/log")).bytes == b"\xff\x00\n[holdfast: 10 bytes were not kept]\nend"
    assert service.get(at(x, "/output")).ok()["outputEncoding"] == "base64"


def test_a_heartbeat_without_output_keeps_what_was_there(service):
    create(service)
    x = claim_one(service)
    service.post(at(x, "/heartbeat"), {"token": x["token"], "output": "one"}).ok()
    service.post(at(x, "/heartbeat"), {"token": x["token"]}).ok()
    assert service.get(at(x, "/log")).body == "one"
    finish(service, x).ok()
    assert service.get(at(x, "/log")).body == "one"


# ---- cancel and retry -------------------------------------------------------------------------


def test_cancel(service):
    pending = create(service, "idle")
    assert service.post(at(pending, "/cancel")).ok()["state"] == "ABORTED"
    create(service, "busy")
    x = claim_one(service)
    asked = service.post(at(x, "/cancel")).ok()
    assert asked["state"] == "RUNNING" and asked["cancelRequested"]
    assert service.post(at(x, "/heartbeat"), {"token": x["token"]}).ok()["cancelRequested"]
    finish(service, x, "ABORTED", reason="cancelled").ok()
    assert service.post(at(x, "/cancel")).ok()["state"] == "ABORTED"


def test_retry(service):
    create(service, key="k", input="in", priority=4, maxAttempts=3, onLost="retry")
    x = claim_one(service)
    assert "only what has ended" in service.post(at(x, "/retry")).problem(400, "INVALID")["detail"]
    finish(service, x, "FAILED").ok()
    new = service.post(at(x, "/retry")).ok()
    assert (new["retryOf"], new["state"], new["key"], new["priority"], new["maxAttempts"], new["onLost"]) == (
        x["id"], "PENDING", None, 4, 3, "retry")
    assert claim_one(service)["input"] == '"in"'


@pytest.mark.parametrize("route, body", [("", None), ("/input", None), ("/output", None), ("/log", None), ("/cancel", {}), ("/retry", {}),
                                         ("/heartbeat", {"token": NOBODY}), ("/finish", {"token": NOBODY, "state": "SUCCESS"})])
def test_unknown_ids(service, route, body):
    path = f"/v1/executions/{NOBODY}{route}"
    answer = service.get(path) if body is None else service.post(path, body)
    assert NOBODY in answer.problem(404, "NOT_FOUND")["detail"]


@pytest.mark.parametrize("method, path, status", [
    ("GET", "/v1/executions/x", 404), ("GET", "/v1/executions/claim", 405), ("POST", f"/v1/executions/{NOBODY}", 405),
    ("GET", f"/v1/executions/{NOBODY}/cancel", 405), ("POST", f"/v1/executions/{NOBODY}/log", 405), ("GET", "/v1/executions/due", 405),
    ("GET", f"/v1/executions/{NOBODY.upper()}X", 404), ("GET", "/v1/executions/", 404)])
def test_what_is_not_there(service, method, path, status):
    assert service.ask(method, path).status == status


@pytest.mark.parametrize("route, body, says", [
    ("heartbeat", {}, "token"), ("finish", {"token": NOBODY}, "state"), ("finish", {"state": "SUCCESS"}, "token"),
    ("finish", {"token": NOBODY, "state": "PENDING"}, "SUCCESS, FAILED, ABORTED or LOST"), ("finish", {"token": NOBODY, "state": "SUCCESS", "exitCode": "1"}, "exitCode"),
    ("cancel", {"x": 1}, "'x'"), ("claim", {"max": 257}, "max"), ("claim", {"max": 0}, "max"), ("claim", {"workflows": "a"}, "workflows"),
    ("claim", {"workflows": [""]}, "workflows"), ("due", {"skip": -1}, "skip")])
def test_bad_bodies(service, route, body, says):
    made = create(service)
    path = f"/v1/executions/{route}" if route in ("claim", "due") else at(made, f"/{route}")
    assert says in service.post(path, body).problem(400, "INVALID")["detail"]


# ---- lists ------------------------------------------------------------------------------------


def test_pages_newest_first(service):
    made = [create(service, ["a", "b"][i % 2], lock=f"l{i}")["id"] for i in range(25)][::-1]
    claim(service, max=5, workflows=["a"])

    def pages(query):
        seen, cursor = [], ""
        while cursor is not None:
            page = service.get(f"/v1/executions?limit=10{query}{cursor and '&cursor=' + cursor}").ok()
            assert len(page["items"]) <= 10
            seen += page["items"]
            cursor = page["nextCursor"]
        return seen

    assert [x["id"] for x in pages("")] == made
    assert [x["id"] for x in pages("&workflow=b")] == made[1::2]
    assert len(pages("&state=RUNNING")) == 5 and len(pages("&state=PENDING&workflow=a")) == 8
    assert pages("&workflow=none") == []
    for bad in ("state=ODD", "limit=0", "cursor=x", "sate=RUNNING"):
        service.get(f"/v1/executions?{bad}").problem(400, "INVALID")
    service.get(f"/v1/executions?cursor={NOBODY}").problem(404, "NOT_FOUND")
    service.get(at({"id": made[0]}, "?brief=maybe")).problem(400, "INVALID")


# ---- claims -----------------------------------------------------------------------------------


def test_the_order_of_claims(service):
    low = create(service, "a", priority=-1)
    old = create(service, "b")
    young = create(service, "c")
    high = create(service, "d", priority=9)
    later = create(service, "e", priority=99, runAt="2100-01-01T00:00:00Z")
    due = [x["id"] for x in service.post("/v1/executions/due", {"max": 10}).ok()["items"]]
    assert due == [high["id"], old["id"], young["id"], low["id"]]
    assert [x["id"] for x in service.post("/v1/executions/due", {"max": 2, "skip": 1}).ok()["items"]] == due[1:3]
    assert [x["id"] for x in claim(service, max=3)] == due[:3]
    assert [x["id"] for x in claim(service, max=3)] == due[3:]
    assert claim(service) == [] and state_of(service, later) == "PENDING"


def test_one_per_lock_and_held_ones_do_not_starve_the_rest(service):
    service.post("/v1/locks/held", {"ttl": "1h"}).ok()
    for i in range(80):
        create(service, "held", priority=100, overlap="queue")
    for _ in range(3):
        create(service, "one", overlap="queue")
    other = create(service, "other")
    assert {x["workflow"] for x in claim(service, max=20)} == {"one", "other"}
    assert claim(service, max=20) == []
    assert state_of(service, other) == "RUNNING"


def test_workflows_narrow_a_claim(service):
    for name in "abc":
        create(service, name)
    assert [x["workflow"] for x in claim(service, max=9, workflows=["b", "x"])] == ["b"]
    assert sorted(x["workflow"] for x in claim(service, max=9, workflows=[])) == ["a", "c"]


def test_many_workers_many_items_no_duplicates(service):
    n = 300
    for i in range(n):
        create(service, lock=f"l{i}", input=i)
    got, failed = [], []

    def worker(i):
        connection = service.connect()
        while True:
            items = service.ask("POST", "/v1/executions/claim", {"worker": f"w{i}", "max": 7}, connection=connection).ok()["items"]
            if not items:
                return
            for x in items:
                got.append(x["id"])
                answer = service.ask("POST", at(x, "/finish"), {"token": x["token"], "state": "SUCCESS"}, connection=connection)
                if answer.status != 200:
                    failed.append(answer.body)

    threads = [threading.Thread(target=worker, args=(i,)) for i in range(5)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(PATIENCE_S)
    assert not failed
    assert len(got) == len(set(got)) == n
    assert all(x["attempt"] == 1 for x in service.get("/v1/executions?limit=1000&state=SUCCESS").ok()["items"])


def test_a_claim_that_waits_is_answered_by_a_creation(service):
    waiting = [service.later("POST", "/v1/executions/claim", {"waitMs": 3600000, "workflows": [name]}) for name in ("a", "b")]
    time.sleep(0.3)
    made = create(service, "b")
    assert [x["id"] for x in waiting[1].join().ok()["items"]] == [made["id"]]
    assert not waiting[0].done
    create(service, "a")
    assert len(waiting[0].join().ok()["items"]) == 1


def test_a_claim_that_waits_is_answered_when_a_lock_is_free_or_a_time_has_come(service):
    create(service, "a")
    x = claim_one(service)
    second = create(service, "a", overlap="queue")
    waiting = service.later("POST", "/v1/executions/claim", {"waitMs": 3600000, "workflows": ["a"]})
    time.sleep(0.3)
    finish(service, x).ok()
    assert waiting.join().ok()["items"][0]["id"] == second["id"]
    soon = time.strftime("%Y-%m-%dT%H:%M:%S.999Z", time.gmtime(time.time() + 1))
    timed = create(service, "timed", runAt=soon)
    assert claim_one(service, waitMs=3600000)["id"] == timed["id"]


def test_a_claim_that_waits_in_vain(service):
    assert claim(service, waitMs=300) == []


def test_a_worker_that_leaves_while_it_waits(service):
    connection = service.connect()
    connection.request("POST", "/v1/executions/claim", json.dumps({"waitMs": 3600000}))
    poll(lambda: "holdfast_http_connections 2" in service.get("/metrics").body)
    time.sleep(0.3)
    connection.close()
    poll(lambda: "holdfast_http_connections 1" in service.get("/metrics").body)
    made = create(service)
    assert claim_one(service)["id"] == made["id"]


def test_stopping_sends_those_who_wait_away(service):
    waiting = service.later("POST", "/v1/executions/claim", {"waitMs": 3600000})
    idle = service.hf.tmp_path / "store.db-wake" / "idle"
    poll(lambda: idle.exists() and os.listdir(idle))  # it sleeps on behalf of who waits
    service.stop()
    assert waiting.join().ok() == {"items": []}


def test_what_was_created_elsewhere_is_found(service, api):
    """Not through this service: only a look at the store tells of it."""
    waiting = service.later("POST", "/v1/executions/claim", {"waitMs": 3600000})
    time.sleep(0.3)
    other = Service(api)
    made = create(other)
    assert waiting.join().ok()["items"][0]["id"] == made["id"]


def test_who_waits_for_something_else_costs_nothing(service):
    """What is due and for nobody here must not be looked for again and again."""
    create(service, "others")
    create(service, "others-later", runAt=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 2)))
    waiting = [service.later("POST", "/v1/executions/claim", {"waitMs": 3600000, "workflows": [name]}) for name in ("mine", "his")]
    time.sleep(0.5)

    def cpu_s():
        with open(f"/proc/{service.process.pid}/stat") as stat:
            fields = stat.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    before = cpu_s()
    time.sleep(4)
    assert cpu_s() - before < 1
    for answer, name in zip(waiting, ("mine", "his")):
        made = create(service, name)
        assert answer.join().ok()["items"][0]["id"] == made["id"]


# ---- whose turn it is -------------------------------------------------------------------------


def test_overlap_reject(service):
    first = create(service)
    waits = service.post("/v1/executions", {"workflow": "pay"}).problem(409, "LOCK_HELD")
    assert waits["existingExecutionId"] == first["id"] and first["id"] in waits["detail"]
    x = claim_one(service)
    runs = service.post("/v1/executions", {"workflow": "pay"}).problem(409, "LOCK_HELD")
    assert runs["existingExecutionId"] == runs["holder"]["executionId"] == x["id"]
    create(service, runAt="2100-01-01T00:00:00Z")  # what is scheduled always queues
    assert len(service.get("/v1/executions").ok()["items"]) == 2


def test_overlap_skip(service):
    first = create(service)
    skipped = create(service, key="k", overlap="skip", status=200)
    assert skipped == {"outcome": "skipped", "existingExecutionId": first["id"]}
    service.post(at(first, "/cancel")).ok()
    assert create(service, key="k", overlap="skip")["state"] == "PENDING"  # the key was not consumed
    service.post("/v1/locks/plain").ok()
    assert create(service, "plain", overlap="skip", status=200)["existingExecutionId"] is None


def test_overlap_queue_is_bounded(service):
    first = create(service, overlap="queue", queueLimit=2)
    second = create(service, overlap="queue", queueLimit=2)
    assert "pay" in service.post("/v1/executions", {"workflow": "pay", "overlap": "queue", "queueLimit": 2}).problem(429, "QUEUE_FULL")["detail"]
    for expected in (first, second):
        x = claim_one(service, max=5)
        assert x["id"] == expected["id"]
        finish(service, x).ok()


def test_overlap_replace_and_cancel(service):
    create(service)
    running = claim_one(service)
    old = create(service, overlap="queue")
    new = create(service, overlap="replace")
    replaced = service.get(at(old)).ok()
    assert replaced["state"] == "ABORTED" and new["id"] in replaced["reason"]
    assert not service.post(at(running, "/heartbeat"), {"token": running["token"]}).ok()["cancelRequested"]
    newest = create(service, overlap="cancel")
    assert state_of(service, new) == "ABORTED"
    assert service.post(at(running, "/heartbeat"), {"token": running["token"]}).ok()["cancelRequested"]
    finish(service, running, "ABORTED").ok()
    assert claim_one(service)["id"] == newest["id"]


def test_concurrency(service):
    for i in range(4):
        create(service, lock=f"l{i}", concurrency=2)
    first = claim(service, max=4)
    assert len(first) == 2 and claim(service, max=4) == []
    begin(service, "pay", lock="l9", concurrency=2).problem(409, "LOCK_HELD")
    finish(service, first[0]).ok()
    assert len(claim(service, max=4)) == 1


def test_failed_ones_are_retried(service):
    create(service, maxAttempts=2, retryBackoffMs=1)
    x = claim_one(service)
    again = finish(service, x, "FAILED", exitCode=3).ok()
    assert again["state"] == "PENDING" and again["spent"] == 1
    x = claim_one(service, waitMs=3600000)
    assert x["attempt"] == 2
    last = finish(service, x, "FAILED", exitCode=3).ok()
    assert last["state"] == "FAILED" and last["spent"] == 2


def test_what_is_to_be_verified(service):
    create(service, onLost="verify")
    lost = claim_one(service, ttlMs=100)

    def is_pending():
        service.post("/v1/sweep").ok()
        return state_of(service, lost) == "PENDING"

    poll(is_pending)
    assert claim(service, max=5) == []
    x = claim_one(service, verifies=True)
    assert x["id"] == lost["id"] and x["toVerify"]
    assert service.post(at(x, "/heartbeat"), {"token": x["token"], "spawned": True}).ok()["cancelRequested"] is False
    assert not service.get(at(x)).ok()["toVerify"]
    finish(service, x).ok()


# ---- who may ----------------------------------------------------------------------------------


def test_verbs(api):
    tokens = {verb: api.json("token", "create", "--allow", verb)["token"]
              for verb in ("executions:read", "executions:write", "executions:work", "locks:write")}
    service = Service(api, "--require-token")

    def allowed(verb, method, path, body=None):
        service.token = tokens[verb]
        status = service.ask(method, path, body).status
        assert status in (200, 201, 403, 404, 409), status
        return status != 403

    service.token = tokens["executions:write"]
    x = create(service)
    routes = [("POST", "/v1/executions", {"workflow": "b"}, "executions:write"), ("GET", "/v1/executions", None, "executions:read"),
              ("GET", at(x), None, "executions:read"), ("GET", at(x, "/log"), None, "executions:read"),
              ("GET", at(x, "/input"), None, "executions:read"), ("GET", at(x, "/output"), None, "executions:read"),
              ("POST", at(x, "/heartbeat"), {"token": NOBODY}, "executions:work"),
              ("POST", at(x, "/finish"), {"token": NOBODY, "state": "SUCCESS"}, "executions:work"),
              ("POST", "/v1/executions/claim", {"workflows": ["none"]}, "executions:work"), ("POST", "/v1/executions/due", {}, "executions:work"),
              ("POST", at(x, "/cancel"), {}, "executions:write"), ("POST", at(x, "/retry"), {}, "executions:write")]
    for method, path, body, needed in routes:
        assert [v for v in tokens if allowed(v, method, path, body)] == [needed], path


def test_a_batch_needs_what_its_requests_need(api):
    tokens = {verb: api.json("token", "create", "--allow", verb)["token"]
              for verb in ("locks:write", "executions:write", "executions:work", "locks:read")}
    service = Service(api, "--require-token")
    new = lambda: str(uuid.uuid4())  # noqa: E731
    requests = [({"op": "acquire", "name": "plain", "token": new(), "ttlMs": 1000}, {"locks:write"}),
                ({"op": "acquire", "name": "w", "token": new(), "ttlMs": 1000, "workflow": "w", "executionId": new()}, {"executions:write"}),
                ({"op": "acquire", "name": "w", "token": new(), "ttlMs": 1000, "claim": True, "executionId": new()}, {"executions:work"}),
                ({"op": "enqueue", "name": "w", "workflow": "w", "executionId": new()}, {"executions:write"}),
                ({"op": "cancel", "name": "w", "executionId": new()}, {"executions:write"}),
                ({"op": "extend", "name": "w", "token": new(), "spawned": True}, {"executions:write", "executions:work"}),
                ({"op": "release", "name": "w", "token": new(), "outcome": "SUCCESS"}, {"executions:write", "executions:work"}),
                ({"op": "extend", "name": "w", "token": new()}, {"locks:write", "executions:write", "executions:work"}),
                ({"op": "force", "name": "w", "fence": 1}, set())]
    for request, needed in requests:
        may = set()
        for verb, token in tokens.items():
            service.token = token
            answer = service.post("/v1/batch", {"requests": [request]})
            assert answer.status in (200, 403), answer.body
            if answer.status == 200:
                may.add(verb)
        assert may == needed, request


def test_a_prefix_narrows_executions(api):
    mine = api.json("token", "create", "--allow", "executions:read,executions:write,executions:work", "--prefix", "mine/")["token"]
    service = Service(api)
    theirs = create(service, "theirs")
    own = create(service, "mine/a")
    service.token = mine
    assert [x["id"] for x in service.get("/v1/executions").ok()["items"]] == [own["id"]]
    service.get("/v1/executions?workflow=theirs").problem(403, "FORBIDDEN")
    for route in ("", "/log", "/input"):
        service.get(at(theirs, route)).problem(403, "FORBIDDEN")
    for route, body in (("/cancel", {}), ("/retry", {}), ("/finish", {"token": NOBODY, "state": "SUCCESS"})):
        service.post(at(theirs, route), body).problem(403, "FORBIDDEN")
    service.post("/v1/executions", {"workflow": "theirs"}).problem(403, "FORBIDDEN")
    service.post("/v1/executions", {"workflow": "mine/b", "lock": "theirs"}).problem(403, "FORBIDDEN")
    service.post("/v1/executions/claim", {}).problem(403, "FORBIDDEN")
    service.post("/v1/executions/claim", {"workflows": ["theirs"]}).problem(403, "FORBIDDEN")
    assert [x["id"] for x in claim(service, max=9, workflows=["mine/a"])] == [own["id"]]


def test_a_page_of_a_prefix_ends_somewhere(api):
    mine = api.json("token", "create", "--allow", "executions:read", "--prefix", "mine")["token"]
    service = Service(api)
    for i in range(30):
        create(service, "mine" if i % 10 == 0 else "theirs", overlap="queue")
    service.token = mine
    page = service.get("/v1/executions?limit=2").ok()
    assert len(page["items"]) == 2 and page["nextCursor"]
    rest = service.get(f"/v1/executions?limit=2&cursor={page['nextCursor']}").ok()
    assert len(rest["items"]) == 1 and rest["nextCursor"] is None


# ---- the rest ---------------------------------------------------------------------------------


def test_a_store_of_locks_only(tmp_path):
    holdfast = Holdfast(f"file:{tmp_path}/locks", tmp_path)
    try:
        service = Service(holdfast)
        for method, path, body in (("POST", "/v1/executions", {"workflow": "a"}), ("GET", "/v1/executions", None), ("GET", f"/v1/executions/{NOBODY}", None),
                                   ("POST", "/v1/executions/claim", {}), ("POST", f"/v1/executions/{NOBODY}/cancel", {})):
            service.ask(method, path, body).problem(501, "UNSUPPORTED")
    finally:
        holdfast.close()


def test_a_store_that_is_gone(api, service):
    create(service, "a")
    x = claim_one(service)
    create(service, "waits")
    for name in os.listdir(api.tmp_path):
        if name.startswith("store.db"):
            os.rename(f"{api.tmp_path}/{name}", f"{api.tmp_path}/moved-{name}")
    answer = poll(lambda: (a := service.post("/v1/executions", {"workflow": "b"})).status == 503 and a)
    answer.problem(503, "STORE_UNAVAILABLE")
    finish(service, x).problem(503, "STORE_UNAVAILABLE")
    service.post("/v1/executions/claim", {"waitMs": 100000}).problem(503, "STORE_UNAVAILABLE")
    begin(service).problem(503, "STORE_UNAVAILABLE")
    text = service.get("/metrics").body
    assert int(re.search(r'holdfast_acquire_total\{result="error"\} (\d+)', text)[1]) >= 1
    assert run_tool("promtool", "check", "metrics", input=text).returncode == 0


def test_metrics(service):
    for i, state in enumerate(("SUCCESS", "FAILED", "SUCCESS")):
        create(service, 'we"ird\\', lock=f"l{i}")
        x = claim_one(service)
        finish(service, x, state).ok()
        finish(service, x, state).ok()
    service.post(at(create(service, "idle"), "/cancel")).ok()
    create(service, "one", overlap="queue")
    create(service, "one", overlap="queue")
    claim_one(service)
    text = service.get("/metrics").body
    done = run_tool("promtool", "check", "metrics", input=text)
    assert done.returncode == 0 and done.stdout + done.stderr == ""
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert values['holdfast_executions_total{workflow="we\\"ird\\\\",state="SUCCESS"}'] == "2"
    assert values['holdfast_executions_total{workflow="we\\"ird\\\\",state="FAILED"}'] == "1"
    assert values['holdfast_executions_total{workflow="idle",state="ABORTED"}'] == "1"
    assert values['holdfast_execution_duration_seconds_count{workflow="we\\"ird\\\\"}'] == "3"
    assert values["holdfast_schedule_lag_seconds_count"] == "4"
    assert values['holdfast_executions{state="PENDING"}'] == values['holdfast_executions{state="RUNNING"}'] == "1"
    assert x["id"] not in text and '"l0"' not in text
