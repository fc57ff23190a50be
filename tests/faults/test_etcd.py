"""A real cluster of three whose leader is killed, whose members are cut off, that loses its quorum and its history:
the promise holds, and clients go on with who is left. Each test asserts that its fault has happened."""
import re
import subprocess
import time

import pytest
from conftest import poll
from hammer import Talker, assert_exclusive, read_logs, start_counter, status, wait_for_waiters
from servers import Scratch, etcd_cluster, etcd_url

UNAVAILABLE = 69


@pytest.fixture(scope="module")
def members():
    with Scratch() as scratch:
        yield etcd_cluster(scratch, 3)


@pytest.fixture
def cluster(members):
    """All of them, healed before and after."""
    heal(members)
    yield members
    heal(members)


@pytest.fixture
def hf(cluster, make_holdfast, request):
    name = re.sub(r"\W", "-", request.node.name)
    return make_holdfast(etcd_url(cluster, f"{name}-{time.time_ns()}"))


def heal(members):
    for member in members:
        member.resume()
        if not member.is_running():
            member.start(ready=False)
    for member in members:
        member.wait_until_ready()


def leader_of(members):
    found = []

    def look():
        found[:] = [m for m in members if m.is_leader()]
        return len(found) == 1

    poll(look)
    return found[0]


# ---- members go away and come back


def read_counter(tmp_path):
    return int((tmp_path / "counter").read_text())


def wait_for_progress(tmp_path, n=5):
    before = read_counter(tmp_path)
    poll(lambda: read_counter(tmp_path) >= before + n)


def start_counters(hf, tmp_path, clients=4):
    (tmp_path / "counter").write_text("0" * 20)
    return [start_counter(hf, tmp_path, i, 10 ** 6, "endure") for i in range(clients)]


def end_counters(counters, tmp_path):
    for counter in counters:
        assert counter.poll() is None, "a client gave up"
        counter.kill()
        counter.wait()
    noted = read_logs(tmp_path)
    assert_exclusive(noted)
    return noted


@pytest.mark.parametrize("manner", ["killed", "stopped"])
def test_the_leader_goes_away_under_load(hf, cluster, tmp_path, manner):
    """Another one leads: nobody holds it beside another, and fences grow across the change."""
    counters = start_counters(hf, tmp_path)
    wait_for_progress(tmp_path)
    leader = leader_of(cluster)
    rest = [m for m in cluster if m is not leader]
    leader.kill() if manner == "killed" else leader.pause()
    assert leader_of(rest) is not leader
    wait_for_progress(tmp_path)
    heal(cluster)
    wait_for_progress(tmp_path)
    end_counters(counters, tmp_path)


def test_no_error_is_seen_while_there_is_a_quorum(hf, cluster):
    """Whichever member is asked first and is away: another one is asked."""
    for member in cluster:
        member.kill()
        for _ in range(3):
            hf.ok("run", "a", "--", "true")
        member.start(ready=False)
        heal(cluster)
    assert status(hf, "a")["fence"] == 9


def test_without_a_quorum_nothing_is_granted(hf, cluster):
    """A clear error, and no grant; with the quorum back all goes on, and the fence grows."""
    lease = hf.json("acquire", "--ttl", "5m", "a")
    away = cluster[1:]
    for member in away:
        member.kill()
    soon = {"HOLDFAST_STORE": hf.env["HOLDFAST_STORE"] + "?timeout=2s"}
    refused = hf("run", "--nonblock", "b", "--", "true", env=soon)
    assert refused.returncode == UNAVAILABLE, refused.stderr
    assert "etcd" in refused.stderr
    assert hf("status", "a", env=soon).returncode == UNAVAILABLE  # what one member alone remembers may be old
    for member in away:
        member.start(ready=False)
    heal(cluster)
    assert status(hf, "b")["fence"] == 0, "it was granted without a quorum"
    hf.ok("extend", "a", lease["token"])
    hf.ok("release", "a", lease["token"])
    assert hf.json("acquire", "a")["fence"] == lease["fence"] + 1


def test_a_quorum_that_is_lost_under_load_and_comes_back(hf, cluster, tmp_path):
    counters = start_counters(hf, tmp_path)
    wait_for_progress(tmp_path)
    for member in cluster[1:]:
        member.pause()
    stood = read_counter(tmp_path)
    soon = {"HOLDFAST_STORE": hf.env["HOLDFAST_STORE"] + "?timeout=1s"}
    poll(lambda: hf("status", "counter", env=soon).returncode == UNAVAILABLE)
    assert read_counter(tmp_path) <= stood + 2, "it was granted without a quorum"
    heal(cluster)
    wait_for_progress(tmp_path)
    end_counters(counters, tmp_path)


