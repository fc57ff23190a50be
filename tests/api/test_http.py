"""HTTP itself: connections that stay, bodies in pieces, clients that are old, slow, or gone; TLS."""
import json
import os
import socket
import ssl
import threading
import time

import pytest

from api_helpers import Service, api, make_certificate, make_service, run_tool, service  # noqa: F401
from conftest import PATIENCE_S, poll


def connect(service):
    return socket.create_connection(("127.0.0.1", service.port), timeout=PATIENCE_S)


def read_answer(s, head_only=False):
    """(status, headers, body) of one answer, and not a byte more."""
    text = b""
    while not text.endswith(b"\r\n\r\n"):
        byte = s.recv(1)
        assert byte, text
        text += byte
    lines = text.decode().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines[1:-2])}
    body = b""
    while not head_only and len(body) < int(headers.get("content-length", 0)):
        body += s.recv(int(headers["content-length"]) - len(body))
    return int(lines[0].split(" ")[1]), headers, body


def is_closed(s):
    try:
        return s.recv(1) == b""
    except ConnectionResetError:
        return True


# ---- one request after the other --------------------------------------------------------------


def test_a_connection_stays(service):
    with connect(service) as s:
        for i in range(5):
            s.sendall(b"GET /v1/locks/a HTTP/1.1\r\nHost: localhost\r\n\r\n")
            status, headers, body = read_answer(s)
            assert status == 200 and "connection" not in headers and json.loads(body)["name"] == "a"
            assert time.strptime(headers["date"], "%a, %d %b %Y %H:%M:%S GMT")
        s.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert read_answer(s)[1]["connection"] == "close"
        assert is_closed(s)


