"""What a sender of webhooks must not be able to do: send too much, too slowly, or what two readers would read differently."""
import socket

import pytest

from api_helpers import RECEIVE_OPTION, api, cut_off_slow_senders  # noqa: F401
from conftest import poll
from hooks import Hooks
from test_limits import post, status_of

PATH = "/api/webhooks/pay"
MIB = 1 << 20
QUEUED = {"command": ["true"], "overlap": "queue", "queue-limit": 100000}


@pytest.fixture
def hooks(api):
    return Hooks(api, pay=QUEUED)


def chunked(*sizes):
    return b"".join(b"%x\r\n" % n + b"x" * n + b"\r\n" for n in sizes) + b"0\r\n\r\n"


def test_bodies_up_to_the_limit(hooks):
    assert hooks.post("pay", b"x" * MIB).status == 200
    raw = hooks.service.raw
    refused = raw(post(b"x" * (MIB + 1), f"Content-Length: {MIB + 1}\r\n", PATH))
    assert status_of(refused) == 413 and b"1048576" in refused
    assert status_of(raw(post(chunked(MIB // 2, MIB // 2), "Transfer-Encoding: chunked\r\n", PATH))) == 200
    assert status_of(raw(post(chunked(MIB // 2, MIB // 2, 1), "Transfer-Encoding: chunked\r\n", PATH))) == 413
    assert status_of(raw(post(chunked(*[MIB] * 20), "Transfer-Encoding: chunked\r\n", PATH))) == 413
    assert status_of(raw(post(b"", "Content-Length: 99999999999\r\n", PATH))) == 413  # only announced
    assert len(hooks.flows.all()) == 2


def test_other_routes_take_no_more_than_before(hooks):
    body = b'{"note":"%s"}' % (b"x" * 70000)
    assert status_of(hooks.service.raw(post(body, f"Content-Length: {len(body)}\r\n", "/v1/locks/a"))) == 413


def test_the_limit_is_an_option(api):
    for limit in (70000, 4 * MIB):
        hooks = Hooks(api, "--max-body", limit, pay={"command": ["true"], "overlap": "queue"})
        assert hooks.post("pay", b"x" * limit).status == 200
        assert status_of(hooks.service.raw(post(b"x" * (limit + 1), f"Content-Length: {limit + 1}\r\n", PATH))) == 413
        hooks.service.stop()


@pytest.mark.parametrize("headers", ["Content-Length: 2\r\nTransfer-Encoding: chunked\r\n", "Content-Length: 2\r\nContent-Length: 3\r\n",
                                     "Transfer-Encoding: gzip, chunked\r\n", "Transfer-Encoding: chunked\r\nContent-Length: 2\r\n"])
def test_two_lengths_are_refused_and_nothing_behind_them_is_read(hooks, headers):
    hidden = post(b"{}", "Content-Length: 2\r\n", PATH)
    answer = hooks.service.raw(post(b"0\r\n\r\n" + hidden, headers, PATH))
    assert status_of(answer) == 400 and b"HTTP/1.1 200" not in answer
    assert hooks.flows.all() == []


@pytest.mark.parametrize("body", [b"[" * 500000, b'{"a":' * 100000, b"\xff\xfe", b"{" + b'"a":1,' * 1000], ids=["arrays", "objects", "bytes", "cut"])
def test_a_body_that_nobody_reads_may_be_anything(hooks, body):
    hooks.post("pay", body).ok()


def test_slow_senders_are_cut_off_and_others_are_served(api):
    hooks = Hooks(api, *RECEIVE_OPTION, pay=QUEUED)
    begin = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {MIB}\r\n\r\n".encode()
    cut_off_slow_senders(hooks.service.port, 40, begin + b"x" * 10000, lambda: hooks.post("pay", b"quick").ok())
    assert not [x for x in hooks.flows.all("--limit", "100000") if x["state"] != "PENDING"]


def test_many_large_bodies_at_once_are_bounded(hooks):
    """Together they may have 128 MiB; who comes then is told to come again, before he has sent anything."""
    begin = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {MIB}\r\n\r\n".encode()
    senders = [socket.create_connection(("127.0.0.1", hooks.service.port), timeout=120) for _ in range(200)]
    try:
        for s in senders:
            s.sendall(begin)
        answers = b""
        for s in senders[128:]:
            answers = s.recv(65536)
            assert status_of(answers) == 503 and b"Retry-After: 1" in answers
        assert status_of(hooks.service.raw(begin)) == 503
        hooks.post("pay", b"small").ok()
    finally:
        for s in senders:
            s.close()
    poll(lambda: status_of(hooks.service.raw(begin + b"x" * MIB)) == 200)
