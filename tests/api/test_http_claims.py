"""Workers that wait for a claim, seen from the store: they are woken, and what nobody is told of is given back."""
import json
import re
import time

import pytest

from api_helpers import Service
from conftest import Holdfast, on_postgres, poll
from proxy import DOWN, PostgresWatcher, Proxy
from test_http_executions import at, claim, create


class Statements(PostgresWatcher):
    """What the service asks, by the function's name, and NOTIFY when it is told something; in this order."""

    held = None  # the answer to this one stays on its way until the proxy is healed

    def __init__(self, proxy=None, parent=None):
        super().__init__(parent)
        self.proxy = parent.proxy if parent else proxy
        self.prepared, self.seen = {}, []

    def of_connection(self):
        return type(self)(parent=self)

    def sees_request(self, kind, payload, raw):
        if kind == b"P":
            name, sql = payload.split(b"\0")[:2]
            self.prepared[name] = sql.decode()
        if kind == b"B":
            self.asks(self.prepared[payload.split(b"\0")[1]])
        return super().sees_request(kind, payload, raw)

    def asks(self, sql):
        function = re.search(r"holdfast\.(\w+)\(", sql)
        self.parent.seen.append(function[1] if function else sql)
        if function and function[1] == self.parent.held:
            self.proxy.open_way[DOWN].clear()

    def sees_reply(self, kind, payload, raw):
        if kind == b"A":
            self.parent.seen.append("NOTIFY")
        return super().sees_reply(kind, payload, raw)


@pytest.fixture
def watched(request, tmp_path):
    """A service, what it asks of its store, and another service on the same store."""
    urls = on_postgres(request)
    url = next(urls)
    server, database = request.getfixturevalue("shared_postgres"), url.rsplit("/", 1)[1]
    with Proxy(("127.0.0.1", server.port)) as proxy:
        statements = proxy.watch(Statements(proxy))
        direct, proxied = (Holdfast(u, tmp_path) for u in (url, server.url(database, port=proxy.port)))
        yield Service(proxied, "--log-requests"), statements, Service(direct)
        proxy.heal()
        proxied.close()
        direct.close()
    for _ in urls:
        pass


def test_a_claim_that_waits_is_woken(watched):
    service, statements, other = watched
    woken = 0
    for i in range(5):
        waiting = service.later("POST", "/v1/executions/claim", {"waitMs": 3600000, "ttl": "1h"})
        poll(lambda: statements.seen[-2:] == ["sleep", "due"])  # it has looked once more
        before, began = len(statements.seen), time.monotonic()
        time.sleep(2 if i == 0 else 0)
        assert statements.seen[before:].count("due") <= 2 * (time.monotonic() - began) / 5  # a poll is each second
        before = len(statements.seen)
        made = create(other, lock=f"lock-{i}")
        assert waiting.join().ok()["items"][0]["id"] == made["id"]
        seen = statements.seen[before:]
        woken += "due" in seen and "NOTIFY" in seen[:seen.index("due")]
    assert woken >= 4  # one may have been found by the look that comes every few seconds


whether_it_waits = pytest.mark.parametrize("waits", [True, False], ids=["waits", "finds-at-once"])


def leave_during(watched, function, waits, **body):
    """A worker waits and something comes, or it is there already; and the worker leaves while the store is at this
    function: the service and the execution."""
    service, statements, _ = watched
    statements.held = function
    worker = service.connect()

    def ask():
        worker.request("POST", "/v1/executions/claim", json.dumps({"waitMs": 3600000, "ttl": "1h", "workflows": ["pay"]}))

    if waits:
        ask()
        poll(lambda: "sleep" in statements.seen)
        made = create(service, **body)
    else:
        made = create(service, **body)
        ask()
    poll(lambda: function in statements.seen)
    worker.close()
    poll(lambda: any("client=gone" in line for line in service.log))
    statements.held = None
    statements.proxy.heal()
    return service, made


@whether_it_waits
def test_a_worker_that_leaves_while_something_is_claimed_for_it(watched, waits):
    service, made = leave_during(watched, "begin_execution", waits)
    x = poll(lambda: (x := service.get(at(made)).ok())["state"] == "PENDING" and x["attempt"] == 1 and x)
    assert not x["spawned"]
    assert claim(service)[0]["id"] == made["id"]


@whether_it_waits
@pytest.mark.parametrize("on_lost, state", [("abort", "ABORTED"), ("retry", "PENDING")])
def test_a_worker_that_leaves_when_it_is_about_to_be_told(watched, on_lost, state, waits):
    """It is said to be started by then: that is never silently repeated, but it is known at once. The bug: a worker
    that found something at once was not watched, and what it had left stayed RUNNING until its ttl."""
    service, made = leave_during(watched, "extend_execution", waits, onLost=on_lost)
    x = poll(lambda: (x := service.get(at(made)).ok())["state"] == state and x)
    assert x["reason"] == "its worker left before it was told"
