"""Webhooks: an event becomes an execution at most once, and only one runs at a time (the rows of the behaviour
matrix, the answers word for word, a thousand at once)."""
import base64
import json
import os
import signal
import sqlite3
import uuid

import pytest

from api_helpers import Later, Service, api  # noqa: F401
from conftest import poll
from hooks import Hooks, post_together

both = pytest.mark.stores("sqlite", "postgres")
THOUSAND = 1000


def uuid_of(text):
    assert str(uuid.UUID(text)) == text
    return text


# ---- the behaviour matrix ---------------------------------------------------------------------


@both
def test_an_execution_starts_where_there_is_no_lock(hf):
    hooks = Hooks(hf, pay={"command": ["sh", "-c", "cat; echo; echo $HOLDFAST_KEY"]})
    answer = hooks.post("pay", b'{"amount":1}', {"Idempotency-Key": "e1"}).ok()
    assert answer == {"success": True, "executionId": uuid_of(answer["executionId"]), "duplicate": False, "state": "PENDING"}
    done = hooks.run("pay", "e1", b'{"amount":1}')
    assert (done.returncode, done.stdout) == (0, '{"amount":1}\ne1\n')
    assert hooks.flows.only("pay")["state"] == "SUCCESS"
    assert hooks.flows.only("pay")["id"] == answer["executionId"]


@both
@pytest.mark.parametrize("how, state", [("exit 0", "SUCCESS"), ("exit 3", "FAILED"), ("cancel", "ABORTED")])
def test_a_concurrent_webhook_is_refused_until_the_end_whatever_that_is(hf, how, state):
    gate = hf.tmp_path / "gate"
    command = f"echo on; while [ ! -e {gate} ]; do sleep 0.05; done; {how if how.startswith('exit') else 'sleep 1000'}"
    hooks = Hooks(hf, pay={"command": ["sh", "-c", command]})
    first = hooks.post("pay", b"1", {"Idempotency-Key": "e1"}).ok()["executionId"]
    process, running = hooks.begin("pay", "e1", b"1")
    assert running == first and process.stdout.readline() == "on\n"
    refused = hooks.post("pay", b"2", {"Idempotency-Key": "e2"})
    assert refused.status == 409
    assert refused.json == {"success": False, "error": "Workflow currently executing", "existingExecutionId": first,
                            "details": f"Only one execution can run at a time. Currently executing: {first}"}
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert len(hooks.flows.all()) == 1  # nothing is left of the second
    # The same event again is not refused: keys are looked at first.
    again = hooks.post("pay", b"1", {"Idempotency-Key": "e1"}).ok()
    assert again == {"success": True, "executionId": first, "duplicate": True, "state": "RUNNING"}
    gate.touch()
    if how == "cancel":
        hf.ok("cancel", first)
    hooks.flows.wait_for(first, state)
    process.wait()
    assert hf.json("status", "pay")["state"] == "free"
    assert not hooks.post("pay", b"2", {"Idempotency-Key": "e2"}).ok()["duplicate"]


@both
def test_a_webhook_after_a_crash_cleans_up_and_goes_ahead(hf):
    hooks = Hooks(hf, pay={"command": ["sh", "-c", "echo on; sleep 1000"]})
    first = hooks.post("pay", b"1", {"Idempotency-Key": "e1"}).ok()["executionId"]
    process, _ = hooks.begin("pay", "e1", b"1")
    assert process.stdout.readline() == "on\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    answer = poll(lambda: (a := hooks.post("pay", b"2", {"Idempotency-Key": "e2"})).status == 200 and a)
    assert answer.json["executionId"] != first and not answer.json["duplicate"]
    assert hooks.flows.show(first)["state"] == "ABORTED"


