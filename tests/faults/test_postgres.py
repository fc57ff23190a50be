"""A real PostgreSQL that is killed, cut off, and loses replies: the promise holds, and clients come back by
themselves. Each test asserts that its fault has happened."""
import os
import random
import subprocess
import sys
import time

import pytest
from conftest import PATIENCE_S, TTL_S, expect_renewals, expiry_s, poll
from hammer import HOLDER_DIED, Talker, assert_exclusive, read_logs, start_counter, status, wait_for_waiters
from proxy import DelaysRequest, LosesReply, LosesRequest, PostgresWatcher, Proxy
from tree import NEXT, Tree

LOST = 76


@pytest.fixture
def proxy(server):
    with Proxy(("127.0.0.1", server.port)) as proxy:
        yield proxy


@pytest.fixture
def proxied(server, direct, proxy, make_holdfast):
    """The same database through the proxy; a call is given up after a second."""
    return make_holdfast(server.url("locks", port=proxy.port, timeout="1s"))


def kinds(hf, name="a"):
    """The events of a name, but those that are sampled."""
    return [event["kind"] for event in hf.lines("events", "--name", name) if event["kind"] != "extended"]


# ---- the server goes away and comes back


def read_counter(tmp_path):
    return int((tmp_path / "counter").read_text())


def wait_for_progress(tmp_path, n=20):
    before = read_counter(tmp_path)
    poll(lambda: read_counter(tmp_path) >= before + n)


def blows_under_load(server, direct, tmp_path, strike, blows=5, clients=8):
    """Clients raise a counter under the lock while the server is struck; the story that they noted."""
    (tmp_path / "counter").write_text("0" * 20)
    counters = [start_counter(direct, tmp_path, i, 10 ** 6, "endure") for i in range(clients)]
    for _ in range(blows):
        wait_for_progress(tmp_path)
        strike()
    wait_for_progress(tmp_path)
    for counter in counters:
        assert counter.poll() is None, "a client gave up"
        counter.kill()
        counter.wait()
    return read_logs(tmp_path)


@pytest.mark.parametrize("manner", ["restarted", "killed", "without-a-client"])
def test_nothing_acknowledged_is_lost_when_the_server_is(server, direct, tmp_path, manner):
    """Killed or restarted under load: nobody holds it beside another, and fences grow, also across the blow."""

    def strike():
        if manner == "without-a-client":
            server.psql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'locks'")
            return
        (server.kill if manner == "killed" else server.stop)()
        server.start()

    noted = blows_under_load(server, direct, tmp_path, strike)
    assert_exclusive(noted)
    assert read_counter(tmp_path) - len(noted) <= 8  # those that were killed at the end
    assert manner != "killed" or "database system was not properly shut down" in server.log()


def test_16_processes_lose_nothing_though_they_and_the_server_are_killed(server, direct, tmp_path):
    chance = random.Random(3)
    (tmp_path / "counter").write_text("0" * 20)
    counters = [start_counter(direct, tmp_path, i, 10 ** 6, "endure") for i in range(16)]
    kills = 0
    while kills < 40 or not any(reason == HOLDER_DIED for _, _, reason in read_logs(tmp_path)):
        assert kills < 1000, "no holder was ever killed: this proves nothing"
        wait_for_progress(tmp_path, 5)
        if kills % 10 == 5:
            server.kill()
            server.start()
        victim = chance.randrange(16)
        counters[victim].kill()
        counters[victim].wait()
        counters[victim] = start_counter(direct, tmp_path, 16 + kills, 10 ** 6, "endure")
        kills += 1
    for counter in counters:
        counter.kill()
        counter.wait()
    noted = read_logs(tmp_path)
    assert_exclusive(noted)
    assert read_counter(tmp_path) - len(noted) <= kills + 16


def test_run_outlasts_a_restart_of_the_server(server, direct, tmp_path):
    stop = tmp_path / "stop"
    runner = direct.start("run", "--ttl", 3 * TTL_S, "a", "--", "sh", "-c",
                          f"echo on; until [ -e {stop} ]; do sleep 0.05; done")
    assert runner.stdout.readline() == "on\n"
    before = status(direct, "a")
    server.kill()
    server.start()
    poll(lambda: expiry_s(status(direct, "a")) > expiry_s(before))
    assert status(direct, "a")["fence"] == before["fence"]
    server.restart()
    stop.touch()
    _, err = runner.communicate(timeout=PATIENCE_S)
    assert runner.returncode == 0, err
    assert kinds(direct) == ["acquired", "released"]


