"""A real service per test: its own store, its own port, real sockets.

    def test_something(service):
        lease = service.post("/v1/locks/a", {"ttl": "30s"}).ok()      # validated against openapi.json
        assert service.get("/v1/locks/a").json["state"] == "held"
"""
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
import urllib.parse

import jsonschema
import pytest

from conftest import PATIENCE_S, ROOT, Holdfast, on_postgres, poll
from servers import Missing, free_port, npm_packages

with open(os.path.join(ROOT, "src/server/openapi.json")) as file:
    OPENAPI = json.load(file)
RESOLVER = jsonschema.RefResolver("", OPENAPI)


def resolve(node):
    while "$ref" in node:
        node = RESOLVER.resolve(node["$ref"])[1]
    return node


def form_of(path):
    """The path as openapi.json has it."""
    path = path.split("?")[0]
    for form in OPENAPI["paths"]:
        pattern = re.sub(r"\{\w+\}", "[^/]+", form.replace("{id}", "[0-9a-f-]{36}"))
        if re.fullmatch(pattern, path) and (form != "/" or path == "/"):
            return form
    return None


def check_against_openapi(method, path, status, content_type, body):
    """What came must be what the description says of this route and status."""
    form = form_of(path)
    if form is None:
        assert status == 404
        described = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    elif method.lower() not in OPENAPI["paths"][form]:
        assert status == 405
        described = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    else:
        responses = OPENAPI["paths"][form][method.lower()]["responses"]
        assert str(status) in responses, f"{method} {path}: {status} is not described: {body[:300]}"
        described = resolve(responses[str(status)])["content"]
    plain = content_type.split(";")[0]
    assert plain in described, f"{method} {path}: {content_type} is not described"
    if plain.endswith("json"):
        jsonschema.Draft202012Validator(described[plain]["schema"], resolver=RESOLVER).validate(json.loads(body))


class Answer:
    """.body is text, .bytes what came."""

    def __init__(self, method, path, response, body):
        self.bytes = body if isinstance(body, bytes) else body.encode()
        self.status, self.body = response.status, self.bytes.decode(errors="replace")
        self.headers = {k.lower(): v for k, v in response.getheaders()}
        self.json = json.loads(self.body) if "json" in self.headers.get("content-type", "") and body else None
        if method != "HEAD":
            check_against_openapi(method, path, self.status, self.headers["content-type"], self.body)
        assert re.fullmatch(r"[\w.:/-]{1,64}", self.headers["x-request-id"])

    def ok(self, status=200):
        assert self.status == status, self.body
        return self.json

    def problem(self, status, code):
        """It is this problem; its document."""
        assert (self.status, self.json["code"]) == (status, code), self.body
        assert self.json["status"] == status
        return self.json


class UnixConnection(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.host)