def test_a_lock_whose_execution_is_not_running_is_cleaned(api):
    hooks = Hooks(api, pay={"command": ["sh", "-c", "echo on; sleep 1000"], "ttl": "1h"})
    first = hooks.post("pay", b"1", {"Idempotency-Key": "e1"}).ok()["executionId"]
    process, _ = hooks.begin("pay", "e1", b"1")
    assert process.stdout.readline() == "on\n"
    assert hooks.post("pay", b"2").status == 409
    with sqlite3.connect(f"{api.tmp_path}/store.db", timeout=60) as db:
        db.execute("UPDATE execution SET state='ABORTED' WHERE id=?", (first,))
    assert not hooks.post("pay", b"2").ok()["duplicate"]
    assert "ended because its execution was over" in api.ok("why", "pay")


@both
def test_an_expired_lock_is_cleaned(hf):
    hooks = Hooks(hf, pay={"command": ["true"]})
    hf.ok("acquire", "pay", "--ttl", "1s", "--owner", "somebody")  # bound to no process: only its ttl ends it
    refused = hooks.post("pay")
    if refused.status == 409:  # else this machine stood still for a second
        assert refused.json["error"] == "Workflow currently executing" and refused.json["existingExecutionId"] is None
        assert "somebody" in refused.json["details"]
    poll(lambda: hooks.post("pay").status == 200)


@both
def test_the_lock_is_gone_at_the_end(hf):
    hooks = Hooks(hf, pay={"command": ["true"]})
    for key in ("e1", "e2", "e3"):
        hooks.post("pay", b"", {"Idempotency-Key": key}).ok()
        assert hooks.run("pay", key).returncode == 0
        assert hf.json("status", "pay")["state"] == "free"
    assert hooks.states("pay") == ["SUCCESS"] * 3
    assert hf.lines("list") == []


# ---- a thousand at once -----------------------------------------------------------------------


@both
def test_a_thousand_at_once_and_one_is_recorded(hf):
    hooks = Hooks(hf, pay={"command": ["true"]})
    messages = [({"Idempotency-Key": f"e{i}"}, b"%d" % i) for i in range(THOUSAND)]
    answers = post_together(hooks.service.port, "/api/webhooks/pay", messages)
    taken = [json.loads(body)["executionId"] for status, body in answers if status == 200]
    assert len(taken) == 1
    refused = [json.loads(body) for status, body in answers if status == 409]
    assert len(refused) == THOUSAND - 1
    assert all(r["existingExecutionId"] == taken[0] for r in refused if "existingExecutionId" in r)
    assert all("existingExecutionId" in r for r in refused)
    assert [x["id"] for x in hooks.flows.all("--limit", "5")] == taken


@both
def test_a_thousand_times_the_same_event_is_one_execution(hf):
    hooks = Hooks(hf, pay={"command": ["true"]})
    answers = post_together(hooks.service.port, "/api/webhooks/pay", [({"webhook-id": "evt_1"}, b"same")] * THOUSAND)
    assert {status for status, _ in answers} == {200}
    told = [json.loads(body) for _, body in answers]
    assert len({t["executionId"] for t in told}) == 1
    assert sorted(t["duplicate"] for t in told) == [False] + [True] * (THOUSAND - 1)
    assert [x["id"] for x in hooks.flows.all("--limit", "5")] == [told[0]["executionId"]]


def test_two_services_on_one_store(api):
    hooks = Hooks(api, pay={"command": ["true"]})
    other = Service(api, "--no-work")
    answers = [post_together(port, "/api/webhooks/pay", [({}, b"")] * 50) for port in (hooks.service.port, other.port)]
    assert [status for some in answers for status, _ in some].count(200) == 1


# ---- keys -------------------------------------------------------------------------------------


def test_where_the_key_comes_from(api):
    hooks = Hooks(api, pay={"command": ["true"], "key-path": "$.data[0].id", "lock": "{workflow}/{key}"})
    body = b'{"data":[{"id":77}]}'
    headers = {"Idempotency-Key": "first", "webhook-id": "second", "X-GitHub-Delivery": "third"}
    for expected in ("first", "second", "third", "77"):
        taken = hooks.post("pay", body, headers).ok()["executionId"]
        x = hooks.flows.show(taken)
        assert (x["key"], hooks.post("pay", body, headers).ok()["executionId"]) == (expected, taken)
        headers.pop(next(iter(headers)), None) if headers else None
    assert len(hooks.flows.all()) == 4


