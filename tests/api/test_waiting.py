"""Waiting over HTTP: in order, beside the command line's waiters, and only as long as the client is there."""
import http.client
import json
import os
import signal
import socket
import threading
import uuid

import pytest

from api_helpers import api, make_service, on_each_engine, service  # noqa: F401
from conftest import PATIENCE_S, poll

pytestmark = on_each_engine


def waiters(service, name):
    return service.get(f"/v1/locks/{name}").ok()["waiters"]


def release(service, lease):
    service.post(f"/v1/locks/{lease['name']}/release", {"token": lease["token"]}).ok()


def test_a_waiter_is_granted_what_is_released(service):
    lease = service.post("/v1/locks/a").ok()
    waiting = service.later("POST", "/v1/locks/a", {"wait": "60s", "owner": "second"})
    poll(lambda: waiters(service, "a") == 1)
    release(service, lease)
    second = waiting.join().ok()
    assert second["fence"] > lease["fence"] and second["owner"] == "second"


def test_a_wait_that_runs_out(service):
    service.post("/v1/locks/a").ok()
    service.post("/v1/locks/a", {"waitMs": 300}).problem(409, "LOCK_HELD")
    assert waiters(service, "a") == 0


def test_first_come_first_served_with_the_command_line(api, service):
    lease = service.post("/v1/locks/a").ok()
    order, waits = [], []
    for i in range(3):
        waits.append(service.later("POST", "/v1/locks/a", {"wait": "100s", "owner": f"http{i}", "ttl": "100s"}))
        poll(lambda: waiters(service, "a") == 2 * i + 1)
        waits.append(api.start("--json", "acquire", "--wait", "--ttl", "100s", "--owner", f"cli{i}", "a"))
        poll(lambda: waiters(service, "a") == 2 * i + 2)
    for i in range(6):
        release(service, lease)
        waiter = waits[i]
        lease = json.loads(waiter.communicate(timeout=PATIENCE_S)[0]) if i % 2 else waiter.join().ok()
        order.append(lease["owner"])
    assert order == ["http0", "cli0", "http1", "cli1", "http2", "cli2"]


def test_a_higher_priority_goes_first(service):
    lease = service.post("/v1/locks/a").ok()
    low = service.later("POST", "/v1/locks/a", {"wait": "100s", "owner": "low"})
    poll(lambda: waiters(service, "a") == 1)
    high = service.later("POST", "/v1/locks/a", {"wait": "100s", "owner": "high", "priority": 5})
    poll(lambda: waiters(service, "a") == 2)
    release(service, lease)
    lease = high.join().ok()
    assert not low.done
    release(service, lease)
    low.join().ok()