def test_a_member_that_is_cut_off_grants_nothing(cluster, make_holdfast):
    """The old leader, alone, still answers; but not to us."""
    leader = leader_of(cluster)
    rest = [m for m in cluster if m is not leader]
    everywhere = make_holdfast(etcd_url(rest + [leader], "cut"))
    alone = make_holdfast(etcd_url([leader], "cut") + "?timeout=2s")
    first = alone.json("acquire", "--ttl", "5m", "a")
    for member in rest:
        member.pause()
    refused = alone("acquire", "b")
    assert refused.returncode == UNAVAILABLE, refused.stdout
    assert alone("guard", "a", first["fence"]).returncode == UNAVAILABLE
    heal(cluster)
    everywhere.ok("release", "a", first["token"])
    assert everywhere.json("acquire", "a")["fence"] > first["fence"]


# ---- leases


def test_a_lease_that_nobody_extends_runs_out(hf):
    first = hf.json("acquire", "--ttl", "1s", "a")
    waited = hf.json("acquire", "--wait=60s", "a")
    assert waited["fence"] == first["fence"] + 1
    assert "expired" in [e["kind"] for e in hf.lines("events", "--name", "a")]


def test_a_lease_that_runs_out_while_its_holder_waits(hf):
    """Offered to a waiter that is stopped: the next one gets it, and the first is told when it wakes."""
    holder, asleep, second = Talker(hf), Talker(hf), Talker(hf)
    assert holder.acquire("a", 60000, bound=0)[0] == "OK"
    asleep.wait("a", 60000, bound=0)
    wait_for_waiters(hf, 1, "a")
    second.wait("a", 60000, bound=0)
    wait_for_waiters(hf, 2, "a")
    asleep.process.send_signal(subprocess.signal.SIGSTOP)
    assert holder.ask("release")[0] == "OK"
    granted = second.answer()
    assert granted[0] == "OK", granted
    fence = status(hf, "a")["fence"]
    asleep.process.send_signal(subprocess.signal.SIGCONT)
    wait_for_waiters(hf, 1, "a")  # its offer is spent: it waits again, behind the other
    assert second.ask("release")[0] == "OK"
    assert asleep.answer()[0] == "OK"
    assert status(hf, "a")["fence"] > fence


def test_a_holder_that_is_killed_here_is_taken_over_at_once(hf):
    holder, waiter = Talker(hf), Talker(hf)
    assert holder.acquire("a")[0] == "OK"
    waiter.wait("a")
    wait_for_waiters(hf, 1, "a")
    holder.kill()
    assert waiter.answer()[0] == "OK"
    taken = [e for e in hf.lines("events", "--name", "a") if e["kind"] == "taken-over"]
    assert [e["reason"] for e in taken] == ["holder-died"]


# ---- history


def test_compaction_loses_no_wake_up(hf, cluster, tmp_path):
    """All history is removed again and again while many wait."""
    counters = start_counters(hf, tmp_path)
    for _ in range(5):
        wait_for_progress(tmp_path)
        revision = cluster[0].status()["header"]["revision"]
        cluster[0].ctl("compact", "--physical", str(revision))
    wait_for_progress(tmp_path)
    end_counters(counters, tmp_path)


def test_waiters_are_granted_in_their_order(hf):
    holder = Talker(hf)
    assert holder.acquire("a")[0] == "OK"
    waiters = []
    for i, priority in enumerate([0, 0, 5]):
        waiters.append(Talker(hf))
        waiters[-1].wait("a", priority=priority)
        wait_for_waiters(hf, i + 1, "a")
    for waiter in (waiters[2], waiters[0], waiters[1]):
        assert holder.ask("release")[0] == "OK"
        assert waiter.answer()[0] == "OK"
        holder = waiter


def test_the_epoch_lifts_every_later_fence(hf):
    low = hf.json("acquire", "a")
    hf.ok("release", "a", low["token"])
    hf.ok("init", "--bump-epoch")
    assert hf.json("acquire", "a")["fence"] > low["fence"] + 10 ** 6
