"""The service's life: starting, who may connect, reloading, stopping, being killed."""
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import http.client

import pytest

from api_helpers import Answer, Later, Service, UnixConnection, api, make_certificate, make_service, on_each_engine, run_tool, service  # noqa: F401
from conftest import PATIENCE_S, is_listened_at, poll
from hooks import Hooks


# ---- addresses and users ----------------------------------------------------------------------


def test_another_address_needs_tokens(api):
    done = api("serve", "--listen", "0.0.0.0:0")
    assert done.returncode == 77 and "--require-token" in done.stderr
    assert api("serve", "--listen", "nonsense").returncode == 65
    assert api("serve", "--tls-cert", "/x").returncode == 64


def as_user(uid, code, *args):
    """Run Python as another user."""
    return subprocess.run([sys.executable, "-c", code, *map(str, args)], user=uid, group=uid, extra_groups=[],
                          capture_output=True, text=True, timeout=PATIENCE_S)


def test_a_unix_socket_is_for_its_user(api, tmp_path):
    path = str(tmp_path / "sock")
    service = Service(api, listen=f"unix:{path}")
    poll(lambda: is_listened_at(path))

    def ask(method="GET", where="/v1/locks/a"):
        c = UnixConnection(path, timeout=PATIENCE_S)
        c.request(method, where, headers={"Host": "anything"})
        r = c.getresponse()
        return Answer(method, where, r, r.read().decode())

    assert poll(lambda: ask().ok())["state"] == "free"
    if os.getuid() == 0:
        os.chmod(path, 0o777)
        for part in (tmp_path, *tmp_path.parents):
            os.chmod(part, os.stat(part).st_mode | 0o111)
        code = ("import socket,sys; s=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]);"
                "s.sendall(b'GET /v1/locks/a HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n');"
                "print(s.recv(9999).decode())")
        other = as_user(65534, code, path)
        assert " 403 " in other.stdout, other
    service.stop()
    assert not os.path.exists(path)


# ---- tokens -----------------------------------------------------------------------------------


def kept_by(api, request):
    """All that the store has on disk, in whatever form."""
    if api.scheme == "sqlite":
        with open(f"{api.tmp_path}/store.db", "rb") as db:
            return db.read()
    database = api.url.rsplit("/", 1)[1]
    server = request.getfixturevalue("shared_postgres")
    kept = server.run(f"{server.bin}/pg_dump", "-h", server.sockets, "-p", str(server.port), "-U", "postgres", database)
    assert "COPY holdfast.api_token" in kept
    return kept.encode()


@on_each_engine
def test_tokens(api, make_service, request):
    all_of_it = api.json("token", "create", "--allow", "locks:read,locks:write,locks:force,events:read,metrics:read")
    narrow = api.json("token", "create", "--allow", "locks:write", "--prefix", "nightly/", "--note", "cron")
    assert api("token", "create", "--allow", "locks:everything").returncode == 64
    service = make_service("--require-token")
    service.get("/v1/locks/a").problem(401, "UNAUTHORIZED")
    assert service.get("/healthz").ok()
    service.token = "hft_" + "0" * 64
    service.get("/v1/locks/a").problem(401, "UNAUTHORIZED")
    service.token = all_of_it["token"]
    service.post("/v1/locks/a").ok()
    service.get("/v1/events").ok()
    service.token = narrow["token"]
    service.post("/v1/locks/a").problem(403, "FORBIDDEN")
    lease = service.post("/v1/locks/nightly%2Fx").ok()
    service.get("/v1/locks/nightly%2Fx").problem(403, "FORBIDDEN")
    service.post("/v1/batch", {"requests": [{"op": "status", "name": "a"}]}).problem(403, "FORBIDDEN")
    service.post("/v1/batch", {"requests": [{"op": "force", "name": "nightly/x", "fence": lease["fence"]}]}).problem(403, "FORBIDDEN")
    listed = api.lines("token", "list")
    assert {t["id"] for t in listed} == {all_of_it["id"], narrow["id"]}
    assert narrow["token"] not in api.ok("token", "list") and "token" not in listed[0]
    api.ok("token", "revoke", narrow["id"])
    assert api("token", "revoke", narrow["id"]).returncode == 65
    poll(lambda: service.post("/v1/locks/nightly%2Fy").status == 401)
    # Neither the store nor the log knows it.
    assert all_of_it["token"].encode() not in kept_by(api, request)
    service.stop()
    assert not any(all_of_it["token"] in line or lease["token"] in line for line in service.log)