def test_without_a_key_every_event_is_a_new_one(api):
    hooks = Hooks(api, pay={"command": ["true"], "key-path": "$.id", "overlap": "queue"})
    ids = {hooks.post("pay", b'{"other":1}').ok()["executionId"] for _ in range(3)}
    assert len(ids) == 3
    assert hooks.flows.show(ids.pop())["key"] is None


def test_the_same_key_with_another_body(api):
    hooks = Hooks(api, pay={"command": ["true"]}, other={"command": ["true"]})
    first = hooks.post("pay", b"a", {"Idempotency-Key": "e1"}).ok()["executionId"]
    problem = hooks.post("pay", b"b", {"Idempotency-Key": "e1"}).problem(422, "KEY_REUSED")
    assert first in problem["detail"]
    hooks.run("pay", "e1", b"a")
    hooks.post("pay", b"b", {"Idempotency-Key": "e1"}).problem(422, "KEY_REUSED")
    assert hooks.post("pay", b"a", {"Idempotency-Key": "e1"}).ok()["state"] == "SUCCESS"
    assert not hooks.post("other", b"b", {"Idempotency-Key": "e1"}).ok()["duplicate"]  # of another workflow
    assert len(hooks.flows.all()) == 2


@pytest.mark.parametrize("headers, body", [
    ({"Idempotency-Key": ""}, b"{}"), ({"Idempotency-Key": "x" * 201}, b"{}"), ({"webhook-id": "\xff"}, b"{}"),
    ({"X-GitHub-Delivery": "a\tb"}, b"{}"), ({}, b'{"id":"%s"}' % (b"x" * 201)), ({}, b'{"id":"a\\u0007"}'), ({}, b'{"id":'),
    ({}, b""), ({}, b"\xff\xfe"), ({}, b'{"id":1,"id":2}'), ({}, b"[" * 1000000), ({}, b'{"a":' * 200000)],
    ids=lambda value: repr(value)[:30])
def test_what_can_not_be_a_key(api, headers, body):
    hooks = Hooks(api, pay={"command": ["true"], "key-path": "$.id"})
    hooks.post("pay", body, headers).problem(400, "INVALID")
    assert hooks.flows.all() == []


def test_what_is_locked(api):
    hooks = Hooks(api, by_user={"command": ["true"], "lock": "user/{input.user.id}"}, by_key={"command": ["true"], "lock": "k/{key}"})
    assert hooks.post("by-user", b'{"user":{"id":1}}').status == 200
    assert hooks.post("by-user", b'{"user":{"id":2}}').status == 200
    assert hooks.post("by-user", b'{"user":{"id":1}}').status == 409
    hooks.post("by-user", b"{}").problem(400, "INVALID")
    hooks.post("by-user", b"no json").problem(400, "INVALID")
    hooks.post("by-key", b"").problem(400, "INVALID")
    assert hooks.post("by-key", b"", {"Idempotency-Key": "1"}).status == 200
    assert hooks.post("by-key", b"", {"Idempotency-Key": "2"}).status == 200
    assert {x["key"] for x in hooks.flows.all("--workflow", "by-key")} == {"1", "2"}


# ---- overlap ----------------------------------------------------------------------------------


@both
def test_overlap_queue_is_bounded(hf):
    hooks = Hooks(hf, pay={"command": ["true"], "overlap": "queue", "queue-limit": 3})
    for i in range(3):
        assert hooks.post("pay", b"", {"Idempotency-Key": f"e{i}"}).ok()["state"] == "PENDING"
    full = hooks.post("pay", b"", {"Idempotency-Key": "e3"})
    assert "3 executions wait" in full.problem(429, "QUEUE_FULL")["detail"]
    assert full.headers["retry-after"]
    assert hooks.post("pay", b"", {"Idempotency-Key": "e2"}).ok()["duplicate"]
    assert hooks.states("pay") == ["PENDING"] * 3


