"""Workers through http: as a store sleep until they are woken; they do not ask again and again."""
import os
import re
import signal
import time

import pytest

from api_helpers import api, make_service, on_each_engine, service  # noqa: F401
from conftest import PATIENCE_S, Holdfast, poll
from proxy import DOWN, Proxy, Watcher
from test_http_executions import create, state_of

WAKES = "/v1/executions/wakes?id={}"
ID = "0123456789abcdef" * 2


class Marks(Watcher):
    """What a worker asks, and what it is told, in this order."""

    ASKED, TOLD = re.compile(rb"POST /v1/executions/(idle|awake|due)"), re.compile(rb'event: (woken)|"(nextInMs)"|\{"items":(\[\])')

    def __init__(self):
        self.seen = []

    def sees(self, direction, data):
        found = (self.TOLD if direction == DOWN else self.ASKED).finditer(data)
        self.seen += [m[m.lastindex].decode() for m in found]
        return data

    def is_asleep(self):
        """It was told that it sleeps, has looked once more, and found nothing."""
        return self.seen[-3:] == ["nextInMs", "due", "[]"]


@pytest.fixture
def sleeper(service, tmp_path):
    """A worker of the workflow `pay`; its Marks."""
    (tmp_path / "flows.yaml").write_text("workflows: {pay: {command: ['true'], overlap: queue}}")
    with Proxy(("127.0.0.1", service.port)) as proxy:
        marks = proxy.watch(Marks())
        marks.proxy = proxy
        holdfast = Holdfast(f"http://127.0.0.1:{proxy.port}", tmp_path)
        marks.worker = holdfast.start("work", "--config", tmp_path / "flows.yaml")
        poll(marks.is_asleep)
        yield marks
        holdfast.close()


@on_each_engine
def test_a_worker_is_woken(service, sleeper):
    before, began = len(sleeper.seen), time.monotonic()
    time.sleep(3)
    asked = sleeper.seen[before:].count("due")
    assert asked <= 2 * (time.monotonic() - began) / 5  # every 5 s at most, and once more; a poll is each second
    woken = 0
    for _ in range(5):
        poll(sleeper.is_asleep)
        before = len(sleeper.seen)
        made = create(service)
        poll(lambda: state_of(service, made) == "SUCCESS")
        woken += sleeper.seen[before] == "woken"
    assert woken >= 4  # one may have been found by the look that comes every few seconds


def test_a_service_that_starts_again(service, sleeper):
    service.kill()
    service.start()
    made = create(service)
    poll(lambda: state_of(service, made) == "SUCCESS")
    poll(sleeper.is_asleep)  # and it sleeps again


def test_it_gets_up_when_it_ends(api, sleeper, request):
    """Whoever sleeps after it is woken, and not the dead."""
    assert len(sleepers(api, request)) == 1
    sleeper.worker.send_signal(signal.SIGTERM)
    assert sleeper.worker.wait(timeout=PATIENCE_S) == 0
    assert sleepers(api, request) == []


def sleep(service, **body):
    """The stream of a worker that sleeps, as any language would do it; .next_ms: when the next one is due."""
    connection = service.connect()
    connection.request("GET", WAKES.format(ID))
    connection.answer = connection.getresponse()
    assert connection.answer.readline() == b": watching\n"
    connection.next_ms = service.post(f"/v1/executions/idle?id={ID}", body).ok()["nextInMs"]
    return connection


def is_told(stream, limit_s=PATIENCE_S):
    stream.sock.settimeout(limit_s)
    try:
        return stream.answer.readline() + stream.answer.readline() == b"\nevent: woken\n"
    except TimeoutError:
        return False


def sleepers(api, request):
    if api.scheme == "sqlite":
        return [name for name in os.listdir(f"{api.tmp_path}/store.db-wake/idle") if "." not in name]
    rows = request.getfixturevalue("shared_postgres").psql("SELECT encode(id, 'hex') FROM holdfast.sleeper", api.url.rsplit("/", 1)[1])
    return rows.split()


def test_the_routes(service):
    create(service, runAt=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600)))
    assert sleep(service, workflows=["other"]).next_ms is None
    stream = sleep(service, workflows=["pay"])
    assert 0 < stream.next_ms <= 3600000
    create(service, "other")
    assert not is_told(stream, limit_s=0.5)
    stream = sleep(service, workflows=["pay"])
    create(service, lock="free")
    assert is_told(stream)
    assert service.post(f"/v1/executions/awake?id={ID}").ok() == {"awake": True}
    service.post("/v1/executions/idle?id=1").problem(400, "INVALID")
    service.post("/v1/executions/idle").problem(400, "INVALID")
    service.post(f"/v1/executions/idle?id={ID}", {"max": 1}).problem(400, "INVALID")
    service.get("/v1/executions/wakes").problem(400, "INVALID")


@on_each_engine
def test_one_that_leaves_is_not_woken(api, service, request):
    """Else nobody would hear of it: each execution wakes one of those who sleep."""
    stream = sleep(service)
    assert sleepers(api, request) == [ID]
    stream.answer.close()
    stream.close()
    poll(lambda: sleepers(api, request) == [])
    service.post(f"/v1/executions/idle?id={ID}").problem(503, "STORE_UNAVAILABLE")
    assert service.post(f"/v1/executions/awake?id={ID}").ok() == {"awake": True}


def test_stopping_ends_the_stream(service):
    stream = sleep(service)
    service.process.send_signal(signal.SIGTERM)
    stream.answer.read()  # raises when the last chunk is missing
    assert service.process.wait(timeout=PATIENCE_S) == 0