@on_each_engine
def test_prefix_of_a_token_narrows_lists(api, make_service):
    token = api.json("token", "create", "--allow", "locks:read,events:read,locks:write", "--prefix", "mine/")["token"]
    service = make_service()
    service.post("/v1/locks/mine%2Fa").ok()
    service.post("/v1/locks/other").ok()
    service.token = token
    assert [i["name"] for i in service.get("/v1/locks").ok()["items"]] == ["mine/a"]
    assert {e["name"] for e in service.get("/v1/events").ok()["items"]} == {"mine/a"}
    service.get("/v1/locks?prefix=other").problem(403, "FORBIDDEN")


@on_each_engine
def test_an_expired_token(api, make_service):
    token = api.json("token", "create", "--allow", "locks:read", "--expires", "1ms")["token"]
    service = make_service("--require-token")
    service.token = token
    service.get("/v1/locks/a").problem(401, "UNAUTHORIZED")


def test_hangup_reads_tokens_again(api, make_service):
    service = make_service("--require-token")
    service.token = api.json("token", "create", "--allow", "locks:read")["token"]
    service.process.send_signal(signal.SIGHUP)
    poll(lambda: service.logged("reloaded"))
    poll(lambda: service.get("/v1/locks/a").status == 200)


# ---- TLS --------------------------------------------------------------------------------------


def test_tls(api, tmp_path):
    cert, key = make_certificate(tmp_path, "localhost")
    service = Service(api, "--tls-cert", cert, "--tls-key", key)
    trusting = ssl.create_default_context(cafile=cert)
    c = http.client.HTTPSConnection("127.0.0.1", service.port, context=trusting, timeout=PATIENCE_S)
    assert service.ask("POST", "/v1/locks/a", {"ttl": "1h"}, connection=c).ok()["fence"] == 1
    # As a store, with the certificate known, and refused without.
    url = f"https://127.0.0.1:{service.port}"
    assert api.json("--store", f"{url}?ca-file={cert}", "status", "a")["fence"] == 1
    refused = api("--store", url, "status", "a")
    assert refused.returncode == 69 and "certificate" in refused.stderr.lower()


def test_hangup_reads_the_certificate_again(api, tmp_path):
    first, second = make_certificate(tmp_path, "first"), make_certificate(tmp_path, "second")
    cert, key = str(tmp_path / "used.cert"), str(tmp_path / "used.key")

    def use(pair):
        for source, target in zip(pair, (cert, key)):
            shutil.copy(source, target)

    def shown():
        return ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(("127.0.0.1", service.port)))

    def der(path):
        with open(path) as file:
            return ssl.PEM_cert_to_DER_cert(file.read())

    use(first)
    service = Service(api, "--tls-cert", cert, "--tls-key", key)
    assert shown() == der(first[0])
    trusting = ssl.create_default_context(cafile=first[0])
    held_open = http.client.HTTPSConnection("127.0.0.1", service.port, context=trusting, timeout=PATIENCE_S)
    service.ask("GET", "/v1/locks/a", connection=held_open).ok()
    use(second)
    service.process.send_signal(signal.SIGHUP)
    poll(lambda: shown() == der(second[0]))
    service.ask("GET", "/v1/locks/a", connection=held_open).ok()  # who is connected stays so
    use((first[0], second[1]))
    service.process.send_signal(signal.SIGHUP)
    assert "belong together" in poll(lambda: service.logged("reload-failed"))
    assert shown() == der(second[0])
    service.stop()