@both
def test_overlap_skip_leaves_the_key_free(hf):
    hooks = Hooks(hf, pay={"command": ["true"], "overlap": "skip"})
    first = hooks.post("pay", b"1", {"Idempotency-Key": "e1"}).ok()["executionId"]
    assert hooks.post("pay", b"2", {"Idempotency-Key": "e2"}).ok() == {
        "success": True, "outcome": "skipped", "existingExecutionId": first}
    hf.ok("cancel", first)
    assert not hooks.post("pay", b"2", {"Idempotency-Key": "e2"}).ok()["duplicate"]


@both
def test_overlap_replace_keeps_only_the_newest(hf):
    hooks = Hooks(hf, pay={"command": ["true"], "overlap": "replace"})
    ids = [hooks.post("pay", b"%d" % i).ok()["executionId"] for i in range(3)]
    assert [hooks.flows.show(i)["state"] for i in ids] == ["ABORTED", "ABORTED", "PENDING"]
    assert ids[2] in hooks.flows.show(ids[1])["reason"]


@both
def test_overlap_cancel_asks_the_running_one_to_stop(hf):
    hooks = Hooks(hf, pay={"command": ["sh", "-c", 'read x; echo "$x"; [ "$x" = 2 ] || sleep 1000'], "overlap": "cancel"})
    hf.start("work")
    first = hooks.post("pay", b"1\n").ok()["executionId"]
    poll(lambda: hooks.flows.show(first)["state"] == "RUNNING")
    second = hooks.post("pay", b"2\n").ok()["executionId"]
    assert hooks.flows.wait_for(first, "ABORTED")["reason"]
    assert hooks.flows.wait_for(second, "SUCCESS")["output"] == "2\n"


# ---- with workers -----------------------------------------------------------------------------


@both
def test_workers_run_what_webhooks_start(hf):
    """Each event once, whoever sends it how often and whoever runs it; the answer has what it printed."""
    log = hf.tmp_path / "ran"
    hooks = Hooks(hf, pay={"command": ["sh", "-c", f"cat >> {log}; echo $HOLDFAST_KEY"], "lock": "{workflow}/{key}"})
    for _ in range(2):
        hf.start("work", "--concurrency", "4")
    events = [(f"e{i}", b"%d\n" % i) for i in range(30)]
    waiting = [hooks.later("pay", body, {"Idempotency-Key": key, "Prefer": "wait=120"}) for key, body in events * 2]
    results = [w.join().ok() for w in waiting]
    assert [(r["state"], r["exitCode"], r["output"]) for r in results] == [("SUCCESS", 0, key + "\n") for key, _ in events * 2]
    assert sorted(log.read_bytes().split()) == sorted(body.strip() for _, body in events)
    assert sorted(r["duplicate"] for r in results) == [False] * 30 + [True] * 30


def test_what_fails_is_repeated_and_its_last_end_is_the_result(api):
    tries = api.tmp_path / "tries"
    command = f"echo x >> {tries}; n=$(wc -l < {tries}); echo try $n; [ $n -ge 3 ]"
    hooks = Hooks(api, pay={"command": ["sh", "-c", command], "retries": 5, "retry-backoff": "10ms"})
    api.start("work")
    result = hooks.post("pay", b"", {"Prefer": "wait=120"}).ok()
    assert (result["state"], result["output"]) == ("SUCCESS", "try 3\n")


# ---- bodies -----------------------------------------------------------------------------------


@both
def test_the_body_is_the_input_byte_for_byte(hf):
    hooks = Hooks(hf, pay={"command": ["cat"], "overlap": "queue"})
    for body in (b"", b"\0\xff\r\n{}", bytes(range(256)) * 4096, b"x" * (1 << 20)):
        shown = hooks.flows.show(hooks.post("pay", body).ok()["executionId"])
        encoded = base64.b64decode(shown["input"]) if shown["inputEncoding"] == "base64" else shown["input"].encode()
        assert encoded == body


@pytest.mark.parametrize("backoff, kept", [("7s", 7000), ("0", 1)])
def test_settings_go_with_the_execution(api, backoff, kept):
    hooks = Hooks(api, pay={"command": ["true"], "retries": 2, "retry-backoff": backoff, "on-lost": "retry", "concurrency": 3})
    taken = hooks.post("pay").ok()["executionId"]
    with sqlite3.connect(f"{api.tmp_path}/store.db", timeout=60) as db:
        found = db.execute("SELECT max_attempts, retry_backoff_ms, concurrency, on_lost FROM execution WHERE id=?", (taken,)).fetchone()
    assert found == (3, kept, 3, 1)