def test_who_waits_outlasts_a_restart_of_the_server(server, direct):
    """After the fault has healed every waiter gets its turn."""
    holder = direct.json("acquire", "--ttl", "1h", "a")
    waiter = direct.start("run", "--wait=100s", "a", "--", "echo", "mine")
    wait_for_waiters(direct, 1, "a")
    server.stop()
    time.sleep(1)  # long enough for the waiter to notice
    server.start()
    direct.ok("release", "a", holder["token"])
    out, err = waiter.communicate(timeout=PATIENCE_S)
    assert (waiter.returncode, out) == (0, "mine\n"), err


# ---- replies are lost


SENT = {"acquire": "holdfast.acquire", "extend": "holdfast.extend", "release": "holdfast.release"}


@pytest.mark.parametrize("fault", [LosesReply, LosesRequest])
@pytest.mark.parametrize("call", list(SENT))
def test_a_lost_reply_is_asked_for_again(proxied, direct, proxy, call, fault):
    """The server did it and nobody heard: the same token gets the same answer, and nothing happens twice."""
    happens = proxy.watch(fault(SENT[call]))
    runner = proxied.start("run", "--ttl", TTL_S, "a", "--", "sh", "-c", "echo $HOLDFAST_FENCE; read x; echo done",
                           stdin=subprocess.PIPE)
    fence = int(runner.stdout.readline())
    held = status(direct, "a")
    assert (held["state"], held["fence"]) == ("held", fence)
    if call == "extend":
        poll(lambda: happens.happened)
        poll(lambda: expiry_s(status(direct, "a")) > expiry_s(held))
    out, err = runner.communicate("\n", timeout=PATIENCE_S)
    assert (runner.returncode, out, err) == (0, "done\n", "")
    assert happens.happened == 1, happens.statements
    assert kinds(direct) == ["acquired", "released"]
    assert status(direct, "a")["state"] == "free"


def test_a_lost_reply_to_who_waits(proxied, direct, proxy):
    """The grant came as an offer; the reply that confirms it is lost."""
    holder = direct.json("acquire", "a")
    happens = proxy.watch(LosesReply("holdfast.acquire", n=3))
    waiter = proxied.start("run", "--wait=100s", "a", "--", "sh", "-c", "echo $HOLDFAST_FENCE")
    wait_for_waiters(direct, 1, "a")
    poll(lambda: happens.seen >= 2)
    direct.ok("release", "a", holder["token"])
    out, err = waiter.communicate(timeout=PATIENCE_S)
    assert waiter.returncode == 0, err
    assert happens.happened == 1
    assert kinds(direct) == ["acquired", "denied", "released", "acquired", "released"] or \
        kinds(direct) == ["acquired", "released", "acquired", "released"]
    assert int(out) > holder["fence"]


def test_an_acquire_that_arrives_late_grants_nothing(proxied, direct, proxy):
    """Its sender gave up on it, asked again with the same token, and has released since."""
    late = proxy.watch(DelaysRequest("holdfast.acquire"))
    assert proxied("run", "a", "--", "true").returncode == 0
    assert late.happened == 1
    assert late.let_go(proxy) == 1
    poll(lambda: not proxy.links or not any(getattr(link.watcher, "kept", None) for link in proxy.links))
    for _ in range(20):
        assert status(direct, "a")["state"] == "free"
        time.sleep(0.05)
    assert kinds(direct)[:2] == ["acquired", "released"]
    assert "acquired" not in kinds(direct)[2:]


def test_a_release_that_arrives_late_frees_nobody_else(proxied, direct, proxy):
    late = proxy.watch(DelaysRequest("holdfast.release"))
    assert proxied("run", "a", "--", "true").returncode == 0
    assert late.happened == 1
    successor = direct.json("acquire", "--ttl", "1h", "a")
    assert late.let_go(proxy) == 1
    for _ in range(20):
        now = status(direct, "a")
        assert (now["state"], now["fence"]) == ("held", successor["fence"])
        time.sleep(0.05)


def test_one_round_trip_each(proxied, proxy):
    talker = Talker(proxied)
    watcher = proxy.watch(PostgresWatcher())
    proxy.cut()  # so that the connection is one that we see
    assert talker.acquire("warm", bound=0)[0] == "OK"
    assert talker.ask("release")[0] == "OK"
    counted = {}
    for call in ("acquire it 3600000 0 0 1", "extend", "release"):
        before = watcher.round_trips
        assert talker.ask(call)[0] == "OK"
        counted[call.split()[0]] = watcher.round_trips - before
    assert counted == {"acquire": 1, "extend": 1, "release": 1}, watcher.statements


# ---- cut off