def test_a_certificate_that_is_none(api, tmp_path):
    cert, key = make_certificate(tmp_path, "a")
    _, other = make_certificate(tmp_path, "b")
    for pair, says in (((cert, other), "belong together"), ((cert, str(tmp_path / "none")), "can't read"), ((key, key), "no certificate")):
        done = api("serve", "--listen", "127.0.0.1:0", "--tls-cert", pair[0], "--tls-key", pair[1])
        assert done.returncode in (65, 69) and says in done.stderr, done.stderr


# ---- systemd ----------------------------------------------------------------------------------


def test_systemd_is_told(api, tmp_path):
    path = str(tmp_path / "notify")
    told = []
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listener.bind(path)
    threading.Thread(target=lambda: [told.append(listener.recv(1000).decode()) for _ in iter(int, 1)], daemon=True).start()
    service = Service(api, env={"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "200000"})
    poll(lambda: "READY=1" in told)
    poll(lambda: told.count("WATCHDOG=1") > 2)
    service.process.send_signal(signal.SIGHUP)
    poll(lambda: any(t.startswith("RELOADING=1\nMONOTONIC_USEC=") for t in told) and told.count("READY=1") == 2)
    service.stop()
    poll(lambda: "STOPPING=1" in told)


def test_a_socket_that_was_handed_over(api):
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(10)
    wrapper = ("import os,sys; os.dup2(int(sys.argv[1]), 3); os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='1');"
               "os.set_inheritable(3, True); os.execv(sys.argv[2], sys.argv[2:])")
    child = api.start_program([sys.executable, "-c", wrapper, str(listener.fileno()), api.program, "serve"],
                              pass_fds=[listener.fileno()])
    service = Service.__new__(Service)
    service.token, service.process = None, child
    service.port = listener.getsockname()[1]
    assert service.get("/healthz").ok()
    child.send_signal(signal.SIGTERM)
    assert child.wait(timeout=PATIENCE_S) == 0


@pytest.mark.skipif(not shutil.which("systemd-socket-activate"), reason="systemd-socket-activate (Debian: systemd) is missing")
def test_socket_activation(api, tmp_path):
    """systemd's own tool starts it when the first client comes, who need not come again."""
    path = str(tmp_path / "socket")
    service = Service.__new__(Service)
    service.token = None
    service.process = api.start_program(["systemd-socket-activate", "-l", path, "-E", f"HOLDFAST_STORE={api.url}", api.program, "serve"])
    poll(lambda: is_listened_at(path))
    lease = service.post("/v1/locks/a", {"ttl": "1h"}, connection=UnixConnection(path, timeout=PATIENCE_S)).ok()
    assert api.json("status", "a")["fence"] == lease["fence"]
    service.process.send_signal(signal.SIGTERM)
    assert service.process.wait(timeout=PATIENCE_S) == 0


# ---- stopping and being killed ----------------------------------------------------------------


def test_stopping_under_load_loses_no_answer(api, service):
    """Whatever was begun is answered; what is answered with 200 is in the store."""
    stop, granted, failed = threading.Event(), [], []

    def client(i):
        c, n = service.connect(), 0
        while not stop.is_set():
            n += 1
            try:
                answer = service.ask("POST", f"/v1/locks/load-{i}-{n}", {"ttl": "1h"}, connection=c)
            except (ConnectionError, http.client.HTTPException, OSError):
                return  # the connection was closed between two requests
            if answer.status == 200:
                granted.append(answer.json)
            elif answer.status != 503:
                failed.append(answer.body)

    clients = [threading.Thread(target=client, args=(i,), daemon=True) for i in range(8)]
    for t in clients:
        t.start()
    poll(lambda: len(granted) > 100)
    service.stop()
    stop.set()
    for t in clients:
        t.join(PATIENCE_S)
    assert not failed
    held = {s["name"]: s["fence"] for s in api.lines("list")}
    assert all(held.get(lease["name"]) == lease["fence"] for lease in granted)


def test_stopping_tells_those_who_wait(service):
    service.post("/v1/locks/a", {"ttl": "1h"}).ok()
    token = "00000000-0000-4000-8000-00000000000a"
    waiting = service.later("POST", "/v1/locks/a", {"wait": "1h", "token": token})
    connection = service.connect()
    connection.request("GET", "/v1/events/stream")
    stream = connection.getresponse()  # else it might be closed before it was read
    poll(lambda: service.get("/v1/locks/a").ok()["waiters"] == 1)
    service.stop()
    answer = waiting.join()
    answer.problem(503, "CANCELLED")
    assert answer.headers["retry-after"] == "1"
    stream.read()  # raises where its last chunk is missing
    service.start()
    assert service.get("/v1/locks/a").ok()["waiters"] == 1  # its place is kept for who comes back with the token


def test_what_is_asked_for_while_stopping_is_answered_at_once(api):
    """Every kind of request that would wait, on connections that were open before; nothing is cut off."""
    service = Hooks(api, pay={"command": ["true"], "overlap": "queue"}).service
    service.post("/v1/locks/a", {"ttl": "1h"}).ok()
    made = service.post("/v1/executions", {"workflow": "pay"}).ok(201)
    lock_id = "0123456789abcdef" * 2
    asked = {
        "/v1/locks/a": ("POST", {"wait": "1h"}),
        "/v1/locks/a/wakes?id=" + lock_id: ("GET", None),
        "/v1/executions/wakes?id=" + lock_id: ("GET", None),
        "/v1/events/stream": ("GET", None),
        "/v1/executions/claim": ("POST", {"wait": "1h", "workflows": ["other"]}),
        "/api/webhooks/pay": ("POST", {}),  # with Prefer: wait
        f"/v1/executions/{made['id']}/log": ("GET", None),
        "/readyz": ("GET", None),
    }
    open_before = {path: service.connect() for path in asked}
    for connection in open_before.values():
        service.get("/healthz", connection=connection).ok()
    slow = service.connect()
    service.get("/healthz", connection=slow).ok()  # it is accepted, so what it sends is read in its turn
    slow.putrequest("POST", "/v1/locks/b")
    slow.putheader("Content-Length", "2")
    slow.endheaders(b"{")  # the service waits for the rest of this
    service.get("/v1/locks/a", connection=open_before["/v1/locks/a"]).ok()  # and has seen the beginning of it
    service.process.send_signal(signal.SIGTERM)
    poll(lambda: service.logged("stopping"))
    answers = {}
    for path, (method, body) in asked.items():  # a stream that lacks its last chunk raises
        answers[path] = service.ask(method, path, body, headers={"Prefer": "wait=3600"}, connection=open_before[path])
        assert answers[path].headers["connection"] == "close"
    answers["/v1/locks/a"].problem(503, "CANCELLED")
    assert answers["/v1/executions/claim"].ok() == {"items": []}
    assert answers["/api/webhooks/pay"].ok()["state"] == "PENDING"
    answers["/readyz"].problem(503, "STORE_UNAVAILABLE")
    for path in list(asked)[1:4]:
        assert answers[path].status == 200 and answers[path].headers["content-type"] == "text/event-stream"
    assert answers[f"/v1/executions/{made['id']}/log"].status == 200
    slow.send(b"}")
    assert slow.getresponse().status == 200
    assert service.process.wait(timeout=PATIENCE_S) == 0


def test_killed_and_started_again(api, service):
    leases = [service.post(f"/v1/locks/k{i}", {"ttl": "1h"}).ok() for i in range(20)]
    service.kill()
    service.start()
    for lease in leases:
        status = service.get(f"/v1/locks/{lease['name']}").ok()
        assert status["state"] == "held" and status["fence"] == lease["fence"]
        service.post(f"/v1/locks/{lease['name']}/extend", {"token": lease["token"]}).ok()
        service.post(f"/v1/locks/{lease['name']}/release", {"token": lease["token"]}).ok()


def test_grants_are_synced_before_they_are_acknowledged(api, service):
    if not os.path.exists("/usr/bin/strace"):
        pytest.skip("strace is not there")
    trace = api.start_program(["strace", "-f", "-e", "trace=fdatasync,fsync", "-o", f"{api.tmp_path}/trace", "-p",
                               str(service.process.pid)])
    poll(lambda: os.path.exists(f"{api.tmp_path}/trace"))
    time.sleep(0.5)

    def syncs():
        with open(f"{api.tmp_path}/trace") as file:
            return file.read().count("sync(")

    before = syncs()
    service.post("/v1/locks/a").ok()
    poll(lambda: syncs() > before)
    trace.terminate()


def test_a_store_that_is_gone(api, service):
    service.post("/v1/locks/a").ok()
    for name in os.listdir(api.tmp_path):
        if name.startswith("store.db"):
            os.rename(f"{api.tmp_path}/{name}", f"{api.tmp_path}/moved-{name}")
    answer = poll(lambda: (a := service.post("/v1/locks/b")).status == 503 and a)
    answer.problem(503, "STORE_UNAVAILABLE")
    assert answer.headers["retry-after"] == "1"
    assert service.get("/healthz").ok()


PAIRS = """
wrk.method, wrk.headers["Content-Type"] = "POST", "application/json"
local n, run = 0, os.time() % 65536
request = function()
    n = n + 1
    local which = string.format('"name":"lock-%d","token":"%08x-%04x-4000-8000-000000000000"', n % 1000, n, run)
    return wrk.format(nil, nil, nil, '{"requests":[{"op":"acquire",' .. which .. ',"ttlMs":30000},{"op":"release",' .. which .. '}]}')
end
"""


def test_memory_is_flat_under_load(make_service, tmp_path):
    """Looks and changes beside each other; a minute of it with HOLDFAST_LOAD=full."""
    service = make_service(env={"ASAN_OPTIONS": "quarantine_size_mb=1"})  # which would keep what was freed
    (tmp_path / "pairs.lua").write_text(PAIRS)
    url = f"http://127.0.0.1:{service.port}/v1"

    def load(seconds):
        wrk = ["wrk", "-t1", "-c32", f"-d{seconds}", "--timeout", f"{PATIENCE_S}"]
        all_of_them = [Later(lambda argv=argv: run_tool(*wrk, *argv))
                       for argv in ([f"{url}/locks/lock-1"], ["-s", f"{tmp_path}/pairs.lua", f"{url}/batch"])]
        for done in all_of_them:
            said = done.join().stdout
            assert "requests in" in said and "Non-2xx" not in said and "Socket errors" not in said, said

    def store_kib():
        return sum(os.path.getsize(f"{tmp_path}/store.db{end}") for end in ("", "-wal")) // 1024

    load(2)
    before, stored = service.memory_kib(), store_kib()
    load(60 if os.environ.get("HOLDFAST_LOAD") == "full" else 5)
    cached = min(1.5 * (store_kib() - stored), 40000)  # pages of what was stored meanwhile, up to 32 MB
    assert service.memory_kib() < before * 1.2 + 4096 + cached
    totals = service.get("/v1/totals").ok()
    assert totals["acquireGranted"] > 100 and totals["acquireGranted"] == totals["releaseDone"]


def test_log_lines(api):
    service = Service(api, "--log-format", "json", "--log-requests", "--listen", "127.0.0.1:0", listen=None)
    poll(lambda: any('"event":"listening"' in line for line in service.log))
    service.stop()
    assert [json.loads(line)["event"] for line in service.log] == ["listening", "stopping", "stopped"]