def test_what_is_not_there(api):
    hooks = Hooks(api, pay={"command": ["true"]})
    hooks.post("pya").problem(404, "NOT_FOUND")
    assert hooks.service.ask("GET", "/api/webhooks/pay").status == 405
    assert hooks.service.ask("POST", "/api/webhooks/pay/x").status == 404
    assert hooks.service.ask("POST", "/api/webhooks/").status in (400, 404)
    hooks.service.ask("POST", "/api/webhooks/%00").problem(400, "INVALID")


# ---- the store --------------------------------------------------------------------------------


def test_a_store_that_is_gone(api):
    hooks = Hooks(api, pay={"command": ["true"]})
    for name in os.listdir(api.tmp_path):
        if name.startswith("store.db"):
            os.rename(f"{api.tmp_path}/{name}", f"{api.tmp_path}/moved-{name}")
    answer = poll(lambda: (a := hooks.post("pay")).status == 503 and a)
    answer.problem(503, "STORE_UNAVAILABLE")
    assert answer.headers["retry-after"]


@pytest.mark.stores("file")
def test_a_store_that_keeps_locks_only(hf):
    Hooks(hf, pay={"command": ["true"]}).post("pay").problem(501, "UNSUPPORTED")


def test_a_postgres_that_is_gone_and_comes_back(start_postgres, make_holdfast):
    server = start_postgres()
    hooks = Hooks(make_holdfast(server.create_database("hooks")), pay={"command": ["true"], "overlap": "queue"})
    hooks.post("pay", b"", {"Idempotency-Key": "e1"}).ok()
    server.stop()
    answer = hooks.post("pay", b"", {"Idempotency-Key": "e2"})
    assert answer.status == 503 and answer.headers["retry-after"]
    server.start()
    poll(lambda: hooks.post("pay", b"", {"Idempotency-Key": "e2"}).status == 200)
    assert hooks.post("pay", b"", {"Idempotency-Key": "e1"}).ok()["duplicate"]


def test_a_service_that_is_killed_has_lost_nothing(api):
    hooks = Hooks(api, pay={"command": ["true"], "overlap": "queue", "queue-limit": 100000})
    taken = []

    def send():
        while True:
            try:
                taken.append(hooks.post("pay").ok()["executionId"])
            except OSError:
                return

    senders = [Later(send) for _ in range(8)]
    poll(lambda: len(taken) > 200)
    hooks.service.process.send_signal(signal.SIGKILL)
    for sender in senders:
        sender.join()
    recorded = {x["id"] for x in hooks.flows.all("--limit", "100000")}
    assert set(taken) <= recorded


# ---- waiting for the result -------------------------------------------------------------------


@both
@pytest.mark.parametrize("command, state, exit_code", [("cat; echo out", "SUCCESS", 0), ("echo bad >&2; exit 3", "FAILED", 3)])
def test_the_result_is_waited_for(hf, command, state, exit_code):
    hooks = Hooks(hf, pay={"command": ["sh", "-c", command]})
    waiting = hooks.later("pay", b"in ", {"Idempotency-Key": "e1", "Prefer": "respond-async, wait=300"})
    poll(lambda: hooks.flows.all())
    assert not waiting.done
    hooks.run("pay", "e1", b"in ")
    answer = waiting.join()
    result = answer.ok()
    assert (result["state"], result["exitCode"], result["duplicate"]) == (state, exit_code, False)
    assert result["output"] == ("in out\n" if exit_code == 0 else "bad\n") and result["outputEncoding"] == "utf-8"
    assert answer.headers["preference-applied"] == "wait=300"
    # What has ended is answered at once, however it is asked for.
    again = hooks.post("pay", b"in ", {"Idempotency-Key": "e1", "Prefer": 'wait="5"'}).ok()
    assert (again["duplicate"], again["output"]) == (True, result["output"])
    assert "output" not in hooks.post("pay", b"in ", {"Idempotency-Key": "e1"}).ok()


