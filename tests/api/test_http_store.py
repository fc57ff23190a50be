"""http: as a store: the command line through a service."""
import http.client
import json
import os
import re
import signal
import socket

import pytest

from api_helpers import Service, api, service  # noqa: F401
from conftest import PATIENCE_S, Holdfast, poll
from proxy import DOWN, UP, Proxy, Watcher
from workflows import Workflows


@pytest.fixture
def remote(service, tmp_path):
    """The program, with the service as its store."""
    holdfast = Holdfast(f"http://127.0.0.1:{service.port}", tmp_path)
    yield holdfast
    holdfast.close()


def test_the_life_of_a_lease(remote):
    lease = remote.json("acquire", "--ttl", "1h", "--note", "x", "a/b")
    assert remote.json("status", "a/b")["fence"] == lease["fence"]
    held = remote("acquire", "a/b")
    assert held.returncode == 75 and f"fence {lease['fence']}" in held.stderr
    assert remote("guard", "a/b", lease["fence"]).returncode == 0
    assert remote("guard", "a/b", lease["fence"] + 1).returncode == 76
    assert remote.json("extend", "a/b", lease["token"])["fence"] == lease["fence"]
    remote.ok("release", "a/b", lease["token"])
    assert remote("release", "a/b", "00000000-0000-4000-8000-000000000000").returncode == 76
    assert [e["kind"] for e in remote.lines("events", "--name", "a/b")][-1] == "released"
    assert "acquired it" in remote.ok("why", "a/b")


def test_lists_totals_force_sweep(remote):
    leases = [remote.json("acquire", f"n{i}") for i in range(3)]
    assert [s["name"] for s in remote.lines("list")] == ["n0", "n1", "n2"]
    remote.ok("release", "--force", "--fence", leases[1]["fence"], "n1")
    assert remote.json("metrics")["forced"] == 1 and remote.json("metrics")["locksHeld"] == 2
    remote.ok("acquire", "--ttl", "100ms", "short")
    poll(lambda: remote.json("status", "short")["state"] == "stale")
    assert remote.json("sweep")["freed"] == 1
    assert remote("init", "--bump-epoch").returncode == 69
    remote.ok("init")


def test_run_holds_it_and_a_waiter_is_woken(remote, tmp_path):
    go = tmp_path / "go"
    os.mkfifo(go)
    holder = remote.start("run", "a", "--", "cat", go)
    poll(lambda: remote.json("status", "a")["state"] == "held")
    waiter = remote.start("run", "--wait", "a", "--", "echo", "mine now")
    poll(lambda: remote.json("status", "a")["waiters"] == 1)
    assert remote("run", "a", "--", "true").returncode == 75
    go.write_text("")
    assert holder.wait(timeout=PATIENCE_S) == 0
    assert waiter.communicate(timeout=PATIENCE_S)[0] == "mine now\n"


def test_run_once(remote):
    assert remote.ok("run", "--once", "k", "a", "--", "echo", "done") == "done"
    again = remote("run", "--once", "k", "a", "--", "echo", "done")
    assert again.returncode == 0 and again.stdout == ""
    assert remote("run", "--once", "other", "a", "--", "false").returncode == 1
    assert remote.ok("run", "--once", "other", "a", "--", "echo", "again") == "again"
    assert [(x["key"], x["state"]) for x in remote.lines("executions")] == [("other", "SUCCESS"), ("other", "FAILED"), ("k", "SUCCESS")]


class LosesEverySecondReply(Watcher):
    """The connection breaks when the service has done what a batch asked for, and before it can say so."""

    happened = replies = 0

    def sees(self, direction, data):
        if direction == DOWN and b'{"answers"' in data:
            self.replies += 1
            if self.replies % 2:
                self.happened += 1
                return None
        return data


def test_lost_replies_leave_one_execution(service, tmp_path):
    with Proxy(("127.0.0.1", service.port)) as proxy:
        fault = proxy.watch(LosesEverySecondReply())
        unlucky = Holdfast(f"http://127.0.0.1:{proxy.port}", tmp_path)
        try:
            flows = Workflows(unlucky, pay={"command": ["sh", "-c", "cat; exit 3"]})
            done = flows.start("pay", "--key", "k", "--input", "-", input="in")
            assert (done.returncode, done.stdout) == (3, "in"), done.stderr
            assert fault.happened >= 3  # begin, spawned, finish
            pending = unlucky.ok("start", "--detach", "pay")
            assert fault.happened >= 4
            assert unlucky.json("cancel", pending)["state"] == "ABORTED"
            states = [(x["state"], x["attempt"], x["exitCode"]) for x in unlucky.lines("executions")]
            assert states == [("ABORTED", 0, None), ("FAILED", 1, 3)]
        finally:
            unlucky.close()