@pytest.mark.parametrize("up, down", [(True, True), (True, False), (False, True)], ids=["both", "up", "down"])
def test_who_is_cut_off_is_dead_before_the_next_starts(proxied, direct, proxy, tmp_path, up, down):
    """Black-holed, not reset: nobody says no. Where only replies are lost its renewals even go on arriving."""
    tree = Tree(proxied, tmp_path, "--ttl", TTL_S)
    successor = direct.start("run", "--wait=100s", "a", "--", sys.executable, "-c", NEXT, tree.tag,
                             start_new_session=True)
    wait_for_waiters(direct, 1, "a")
    proxy.hold(up=up, down=down)
    tree.assert_dead_before(successor)
    _, err = tree.wrapper.communicate(timeout=PATIENCE_S)
    assert tree.wrapper.returncode == LOST
    assert "a: the command was ended because its lease was lost" in err
    assert tree.processes() == []


def test_a_server_that_hangs_is_as_good_as_none(server, direct, tmp_path):
    tree = Tree(direct, tmp_path, "--ttl", TTL_S)
    server.pause()
    _, err = tree.wrapper.communicate(timeout=PATIENCE_S)
    assert tree.wrapper.returncode == LOST, err
    assert tree.processes() == []
    server.resume()


def test_a_cut_shorter_than_the_ttl_is_not_noticed(proxied, proxy):
    runner = proxied.start("run", "--ttl", TTL_S, "a", "--", "sh", "-c", "echo on; read x", stdin=subprocess.PIPE)
    assert runner.stdout.readline() == "on\n"
    for _ in range(2):
        proxy.cut()
        proxy.refuse()
        time.sleep(0.5)
        proxy.accept()
        expect_renewals(proxied, "a")
    _, err = runner.communicate("\n", timeout=PATIENCE_S)
    assert (runner.returncode, err) == (0, "")


# ---- the server's clock


FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"