def test_a_wait_that_runs_out_is_answered_as_usual(api):
    hooks = Hooks(api, pay={"command": ["true"]})
    answer = hooks.post("pay", b"", {"Prefer": "wait=1"})
    assert answer.ok()["state"] == "PENDING" and "output" not in answer.json
    assert answer.headers["preference-applied"] == "wait=1"


@pytest.mark.parametrize("prefer", ["wait", "wait=", "wait=x", "wait=-1", "wait=0", "return=minimal", ""])
def test_preferences_that_say_nothing_are_ignored(api, prefer):
    hooks = Hooks(api, pay={"command": ["true"]})
    answer = hooks.post("pay", b"", {"Prefer": prefer})
    assert answer.ok()["state"] == "PENDING" and "preference-applied" not in answer.headers


def test_waits_are_capped_and_end_with_the_service(api):
    hooks = Hooks(api, pay={"command": ["true"], "overlap": "queue"})
    waiting = [hooks.later("pay", b"", {"Prefer": "wait=99999"}) for _ in range(20)]
    poll(lambda: len(hooks.flows.all()) == 20)
    hooks.service.stop()
    for answer in (w.join() for w in waiting):
        assert answer.ok()["state"] == "PENDING" and answer.headers["preference-applied"] == "wait=300"


def test_who_waits_has_no_thread_and_who_leaves_does_not_wait(api):
    hooks = Hooks(api, "--log-requests", pay={"command": ["true"], "overlap": "queue", "queue-limit": 1000})

    def threads():
        return len(os.listdir(f"/proc/{hooks.service.process.pid}/task"))

    before = threads()
    connections = [hooks.service.connect() for _ in range(200)]
    for c in connections:
        c.request("POST", "/api/webhooks/pay", b"", {"Prefer": "wait=300"})
    poll(lambda: len(hooks.flows.all("--limit", "1000")) == 200)
    assert threads() == before
    for c in connections[:150]:
        c.close()
    poll(lambda: sum("client=gone" in line for line in hooks.service.log) == 150)
    for x in hooks.flows.all("--limit", "1000"):
        api.ok("cancel", x["id"])
    for c in connections[150:]:
        assert json.loads(c.getresponse().read())["state"] == "ABORTED"
    hooks.service.stop()


def test_a_cancelled_execution_is_a_result(api):
    hooks = Hooks(api, pay={"command": ["true"]})
    waiting = hooks.later("pay", b"", {"Prefer": "wait=300"})
    taken = poll(lambda: hooks.flows.all())[0]["id"]
    api.ok("cancel", taken)
    result = waiting.join().ok()
    assert (result["state"], result["exitCode"]) == ("ABORTED", None) and result["reason"]


def test_a_lost_execution_is_a_result(api):
    hooks = Hooks(api, pay={"command": ["sh", "-c", "echo on; sleep 1000"], "ttl": "2s"})
    waiting = hooks.later("pay", b"", {"Idempotency-Key": "e1", "Prefer": "wait=300"})
    poll(lambda: hooks.flows.all())
    process, _ = hooks.begin("pay", "e1")
    assert process.stdout.readline() == "on\n"
    process.send_signal(signal.SIGKILL)
    poll(lambda: api("sweep").returncode == 0 and not hooks.flows.all("--state", "RUNNING"))
    assert waiting.join().ok()["state"] == "ABORTED"


def test_large_output_is_told_in_its_two_parts(api):
    hooks = Hooks(api, pay={"command": ["sh", "-c", "head -c 300000 /dev/zero | tr '\\0' x; echo end"]})
    waiting = hooks.later("pay", b"", {"Idempotency-Key": "e1", "Prefer": "wait=300"})
    poll(lambda: hooks.flows.all())
    hooks.run("pay", "e1")
    result = waiting.join().ok()
    assert len(result["output"]) + result["outputSkipped"] + len(result["outputTail"]) == 300004
    assert result["outputSkipped"] > 0 and result["outputTail"].endswith("xend\n")
