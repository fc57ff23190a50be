"""What a client must not be able to do: send too much, too slowly, or what two readers would read differently."""
import json
import socket

import pytest

from api_helpers import RECEIVE_OPTION, api, cut_off_slow_senders, make_service, service  # noqa: F401
from conftest import poll


def post(body, headers="", path="/v1/locks/a"):
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n".encode() + body


def status_of(answer):
    assert answer.startswith(b"HTTP/1.1 "), answer
    return int(answer.split(b" ", 2)[1])


@pytest.mark.parametrize("body, says", [
    ('{"ttl":', "not JSON"), ("[]", "object"), ('"x"', "JSON"), ('{"ttl":1,"ttl":2}', "duplicate"),
    ('{"tll":1}', "'tll'"), ('{"ttl":"soon"}', "duration"), ('{"ttl":"30s","ttlMs":1000}', "twice"), ('{"ttlMs":1.5}', "ttlMs"),
    ('{"ttl":-1}', "ttl"), ('{"ttlMs":99}', "100"), ('{"priority":"high"}', "priority"), ('{"token":"x"}', "UUID"),
    ('{"owner":"a\\u0000b"}', "not JSON"), ('{"owner":"a\\u0001b"}', "owner"), ('{"owner":"' + "x" * 201 + '"}', "200"),
    ('{"wait":"2d"}', "24h"), ("[" * 100 + "]" * 100, "deeper"), ('{"note":' * 40 + "1" + "}" * 40, "deeper"),
    (b'{"owner":"\xff"}', "not JSON")])
def test_bad_bodies(service, body, says):
    problem = service.post("/v1/locks/a", body).problem(400, "INVALID")
    assert says in problem["detail"]
    assert service.get("/v1/locks/a").ok()["fence"] == 0


@pytest.mark.parametrize("path", ["/v1/locks/%00", "/v1/locks/%ff", "/v1/locks/%2", "/v1/locks/%zz", "/v1/locks/%20a",
                                  "/v1/locks/" + "x" * 201, "/v1/locks/%0a", "/v1/locks?limit=0", "/v1/locks?limit=x",
                                  "/v1/locks?state=odd", "/v1/locks?sate=held", "/v1/events?after=-1", "/v1/events?name=%00"])
def test_bad_paths_and_queries(service, path):
    service.get(path).problem(400, "INVALID")


def test_needed_fields(service):
    for route in ("extend", "release"):
        assert "token" in service.post(f"/v1/locks/a/{route}").problem(400, "INVALID")["detail"]
    for route in ("guard", "force-release"):
        assert "fence" in service.post(f"/v1/locks/a/{route}").problem(400, "INVALID")["detail"]


def test_oversized_bodies(service):
    big = json.dumps({"note": "x" * 70000}).encode()
    assert status_of(service.raw(post(big, f"Content-Length: {len(big)}\r\n"))) == 413
    chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    assert status_of(service.raw(post(chunk * 4 + b"0\r\n\r\n", "Transfer-Encoding: chunked\r\n"))) == 413
    # Only announced: refused before it is sent.
    assert status_of(service.raw(post(b"", "Content-Length: 99999999999\r\n"))) == 413
    service.get("/healthz").ok()


def test_oversized_headers(service):
    assert status_of(service.raw(post(b"", "X: " + "y" * 100000 + "\r\n"))) in (400, 413, 431)
    many = "".join(f"X{i}: {'y' * 50}\r\n" for i in range(2000))
    assert status_of(service.raw(post(b"", many))) in (400, 413, 431)
    service.get("/healthz").ok()


@pytest.mark.parametrize("headers", [
    "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n", "Transfer-Encoding: chunked\r\nContent-Length: 2\r\n",
    "Content-Length: 2\r\nContent-Length: 3\r\n", "Content-Length: 2, 3\r\n", "Content-Length: -2\r\n", "Content-Length: 2x\r\n",
    "Transfer-Encoding: gzip, chunked\r\n", "Transfer-Encoding: identity\r\n",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"])
def test_two_lengths_are_refused_and_nothing_behind_them_is_read(service, headers):
    hidden = b"POST /v1/locks/hidden HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}"
    answer = service.raw(post(b"0\r\n\r\n" + hidden, headers))
    assert status_of(answer) == 400
    assert b"HTTP/1.1 200" not in answer
    assert service.get("/v1/locks/hidden").ok()["state"] == "free"


@pytest.mark.parametrize("data", [b"\r\n\r\n\r\n", b"GET\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/9.9\r\n\r\n", b"\0" * 1000,
                                  b"GET / HTTP/1.1\r\nNo colon\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"])
def test_what_is_not_http(service, data):
    answer = service.raw(data)
    assert answer == b"" or status_of(answer) >= 400
    service.get("/healthz").ok()


def test_pipelining(service):
    requests = b"".join(post(b"{}", "Content-Length: 2\r\n", f"/v1/locks/p{i}") for i in range(20))
    with socket.create_connection(("127.0.0.1", service.port), timeout=60) as s:
        s.sendall(requests)
        answer = b""
        while answer.count(b"HTTP/1.1 200") < 20:
            chunk = s.recv(65536)
            assert chunk, answer
            answer += chunk
    names = [json.loads(part.split(b"\r\n\r\n")[1].split(b"HTTP/")[0])["name"] for part in answer.split(b"HTTP/1.1 200")[1:]]
    assert names == [f"p{i}" for i in range(20)]


@pytest.mark.parametrize("begin", [b"POST /v1/locks/a HTTP/1.1\r\nHost: localhost\r\n",
                                   b"POST /v1/locks/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"])
def test_slow_senders_are_cut_off_and_others_are_served(make_service, begin):
    service = make_service(*RECEIVE_OPTION)
    cut_off_slow_senders(service.port, 50, begin, lambda: service.get("/healthz").ok())
    poll(lambda: "holdfast_http_connections 1\n" in service.get("/metrics").body)


def test_a_silent_connection_does_not_stay(service):
    """The limit is a minute: only that it is held, and that others are served meanwhile."""
    with socket.create_connection(("127.0.0.1", service.port), timeout=5) as s:
        service.get("/healthz").ok()
        s.settimeout(0.2)
        with pytest.raises(TimeoutError):
            s.recv(1)


def test_pages_of_other_sites(service):
    body = {"ttl": 1}
    service.post("/v1/locks/a", body, headers={"Origin": "http://evil.example"}).problem(403, "FORBIDDEN")
    service.post("/v1/locks/a", body, headers={"Host": "evil.example"}).problem(403, "FORBIDDEN")
    service.post("/v1/locks/a", body, headers={"Origin": "null"}).problem(403, "FORBIDDEN")
    service.post("/v1/locks/a", body, headers={"Origin": f"http://127.0.0.1:{service.port}"}).ok()