def test_an_old_client(service):
    with connect(service) as s:
        s.sendall(b"GET /healthz HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        assert read_answer(s)[1]["connection"] == "keep-alive"
        s.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert read_answer(s)[1]["connection"] == "close"
        assert is_closed(s)
    with connect(service) as s:  # a stream without chunks ends with the connection
        s.sendall(b"GET /v1/events/stream HTTP/1.0\r\nHost: localhost\r\n\r\n")
        status, headers, _ = read_answer(s)
        assert status == 200 and "transfer-encoding" not in headers and headers["connection"] == "close"
        service.post("/v1/locks/a").ok()
        assert s.recv(4) == b"id: "


def test_head_has_no_body(service):
    with connect(service) as s:
        for path in (b"/v1/locks/a", b"/nothing", b"/v1/events/stream"):
            s.sendall(b"HEAD %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % path)
            status, headers, _ = read_answer(s, head_only=True)
            assert status == (404 if path == b"/nothing" else 200)
            assert path.endswith(b"stream") or int(headers["content-length"]) > 10
        s.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert read_answer(s)[2] == b'{"status":"ok"}'


def test_empty_lines_before_a_request_are_passed_over(service):
    with connect(service) as s:
        s.sendall(b"\r\n\r\nGET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n\r\n")
        assert read_answer(s)[0] == 200
        s.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert read_answer(s)[0] == 200


# ---- in pieces --------------------------------------------------------------------------------


@pytest.mark.parametrize("request_text", [
    b'POST /v1/locks/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 14\r\n\r\n{"owner":"me"}',
    b'POST /v1/locks/a HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n'
    b'2;x=y\r\n{"\r\nB\r\nowner":"me"\r\n1\r\n}\r\n0\r\nX-Trailer: z\r\n\r\n'])
def test_a_request_byte_by_byte_and_the_next_behind_it(service, request_text):
    with connect(service) as s:
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in request_text[:-1]:
            s.sendall(bytes([byte]))
        s.sendall(request_text[-1:] + b"GET /v1/locks/a HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert json.loads(read_answer(s)[2])["owner"] == "me"
        assert json.loads(read_answer(s)[2])["state"] == "held"


def test_a_client_that_asks_before_it_sends_the_body(service):
    with connect(service) as s:
        s.sendall(b"POST /v1/locks/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
        assert read_answer(s, head_only=True)[0] == 100
        s.sendall(b"{}")
        assert read_answer(s)[0] == 200
        # What is too large is refused at once.
        s.sendall(b"POST /v1/locks/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999\r\nExpect: 100-continue\r\n\r\n")
        assert read_answer(s)[0] == 413
        assert is_closed(s)


@pytest.mark.parametrize("body", [b"zz\r\n", b"2\r\n{}x\r\n", b"2\n{}\n0\n\n", b"fffffffff\r\n", b"-2\r\n"])
def test_broken_chunks(service, body):
    answer = service.raw(b"POST /v1/locks/a HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + body +
                         b"0\r\n\r\nPOST /v1/locks/hidden HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert answer.count(b"HTTP/1.1") == 1 and (b" 400 " in answer or b" 413 " in answer)
    assert service.get("/v1/locks/hidden").ok()["fence"] == 0


@pytest.mark.parametrize("data, status, says", [
    (b"GET / HTTP/1.1\nHost: localhost\n\n", 400, "HTTP/1.1"), (b"GET / HTTP/2.0\r\n\r\n", 505, "HTTP/1.1"),
    (b"GET / HTTP/1.1\r\n\r\n", 400, "Host"), (b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400, "Host"),
    (b"GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400, "header"), (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 13000, 431, "12288"),
    (b"\x16\x03\x01\x02\x00", 400, "HTTP/1.1")])
def test_what_is_no_request_is_told_so_as_a_problem(service, data, status, says):
    with connect(service) as s:
        s.sendall(data)
        got, headers, body = read_answer(s)
        problem = json.loads(body)
        assert (got, problem["status"], headers["content-type"]) == (status, status, "application/problem+json")
        assert says in problem["detail"] and headers["connection"] == "close" and headers["x-request-id"] == problem["requestId"]
        assert is_closed(s)


def test_a_slow_sender_is_told_so(make_service):
    """In time, also by a service that has nothing else to do: not when an idle connection's minute is over."""
    service = make_service("--receive-timeout", "1s")
    with connect(service) as s:
        s.settimeout(30)
        s.sendall(b"POST /v1/locks/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{")
        status, _, body = read_answer(s)
        assert status == 408 and "in time" in json.loads(body)["detail"]
        assert is_closed(s)


def test_a_query_is_decoded(service):
    service.post("/v1/locks/a%20b").ok()
    for query in ("a+b", "a%20b"):
        items = service.get(f"/v1/locks?prefix={query}&limit=5").ok()["items"]
        assert [item["name"] for item in items] == ["a b"]
    assert service.get("/v1/locks?").ok()["items"]
    service.get("/v1/locks?limit").problem(400, "INVALID")


# ---- clients that do not read, or leave --------------------------------------------------------


def test_large_answers_to_a_client_that_reads_late(api, service):
    for i in range(300):
        service.post(f"/v1/locks/large-{i:03}", {"ttl": "24h", "note": "x" * 400}).ok()  # no digit less meanwhile
    whole = service.get("/v1/locks?limit=300").body
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.settimeout(PATIENCE_S)
        s.connect(("127.0.0.1", service.port))
        s.sendall(b"GET /v1/locks?limit=300 HTTP/1.1\r\nHost: localhost\r\n\r\n" * 40)
        time.sleep(1)
        service.get("/healthz").ok()  # others do not wait for it
        for _ in range(40):
            status, headers, body = read_answer(s)
            assert status == 200 and len(body) == len(whole)


def test_a_client_that_leaves_with_answers_unread(service):
    for i in range(100):
        service.post(f"/v1/locks/large-{i:03}", {"ttl": "24h", "note": "x" * 400}).ok()  # no digit less meanwhile
    for _ in range(10):
        with connect(service) as s:
            s.sendall(b"GET /v1/locks?limit=300 HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100)
    poll(lambda: "holdfast_http_connections 1\n" in service.get("/metrics").body)


def test_a_client_that_says_no_more_is_still_answered(service):
    """It has closed its side for writing: whatever it had asked is answered."""
    requests = b"".join(b"POST /v1/locks/h%d HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}" % i for i in range(30))
    assert service.raw(requests).count(b"HTTP/1.1 200") == 30


def test_so_many_connections_at_most(make_service):
    service = make_service("--max-connections", "5")
    held = [connect(service) for _ in range(5)]
    for s in held:
        s.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert read_answer(s)[0] == 200
    late = service.later("GET", "/healthz")
    time.sleep(0.5)
    assert not late.done
    held.pop().close()
    late.join().ok()
    for s in held:
        s.close()


def test_pipelined_requests_leave_the_others_their_turn(service):
    """One who sends without end, and reads, does not keep the others from being served."""
    stop, served = threading.Event(), [0]

    def flood():
        with connect(service) as s:
            s.settimeout(1)
            while not stop.is_set():
                s.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" * 500)
                answers = b""
                while answers.count(b"HTTP/1.1 200") < 500:
                    answers += s.recv(1 << 20)
                served[0] += 500

    thread = threading.Thread(target=flood, daemon=True)
    thread.start()
    poll(lambda: served[0] > 1000)
    for _ in range(20):
        service.get("/v1/locks/a").ok()
    stop.set()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


# ---- TLS --------------------------------------------------------------------------------------


@pytest.fixture
def tls(api, tmp_path):
    cert, key = make_certificate(tmp_path, "localhost")
    service = Service(api, "--tls-cert", cert, "--tls-key", key)
    service.cert, service.key = cert, key
    return service


def connect_tls(service):
    context = ssl.create_default_context(cafile=service.cert)
    return context.wrap_socket(connect(service), server_hostname="127.0.0.1")


def test_many_requests_over_tls(tls):
    with connect_tls(tls) as s:
        assert s.version() in ("TLSv1.2", "TLSv1.3")
        s.sendall(b"".join(b"POST /v1/locks/t%d HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}" % i for i in range(400)))
        for i in range(400):
            status, _, body = read_answer(s)
            assert status == 200 and json.loads(body)["name"] == f"t{i}"
        for byte in b"GET /v1/locks?state=all&limit=400 HTTP/1.1\r\nHost: localhost\r\n\r\n":
            s.sendall(bytes([byte]))
        assert len(json.loads(read_answer(s)[2])["items"]) == 400


def test_waiting_and_streams_over_tls(tls):
    with connect_tls(tls) as stream, connect_tls(tls) as holder, connect_tls(tls) as waiter:
        stream.sendall(b"GET /v1/events/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert read_answer(stream, head_only=True)[1]["transfer-encoding"] == "chunked"
        take = b"POST /v1/locks/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s"
        holder.sendall(take % (2, b"{}"))
        lease = json.loads(read_answer(holder)[2])
        waiter.sendall(take % (14, b'{"wait":"60s"}'))
        release = json.dumps({"token": lease["token"]}).encode()
        holder.sendall(b"POST /v1/locks/a/release HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(release), release))
        assert read_answer(holder)[0] == 200
        assert json.loads(read_answer(waiter)[2])["fence"] > lease["fence"]
        text = b""
        while text.count(b"event: acquired") < 2:
            text += stream.recv(4096)


def test_who_speaks_no_tls_is_closed(tls):
    assert b"HTTP/1.1 200" not in tls.raw(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    with connect(tls) as s:
        s.sendall(os.urandom(3000))
        s.settimeout(PATIENCE_S)
        while s.recv(1000):
            pass
    with connect_tls(tls) as s:
        s.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert read_answer(s)[0] == 200


@pytest.mark.parametrize("kind", [["genrsa", "2048"], ["ecparam", "-name", "prime256v1", "-genkey", "-noout"]], ids=["rsa", "ec"])
def test_a_key_that_does_not_fit(api, tls, tmp_path, kind):
    other = str(tmp_path / "other.pem")
    with open(other, "w") as key:  # the certificate's is another one of kind "ec"
        key.write(run_tool("openssl", *kind).stdout)
    done = api("serve", "--listen", "127.0.0.1:0", "--tls-cert", tls.cert, "--tls-key", other)
    assert done.returncode == 65 and "belong together" in done.stderr
    done = api("serve", "--listen", "127.0.0.1:0", "--tls-cert", "/nowhere", "--tls-key", other)
    assert done.returncode == 69 and "/nowhere" in done.stderr