def open_wait(service, name, **body):
    """A wait on a socket of its own, which can be closed."""
    text = json.dumps({"wait": "100s", **body})
    s = socket.create_connection(("127.0.0.1", service.port), timeout=PATIENCE_S)
    s.sendall(f"POST /v1/locks/{name} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode())
    return s


def test_a_client_that_goes_away_stops_waiting(service):
    lease = service.post("/v1/locks/a").ok()
    gone = open_wait(service, "a", owner="gone")
    poll(lambda: waiters(service, "a") == 1)
    behind = service.later("POST", "/v1/locks/a", {"wait": "100s", "owner": "behind"})
    poll(lambda: waiters(service, "a") == 2)
    gone.close()
    poll(lambda: waiters(service, "a") == 1)
    release(service, lease)
    assert behind.join().ok()["owner"] == "behind"
    kinds = [(e["kind"], e["owner"]) for e in service.get("/v1/events?name=a").ok()["items"]]
    assert ("acquired", "gone") not in kinds and ("denied", "gone") in kinds


def test_a_client_that_goes_away_while_holding_keeps_its_lease(service):
    connection = service.connect()
    lease = service.ask("POST", "/v1/locks/a", {"ttl": "1h"}, connection=connection).ok()
    connection.close()
    poll(lambda: "holdfast_http_connections 1\n" in service.get("/metrics").body)
    assert service.get("/v1/locks/a").ok()["fence"] == lease["fence"]


def test_the_same_token_twice_is_one_wait(service):
    lease = service.post("/v1/locks/a").ok()
    token = str(uuid.uuid4())
    first = service.later("POST", "/v1/locks/a", {"wait": "100s", "token": token})
    poll(lambda: waiters(service, "a") == 1)
    second = service.later("POST", "/v1/locks/a", {"wait": "100s", "token": token})
    first.join().problem(409, "LOCK_RACED")
    assert 'holdfast_acquire_total{result="raced"} 1\n' in service.get("/metrics").body
    assert waiters(service, "a") == 1
    release(service, lease)
    assert second.join().ok()["token"] == token
    assert service.get("/v1/locks/a").ok()["state"] == "held"


def test_a_waiter_takes_over_what_expires(service):
    service.post("/v1/locks/a", {"ttlMs": 1000, "owner": "short"}).ok()
    taken = service.post("/v1/locks/a", {"wait": "100s", "owner": "next"}).ok()
    assert taken["owner"] == "next"
    assert "short" in poll(lambda: service.logged("takeover"))


def test_the_death_of_a_local_holder_is_noticed_by_the_kernel(api, service):
    holder = api.start("run", "--ttl", "1h", "a", "--", "sleep", "1000")
    poll(lambda: service.get("/v1/locks/a").ok()["alive"])
    waiting = service.later("POST", "/v1/locks/a", {"wait": "100s"})
    poll(lambda: waiters(service, "a") == 1)
    holder.send_signal(signal.SIGKILL)
    waiting.join().ok()  # far before the hour is over


def test_a_thousand_at_once_get_one_grant(service):
    """Ten clients of a hundred connections each; nobody waits."""
    granted, refused, lock = [], [], threading.Lock()

    def client():
        sockets = [socket.create_connection(("127.0.0.1", service.port), timeout=PATIENCE_S) for _ in range(100)]
        for s in sockets:
            s.sendall(b"POST /v1/locks/hot HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}")
        for s in sockets:
            response = http.client.HTTPResponse(s)
            response.begin()
            body = json.loads(response.read())
            with lock:
                (granted if response.status == 200 else refused).append(body)
            s.close()

    threads = [threading.Thread(target=client) for _ in range(10)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(PATIENCE_S)
    assert len(granted) == 1 and len(refused) == 999
    assert {r["code"] for r in refused} == {"LOCK_HELD"} and {r["holder"]["fence"] for r in refused} == {granted[0]["fence"]}


def test_many_open_waits_cost_little(service):
    lease = service.post("/v1/locks/busy", {"ttl": "1h"}).ok()
    before, n = service.memory_kib(), 3000
    sockets = [open_wait(service, "busy", owner=f"w{i}") for i in range(n)]
    poll(lambda: waiters(service, "busy") == n)
    each = (service.memory_kib() - before) / n
    threads = len(os.listdir(f"/proc/{service.process.pid}/task"))
    descriptors = len(os.listdir(f"/proc/{service.process.pid}/fd"))
    assert each < 40 and threads < 10 and descriptors < n + 100  # KiB; sanitizers need some
    service.get("/healthz").ok()
    release(service, lease)
    response = http.client.HTTPResponse(sockets[0])
    response.begin()
    assert json.loads(response.read())["owner"] == "w0"
    for s in sockets:
        s.close()
    poll(lambda: waiters(service, "busy") == 0)


def test_two_services_on_one_store(api, service, make_service):
    other = make_service()
    lease = service.post("/v1/locks/a").ok()
    waiting = other.later("POST", "/v1/locks/a", {"wait": "100s"})
    poll(lambda: waiters(service, "a") == 1)
    release(service, lease)
    assert waiting.join().ok()["fence"] > lease["fence"]


def test_on_postgres_all_waits_are_woken_through_one_connection(api, service, request):
    if api.scheme != "postgres":
        pytest.skip("sqlite has no connections")
    database = api.url.rsplit("/", 1)[1]
    ask = lambda sql: request.getfixturevalue("shared_postgres").psql(sql, database)  # noqa: E731
    listeners = "FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'"
    lease = service.post("/v1/locks/a").ok()
    waits = [service.later("POST", "/v1/locks/a", {"wait": "100s"}) for _ in range(12)]
    poll(lambda: ask("SELECT count(*) FROM holdfast.waiter WHERE channel <> ''") == "12")
    assert ask(f"SELECT count(*) {listeners}") == "1"
    # Cut off, it comes back, and all of them ask again.
    first = ask(f"SELECT pg_terminate_backend(pid), pid {listeners}")
    poll(lambda: ask(f"SELECT count(*) {listeners} AND pid <> {first.split('|')[1]}") == "1")
    granted = set()
    for _ in waits:
        release(service, lease)
        lease = poll(lambda: next((w for w in waits if w.done and w not in granted), None))
        granted.add(lease)
        lease = lease.join().ok()