class Clock:
    """The wall clock of a server, to be stepped while it runs; what is monotonic stays true."""

    def __init__(self, scratch, start_postgres):
        self.path = f"{scratch.path}/clock"
        self.step(0)
        self.server = start_postgres(env={"LD_PRELOAD": FAKETIME, "FAKETIME_TIMESTAMP_FILE": self.path,
                                          "FAKETIME_NO_CACHE": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1"})

    def step(self, hours):
        with open(self.path + ".new", "w") as file:
            file.write(f"{hours * 3600:+}")
        os.chmod(self.path + ".new", 0o644)
        os.rename(self.path + ".new", self.path)

    def hours_ahead(self):
        return round((float(self.server.psql("SELECT extract(epoch FROM clock_timestamp())")) - time.time()) / 3600)


@pytest.fixture
def clock(scratch, start_postgres):
    if not os.path.exists(FAKETIME):
        pytest.skip("libfaketime is not installed")
    return Clock(scratch, start_postgres)


def test_fences_grow_while_the_servers_clock_jumps(clock, make_holdfast):
    hf = make_holdfast(clock.server.create_database("locks"))
    fences, seen = [], set()
    for hours in (0, 1, -1, 0, -1, 1, 1, -1, 0):
        clock.step(hours)
        seen.add(clock.hours_ahead())
        lease = hf.json("acquire", "--wait=100s", "--ttl", "1h", "a")
        fences.append(lease["fence"])
        if hours <= 0:
            hf.ok("release", "a", lease["token"])
        else:  # left for the next one: forced, since by now its clock may be an hour behind
            hf.ok("release", "--force", "--fence", lease["fence"], "a")
    assert seen == {-1, 0, 1}, "the clock was not stepped: this proves nothing"
    assert fences == sorted(set(fences))


def test_a_clock_stepped_forward_ends_a_lease_early_and_its_effects_are_refused(clock, make_holdfast):
    """Documented: the lease may end early. The fence still holds: a guarded effect is refused (I1)."""
    hf = make_holdfast(clock.server.create_database("locks"))
    hf.ok("init")
    clock.server.psql("CREATE TABLE effect (id serial, fence bigint)", "locks")
    write = "BEGIN; SELECT holdfast.guard('a', {0}); INSERT INTO effect (fence) VALUES ({0}); COMMIT"
    first = hf.json("acquire", "--ttl", "10m", "a")
    clock.server.psql(write.format(first["fence"]), "locks")
    assert hf("acquire", "a").returncode == 75
    clock.step(1)
    assert clock.hours_ahead() == 1
    second = hf.json("acquire", "--ttl", "10m", "a")
    assert second["fence"] > first["fence"]
    clock.server.psql(write.format(second["fence"]), "locks")
    clock.step(0)
    with pytest.raises(RuntimeError, match="fence"):
        clock.server.psql(write.format(first["fence"]), "locks")
    assert hf("extend", "a", first["token"]).returncode == LOST
    clock.server.psql(write.format(second["fence"]), "locks")
    fences = clock.server.psql("SELECT fence FROM effect ORDER BY id", "locks").split()
    assert list(map(int, fences)) == [first["fence"], second["fence"], second["fence"]]


@pytest.mark.parametrize("hours", [1, -1])
def test_run_under_a_stepped_server_clock(clock, make_holdfast, hours):
    """Forward its lease may be over at once (76), backward it goes on; the next fence is higher either way."""
    hf = make_holdfast(clock.server.create_database("locks"))
    runner = hf.start("run", "--ttl", TTL_S, "a", "--", "sh", "-c", f"echo $HOLDFAST_FENCE; sleep {TTL_S + 1}")
    fence = int(runner.stdout.readline())
    clock.step(hours)
    assert clock.hours_ahead() == hours
    successor = hf.start("run", "--wait=100s", "a", "--", "sh", "-c", "echo $HOLDFAST_FENCE")
    runner.communicate(timeout=PATIENCE_S)
    out, err = successor.communicate(timeout=PATIENCE_S)
    assert runner.returncode == (LOST if hours > 0 else 0)
    assert successor.returncode == 0, err
    assert int(out) > fence


# ---- nothing is held


def test_nothing_is_held_in_the_database_while_a_lock_is_held(server, direct):
    """No transaction, no advisory lock; and the connection may go: the lock stays."""
    talker = Talker(direct)
    assert talker.acquire()[0] == "OK"
    sessions = "FROM pg_stat_activity WHERE datname = 'locks'"
    assert server.psql(f"SELECT DISTINCT state {sessions}") == "idle"
    assert server.psql("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == "0"
    assert server.psql("SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database"
                       " WHERE datname = 'locks'") == "0"
    assert int(server.psql(f"SELECT count(pg_terminate_backend(pid)) {sessions}")) > 0
    assert status(direct)["state"] == "held"
    assert talker.ask("extend")[0] == "OK"
    assert talker.ask("release")[0] == "OK"


def test_one_listening_connection_however_many_wait(server, direct):
    talker = Talker(direct)
    direct.ok("acquire", "it")
    assert talker.ask("waits it 100")[0] == "LOCK_HELD"
    wait_for_waiters(direct, 100)
    poll(lambda: server.psql("SELECT count(*) FROM pg_stat_activity WHERE query ~* '^listen'") == "1")
    assert int(server.psql("SELECT count(*) FROM pg_stat_activity WHERE datname = 'locks'")) <= 5


# ---- a long queue


def test_50_waiters_are_served_in_order(server, direct):
    holder = Talker(direct)
    holder.acquire()
    waiters = []
    for i in range(50):
        waiters.append(Talker(direct))
        waiters[-1].wait()
        wait_for_waiters(direct, i + 1)
    holder.ask("release")
    fences = []
    for waiter in waiters:
        code, fence, _ = waiter.answer()
        assert code == "OK"
        fences.append(int(fence))
        assert waiter.ask("release")[0] == "OK"
    assert fences == sorted(set(fences))


# ---- other ways to be set up


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_other_isolation_levels_by_default(server, direct, tmp_path, level):
    """Serialization failures are retried, not shown."""
    server.psql(f"ALTER DATABASE locks SET default_transaction_isolation = '{level}'")
    (tmp_path / "counter").write_text("0" * 20)
    counters = [start_counter(direct, tmp_path, i, 25) for i in range(8)]
    for counter in counters:
        assert counter.wait(timeout=5 * PATIENCE_S) == 0
    assert read_counter(tmp_path) == 200
    assert_exclusive(read_logs(tmp_path))


def test_settings_of_the_database_change_nothing(server, direct):
    for setting in ("timezone = 'Asia/Kolkata'", "datestyle = 'German'", "bytea_output = 'escape'",
                    "client_encoding = 'LATIN1'", "search_path = 'nowhere'", "intervalstyle = 'sql_standard'",
                    "standard_conforming_strings = off", "extra_float_digits = -5"):
        server.psql(f"ALTER DATABASE locks SET {setting}")
    lease = direct.json("acquire", "--owner", "Åse", "--note", "it's a \\ note", "é %_'\"\\ 錠")
    now = status(direct, "é %_'\"\\ 錠")
    assert (now["state"], now["owner"], now["note"]) == ("held", "Åse", "it's a \\ note")
    assert now["fence"] == lease["fence"] and now["lockedSince"] == lease["acquiredAt"]
    assert direct.ok("run", "other", "--", "echo", "on") == "on"
    direct.ok("release", "é %_'\"\\ 錠", lease["token"])
    assert [event["kind"] for event in direct.lines("events")] == ["acquired", "acquired", "released", "released"]
