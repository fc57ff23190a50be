"""The servers and the proxy of the tests do what they say: what they prove rests on it."""
import os
import signal
import subprocess
import sys
import time

import pytest
from conftest import PATIENCE_S, poll
from proxy import DelaysRequest, LosesReply, LosesRequest, Proxy, Watcher
from processes import is_alive


@pytest.fixture
def table(shared_postgres):
    """count() rows of a table that insert(port) adds one to."""
    shared_postgres.create_database("harness")
    shared_postgres.psql("CREATE TABLE t ()", "harness")
    yield lambda: int(shared_postgres.psql("SELECT count(*) FROM t", "harness"))
    shared_postgres.drop_database("harness")


@pytest.fixture
def proxy(shared_postgres):
    with Proxy(("127.0.0.1", shared_postgres.port)) as proxy:
        yield proxy


@pytest.fixture
def insert(shared_postgres, proxy, table):
    url = shared_postgres.url("harness", port=proxy.port)
    started = []

    def start():
        started.append(subprocess.Popen(["psql", "-Xqc", "INSERT INTO t DEFAULT VALUES", url],
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_the_proxy_passes_on(insert, table):
    assert insert().wait(PATIENCE_S) == 0
    assert table() == 1


def test_a_lost_reply_was_committed(proxy, insert, table):
    fault = proxy.watch(LosesReply("INSERT", n=2))
    assert insert().wait(PATIENCE_S) == 0
    assert insert().wait(PATIENCE_S) != 0
    assert (fault.happened, table()) == (1, 2)
    assert insert().wait(PATIENCE_S) == 0


def test_a_lost_request_was_not(proxy, insert, table):
    fault = proxy.watch(LosesRequest("INSERT"))
    assert insert().wait(PATIENCE_S) != 0
    assert (fault.happened, table()) == (1, 0)


def test_a_delayed_request_comes_when_its_sender_has_gone(proxy, insert, table):
    fault = proxy.watch(DelaysRequest("INSERT"))
    sender = insert()
    poll(lambda: fault.happened)
    sender.kill()
    sender.wait()
    assert table() == 0
    assert fault.let_go(proxy) == 1
    poll(lambda: table() == 1)


@pytest.mark.parametrize("up, down", [(True, True), (True, False), (False, True)])
def test_what_is_held_comes_later(proxy, insert, table, up, down):
    proxy.hold(up, down)
    sender = insert()
    poll(lambda: proxy.links)
    time.sleep(0.2)
    assert sender.poll() is None and table() == 0
    proxy.heal()
    assert sender.wait(PATIENCE_S) == 0 and table() == 1


def test_cut_and_refused(proxy, insert):
    proxy.watch(Watcher())
    proxy.hold()
    sender = insert()
    poll(lambda: proxy.links)
    proxy.cut()
    assert sender.wait(PATIENCE_S) != 0
    proxy.heal()
    proxy.refuse()
    assert insert().wait(PATIENCE_S) != 0
    proxy.accept()
    assert insert().wait(PATIENCE_S) == 0


def shared_memory_of(pid):
    """System V segments that the process made: they outlive it, and there may be only so many."""
    with open("/proc/sysvipc/shm") as table:
        head, *rows = [line.split() for line in table]
    return [row for row in rows if row[head.index("cpid")] == pid]


def test_servers_end_with_whoever_started_them(tmp_path):
    """Also when that is killed, and the server stopped."""
    script = tmp_path / "starts.py"
    script.write_text("import sys, time\n"
                      f"sys.path.insert(0, {os.path.dirname(os.path.dirname(os.path.abspath(__file__)))!r})\n"
                      "from processes import descendants\nfrom servers import *\n"
                      "scratch = Scratch()\n"
                      "server = Postgres(scratch)\n"
                      "server.start()\n"
                      "server.pause()\n"
                      "print(scratch.path, *descendants(server.process.pid), flush=True)\n"
                      "time.sleep(1000)\n")
    starter = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    path, *pids = starter.stdout.readline().split()
    assert len(pids) > 3 and all(is_alive(int(pid)) for pid in pids)
    memory = shared_memory_of(pids[0])
    assert memory
    starter.send_signal(signal.SIGKILL)
    starter.communicate()
    poll(lambda: not any(is_alive(int(pid)) for pid in pids) and not os.path.exists(path))
    assert shared_memory_of(pids[0]) == []