class KeepsCopies(Watcher):
    """Of every request, in their order, to be delivered once more later."""

    def __init__(self, copies):
        self.copies, self.data = copies, b""

    def of_connection(self):
        return KeepsCopies(self.copies)

    def sees(self, direction, data):
        if direction == UP:
            self.data += data
            while request := re.match(rb"(?s).*?\r\n\r\n", self.data):
                size = re.search(rb"(?i)content-length: *(\d+)", request[0])
                end = request.end() + (int(size[1]) if size else 0)
                if len(self.data) < end:
                    break
                self.copies.append(self.data[:end])
                self.data = self.data[end:]
        return data

    def deliver(self, port):
        """Again, the newest first, each on a connection of its own; what the service answers to those that change something."""
        answers = []
        for copy in reversed(self.copies):
            with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection:
                connection.sendall(copy)
                answer = http.client.HTTPResponse(connection)
                answer.begin()
                if copy.startswith(b"POST"):
                    answers.append((answer.status, answer.read().decode()))
        return answers


def test_copies_of_requests_that_arrive_late_change_nothing(remote, service, tmp_path):
    """exclusion.md, rows 6, 13 and 15: a network may keep a request back, and deliver it after all."""
    with Proxy(("127.0.0.1", service.port)) as proxy:
        network = proxy.watch(KeepsCopies([]))
        hf = Holdfast(f"http://127.0.0.1:{proxy.port}", tmp_path)
        try:
            lease = hf.json("acquire", "--ttl", "3s", "a")
            hf.ok("extend", "--ttl", "1h", "a", lease["token"])
            held = remote.json("status", "a")
            assert len(network.deliver(service.port)) >= 2
            again = remote.json("status", "a")
            assert [again[key] for key in ("fence", "state")] == [lease["fence"], "held"]
            assert again["remainingMs"] > held["remainingMs"] - 600_000
            hf.ok("release", "a", lease["token"])
            answers = network.deliver(service.port)
            assert remote.json("status", "a")["state"] == "free"
            assert answers[0][0] == 200 and "LEASE_LOST" not in answers[0][1]

            flows = Workflows(hf, pay={"command": ["true"]})
            assert flows.start("pay", "--key", "k").returncode == 0
            before = remote.lines("executions")
            network.deliver(service.port)
            assert remote.lines("executions") == before
            assert [lock["state"] for lock in remote.lines("list", "--all")] == ["free"] * 2
        finally:
            hf.close()


def test_a_waiter_that_is_interrupted_leaves_the_queue(remote):
    remote.ok("acquire", "--ttl", "1h", "a")
    waiter = remote.start("acquire", "--wait", "a")
    poll(lambda: remote.json("status", "a")["waiters"] == 1)
    waiter.send_signal(signal.SIGTERM)
    waiter.wait(timeout=PATIENCE_S)
    poll(lambda: remote.json("status", "a")["waiters"] == 0)


def test_a_service_that_starts_again_under_a_run(remote, service):
    holder = remote.start("run", "--ttl", "30s", "a", "--", "sleep", "1000")
    poll(lambda: remote.json("status", "a")["state"] == "held")
    fence = remote.json("status", "a")["fence"]
    service.kill()
    service.start()
    assert remote.json("status", "a")["fence"] == fence
    holder.send_signal(signal.SIGTERM)
    holder.wait(timeout=PATIENCE_S)
    poll(lambda: remote.json("status", "a")["state"] == "free")


def test_what_can_go_wrong(remote, api, tmp_path):
    nobody = remote("--store", "http://127.0.0.1:1", "status", "a")
    assert nobody.returncode == 69 and "127.0.0.1:1" in nobody.stderr
    assert remote("--store", "http://", "status", "a").returncode == 65
    secret = remote("--store", "http://me:secret@127.0.0.1:1", "status", "a")
    assert secret.returncode == 65 and "secret" not in secret.stderr
    assert remote("--store", "http://127.0.0.1:1?x=y", "status", "a").returncode == 65


def test_tokens_by_file_and_environment(api, tmp_path):
    token = api.json("token", "create", "--allow", "locks:read,locks:write")["token"]
    service = Service(api, "--require-token")
    url = f"http://127.0.0.1:{service.port}"
    refused = api("--store", url, "status", "a")
    assert refused.returncode == 77 and "HOLDFAST_API_TOKEN_FILE" in refused.stderr
    file = tmp_path / "token"
    file.write_text(token + "\n")
    assert api.json("--store", f"{url}?token-file={file}", "status", "a")["state"] == "free"
    assert api.json("--store", url, "status", "a", env={"HOLDFAST_API_TOKEN_FILE": str(file)})["state"] == "free"
    lease = json.loads(api.ok("--store", url, "--json", "acquire", "a", env={"HOLDFAST_API_TOKEN": token}))
    assert lease["fence"] == 1
