"""Behind a pooler in transaction mode: the same promise; waking by a direct connection where one is given, else
by polls. And connections that run out, or look open and are not."""
import subprocess

import pytest
from conftest import PATIENCE_S, TTL_S, expect_renewals, poll
from hammer import Talker, assert_exclusive, read_logs, start_counter, status, wait_for_waiters
from proxy import Proxy

UNAVAILABLE = 69


def listeners(server):
    """Sessions whose last statement was LISTEN, and the port that each came from."""
    return server.psql("SELECT client_port FROM pg_stat_activity WHERE datname = 'locks' AND query ~* '^listen'").split()


# ---- pooled


@pytest.fixture(params=["polling", "listening"])
def pooled(request, server, direct, start_pgbouncer, make_holdfast):
    """The program behind PgBouncer, without and with a direct URL to listen at."""
    server.psql("ALTER DATABASE locks SET log_statement = 'all'")
    bouncer = start_pgbouncer(server)
    more = {"listen": server.url("locks")} if request.param == "listening" else {}
    holdfast = make_holdfast(bouncer.url("locks", **more))
    holdfast.listens = bool(more)
    return holdfast


def test_everything_goes_through_a_pooler(pooled, direct):
    assert pooled.ok("run", "a", "--", "echo", "on") == "on"
    lease = pooled.json("acquire", "a")
    refused = pooled("acquire", "a")
    assert refused.returncode == 75 and lease["owner"] in refused.stderr
    assert pooled.json("extend", "a", lease["token"])["fence"] == lease["fence"]
    assert pooled("guard", "a", lease["fence"]).returncode == 0
    assert direct.json("status", "a")["fence"] == lease["fence"]
    pooled.ok("release", "a", lease["token"])
    assert [e["kind"] for e in pooled.lines("events", "--name", "a")] == \
        ["acquired", "released", "acquired", "denied", "released"]


def test_hand_over_behind_a_pooler(server, pooled):
    holder = pooled.json("acquire", "--ttl", "1h", "a")
    waiter = pooled.start("run", "--wait=100s", "a", "--", "echo", "mine")
    wait_for_waiters(pooled, 1, "a")
    if pooled.listens:
        poll(lambda: listeners(server))
    pooled.ok("release", "a", holder["token"])
    out, err = waiter.communicate(timeout=PATIENCE_S)
    assert (waiter.returncode, out, err) == (0, "mine\n", "")
    assert "holdfast.release" in server.log()
    assert ("LISTEN holdfast_" in server.log()) == pooled.listens, "through a pooler it would be lost"


def test_50_at_once_through_a_pool_of_two(server, direct, start_pgbouncer, make_holdfast, tmp_path):
    bouncer = start_pgbouncer(server, default_pool_size=2, max_client_conn=200)
    pooled = make_holdfast(bouncer.url("locks"))
    (tmp_path / "counter").write_text("0" * 20)
    counters = [start_counter(pooled, tmp_path, i, 2) for i in range(50)]
    for counter in counters:
        assert counter.wait(timeout=5 * PATIENCE_S) == 0
    assert int((tmp_path / "counter").read_text()) == 100
    assert_exclusive(read_logs(tmp_path))


def test_run_outlasts_a_restart_of_the_pooler(server, direct, start_pgbouncer, make_holdfast):
    bouncer = start_pgbouncer(server)
    pooled = make_holdfast(bouncer.url("locks"))
    runner = pooled.start("run", "--ttl", TTL_S, "a", "--", "sh", "-c", "echo on; read x", stdin=subprocess.PIPE)
    assert runner.stdout.readline() == "on\n"
    bouncer.kill()
    bouncer.start()
    expect_renewals(direct, "a")
    _, err = runner.communicate("\n", timeout=PATIENCE_S)
    assert (runner.returncode, err) == (0, "")


# ---- connections that run out


@pytest.fixture
def crowded(start_postgres):
    server = start_postgres(max_connections="8")  # of which three are the superuser's
    server.psql("CREATE ROLE app LOGIN")
    server.create_database("locks")
    server.psql("ALTER DATABASE locks OWNER TO app")
    return server


def crowd(server):
    """Take every connection that there is; who closes them gives them back."""
    sessions = []

    def is_full():  # whoever looks takes one too for a moment, so that one of the crowd may be turned away
        sessions.append(server.start_psql("locks", "app"))
        return int(server.psql("SELECT count(*) FROM pg_stat_activity WHERE usename = 'app'")) >= 5

    poll(is_full, every_s=0.2)
    return sessions


def disperse(sessions):
    for session in sessions:
        session.kill()
        session.communicate()


def test_no_connection_left_is_said_clearly(crowded, make_holdfast):
    hf = make_holdfast(crowded.url("locks", "app"))
    hf.ok("init")
    sessions = crowd(crowded)
    done = hf("acquire", "a")
    assert done.returncode == UNAVAILABLE
    assert done.stderr.count("\n") == 1 and "connection" in done.stderr
    disperse(sessions)
    poll(lambda: hf("acquire", "a").returncode == 0)


def test_run_goes_on_while_no_connection_is_left(crowded, make_holdfast):
    """It has its own, and needs no other."""
    hf = make_holdfast(crowded.url("locks", "app"))
    runner = hf.start("run", "--ttl", TTL_S, "a", "--", "sh", "-c", f"echo on; read go; sleep {TTL_S + 1}", stdin=subprocess.PIPE)
    assert runner.stdout.readline() == "on\n"
    sessions = crowd(crowded)
    assert hf("status", "a").returncode == UNAVAILABLE, "there was a connection left: this proves nothing"
    _, err = runner.communicate("go\n", timeout=PATIENCE_S)
    assert (runner.returncode, err) == (0, "")
    disperse(sessions)


# ---- connections that look open


def test_a_listening_connection_that_died_silently_is_noticed(server, direct, start_pgbouncer, make_holdfast):
    """Black-holed: no FIN, no RST. Waiters still get their turn, and are woken again once it is healed."""
    bouncer = start_pgbouncer(server)
    with Proxy(("127.0.0.1", server.port)) as proxy:
        pooled = make_holdfast(bouncer.url("locks", listen=server.url("locks", port=proxy.port)))
        holder, waiter = Talker(direct), Talker(pooled)
        holder.acquire()
        waiter.wait()
        wait_for_waiters(direct, 1)
        poll(lambda: proxy.connections and listeners(server))
        proxy.hold()
        before = proxy.connections
        holder.ask("release")
        assert waiter.answer()[0] == "OK"
        poll(lambda: proxy.connections > before)  # it has given the old one up
        proxy.cut()
        proxy.heal()
        holder.wait()
        wait_for_waiters(direct, 1)
        assert waiter.ask("release")[0] == "OK"
        assert holder.answer()[0] == "OK"
        poll(lambda: listeners(server))
        waiter.wait()
        wait_for_waiters(direct, 1)
        holder.ask("release")
        assert waiter.answer()[0] == "OK"


def test_a_listening_connection_that_is_reset_is_made_again(server, direct):
    holder, waiter = Talker(direct), Talker(direct)
    holder.acquire()
    waiter.wait()
    wait_for_waiters(direct, 1)
    first = poll(lambda: listeners(server))
    server.psql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query ~* '^listen'")
    poll(lambda: listeners(server) and listeners(server) != first)
    assert status(direct)["waiters"] == 1
    holder.ask("release")
    assert waiter.answer()[0] == "OK"