class Service:
    """`holdfast serve` with a store of its own. Its port is its own, too, over restarts; listen=None: the options say where."""

    def __init__(self, hf, *options, env=None, listen="127.0.0.1"):
        self.hf, self.options, self.env = hf, options, env
        self.listen = f"{listen}:{free_port()}" if listen == "127.0.0.1" else listen
        self.token = None
        self.start()

    def start(self):
        arguments = ["serve", *self.options]
        if self.listen:
            arguments += ["--listen", self.listen]
        self.process = self.hf.start(*arguments, env=self.env)
        self.log = []
        self.reader = threading.Thread(target=self.read_log, args=(self.process.stderr,), daemon=True)
        self.reader.start()
        self.port = None
        if self.listen:
            line = poll(lambda: self.process.poll() is not None or self.logged("listening"))
            assert line is not True, "".join(self.log)
            if self.listen.startswith("127."):
                self.port = int(re.search(r"127\.0\.0\.1:(\d+)", line)[1])

    def read_log(self, pipe):
        try:
            for line in pipe:
                self.log.append(line)
        except ValueError:
            pass  # closed at the end of the test

    def logged(self, event):
        return next((line for line in list(self.log) if f"event={event}" in line), None)

    def connect(self, timeout=PATIENCE_S):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def ask(self, method, path, body=None, headers=None, connection=None):
        connection = connection or self.connect()
        headers = dict(headers or {})
        if self.token:
            headers.setdefault("Authorization", f"Bearer {self.token}")
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return Answer(method, path, response, response.read())

    def get(self, path, **options):
        return self.ask("GET", path, **options)

    def post(self, path, body=None, **options):
        return self.ask("POST", path, {} if body is None else body, **options)

    def raw(self, data, timeout=PATIENCE_S):
        """Everything that the service sends until it closes, or nothing more is expected."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout) as s:
            answer = b""
            try:
                s.sendall(data)
                s.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # it has closed already, after its answer
            try:
                while chunk := s.recv(65536):
                    answer += chunk
            except ConnectionResetError:
                pass  # closed with something of ours unread
            return answer

    def later(self, *args, **options):
        """The same in a thread: .join() gives the Answer."""
        return Later(lambda: self.ask(*args, **options))

    def stop(self):
        """It ends as it should; from then on its log is whole."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(timeout=PATIENCE_S) == 0, "".join(self.log)
        self.reader.join(PATIENCE_S)

    def kill(self):
        self.process.kill()
        self.process.wait(timeout=PATIENCE_S)

    def memory_kib(self):
        with open(f"/proc/{self.process.pid}/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


class Later:
    def __init__(self, work):
        self.result = self.failed = None

        def run():
            try:
                self.result = work()
            except Exception as problem:
                self.failed = problem

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    @property
    def done(self):
        return not self.thread.is_alive()

    def join(self):
        self.thread.join(PATIENCE_S)
        assert self.done, "no answer"
        if self.failed:
            raise self.failed
        return self.result


def quoted(name):
    return urllib.parse.quote(name, safe="")


# What depends on how the engine wakes, or keeps the service's own records.
on_each_engine = pytest.mark.parametrize("api", ["sqlite", "postgres"], indirect=True)


@pytest.fixture
def api(request, tmp_path):
    """The program on a sqlite store (or as on_each_engine says), without a service."""
    engine = getattr(request, "param", "sqlite")
    urls = on_postgres(request) if engine == "postgres" else iter([f"sqlite:{tmp_path}/store.db"])
    holdfast = Holdfast(next(urls), tmp_path)
    yield holdfast
    holdfast.close()
    for _ in urls:
        pass


@pytest.fixture
def service(api):
    return Service(api)


@pytest.fixture
def make_service(api):
    return lambda *options, **more: Service(api, *options, **more)


def run_tool(*argv, **options):
    return subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S, **options)


def make_certificate(where, name):
    """A certificate of its own and its key, PEM."""
    cert, key = str(where / f"{name}.cert"), str(where / f"{name}.key")
    made = run_tool("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", key, "-out", cert,
                    "-days", "2", "-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1")
    assert made.returncode == 0, made.stderr
    return cert, key


RECEIVE_S = 3  # of a service with this option
RECEIVE_OPTION = ("--receive-timeout", RECEIVE_S)


def cut_off_slow_senders(port, n, begin, serve):
    """So many begin and then send a byte now and then: all are cut off after RECEIVE_S, and serve() does well meanwhile."""
    slow = [socket.create_connection(("127.0.0.1", port), timeout=120) for _ in range(n)]
    for s in slow:
        s.sendall(begin)

    def drip():
        serve()
        for s in list(slow):
            try:
                s.sendall(b"x")
                s.settimeout(0.001)
                s.recv(1000)  # 408, or the end
                slow.remove(s)
            except TimeoutError:
                pass
            except OSError:
                slow.remove(s)
        return not slow

    began = time.monotonic()
    poll(drip, every_s=RECEIVE_S / 10)
    assert time.monotonic() - began > RECEIVE_S / 2  # not at once either


def run_node(script, *args, **options):
    """A script of tests/api/node with the packages that its lock file pins, installed once per build."""
    try:
        place = npm_packages("api/node")
    except Missing as missing:
        pytest.skip(str(missing))
    return run_tool("node", os.path.join(place, script), *args, cwd=place, **options)
