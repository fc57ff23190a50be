"""Real processes: many at once, killed, stopped, in other namespaces, on other clocks.

Where a test needs a client that does one thing at a time it is hammer.c, told by hammer.py.
"""
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import time
import uuid

import pytest
from conftest import BUILD, FILE_STORES, PATIENCE_S, TTL_S, Holdfast, expect_renewals, fill, in_files, poll
from hammer import (EXPIRED, FOREVER, HOLDER_DIED, HOUR_MS, REBOOTED, Talker, assert_exclusive, read_logs, start_counter,
                    status, wait_for_waiters)

# The shortest that a waiter sleeps before it looks by itself (src/client/client.h: half of HF_POLL_MS).
# What is woken comes far sooner; what is not, never does.
SHORTEST_POLL_S = 2.5


@pytest.fixture
def talker(hf):
    return lambda *args, **options: Talker(hf, *args, **options)


def needs_root():
    if os.geteuid() != 0:
        pytest.skip("only root may make namespaces")


# ---- many at once


PROCESSES = 16


def test_16_processes_lose_nothing(hf, tmp_path):
    rounds = 100 if hf.scheme == "postgres" else 500  # a server's hand-over takes a few round trips
    (tmp_path / "counter").write_text("0" * 20)
    counters = [start_counter(hf, tmp_path, i, rounds) for i in range(PROCESSES)]
    for counter in counters:
        assert counter.wait(timeout=5 * PATIENCE_S) == 0
    assert int((tmp_path / "counter").read_text()) == PROCESSES * rounds
    noted = read_logs(tmp_path)
    assert [n for n, _, _ in noted] == list(range(1, PROCESSES * rounds + 1))
    assert_exclusive(noted)
    assert status(hf, "counter")["state"] == "free"


@in_files  # on postgres the server is killed too: test_postgres.py
def test_16_processes_lose_nothing_though_they_are_killed(hf, tmp_path):
    """A killed one may have raised the counter and not noted it: at most one raise per kill."""
    chance = random.Random(20)
    (tmp_path / "counter").write_text("0" * 20)
    counters = [start_counter(hf, tmp_path, i, 10 ** 6) for i in range(PROCESSES)]
    kills = takeovers = 0
    while kills < 30 or (takeovers < 3 and kills < 1000):
        before = int((tmp_path / "counter").read_text())
        poll(lambda: int((tmp_path / "counter").read_text()) >= before + 20)  # it goes on
        victim = chance.randrange(PROCESSES)
        counters[victim].kill()
        counters[victim].wait()
        kills += 1
        counters[victim] = start_counter(hf, tmp_path, PROCESSES + kills, 10 ** 6)
        if kills % 20 == 0:
            takeovers = sum(reason == HOLDER_DIED for _, _, reason in read_logs(tmp_path))
    for counter in counters:
        counter.kill()
        counter.wait()
    noted = read_logs(tmp_path)
    assert_exclusive(noted)
    final = int((tmp_path / "counter").read_text())
    assert noted[-1][0] <= final
    assert final - len(noted) <= kills + PROCESSES
    assert takeovers, "no holder was ever killed: this proves nothing"


# ---- a release that is said again


def pass_through_hands(talker, times=10):
    """More than there are ended tokens that a store remembers (HF_ENDED_MAX)."""
    for _ in range(times):
        assert talker.acquire(wait_ms=FOREVER)[0] == "OK"
        assert talker.ask("release")[0] == "OK"


def test_a_good_release_is_not_called_lost_however_late_it_is_repeated(hf, talker):
    """As by a holder that was not told of the first one, on a lock that many want."""
    holder, others = talker(), talker()
    assert holder.acquire()[0] == "OK"
    assert holder.ask("release")[0] == "OK"
    pass_through_hands(others)
    assert holder.ask("release")[0] == "OK"
    assert others.acquire()[0] == "OK"
    assert holder.ask("release")[0] == "OK"
    assert status(hf)["state"] == "held"
    assert others.ask("release")[0] == "OK"


def test_a_lost_lease_is_not_called_released_however_late(hf, talker):
    holder, others = talker(), talker()
    assert holder.acquire(ttl_ms=100, bound=0)[0] == "OK"
    pass_through_hands(others)
    assert holder.ask("release")[0] == "LEASE_LOST"


# ---- a holder that stops


def test_a_holder_stopped_past_its_ttl_is_refused_and_its_successor_intact(hf, talker):
    first, second = talker(), talker()
    assert first.acquire(ttl_ms=500)[0] == "OK"
    first.process.send_signal(signal.SIGSTOP)
    code, fence, reason = second.acquire(wait_ms=FOREVER)
    assert (code, int(reason)) == ("OK", EXPIRED)
    first.process.send_signal(signal.SIGCONT)
    assert first.ask("guard")[0] == "FENCE_STALE"
    assert first.ask("extend")[0] == "LEASE_LOST"
    assert first.ask("release")[0] == "LEASE_LOST"
    assert second.ask("guard")[:2] == ["OK", fence]
    assert second.ask("extend")[0] == "OK"
    assert second.ask("release")[0] == "OK"


def test_a_stopped_keeper_knows_that_it_lost(hf, talker):
    first, second = talker(), talker()
    assert first.acquire(ttl_ms=500)[0] == "OK"
    assert first.ask("keep")[0] == "OK"
    first.process.send_signal(signal.SIGSTOP)
    assert second.acquire(wait_ms=FOREVER)[0] == "OK"
    first.process.send_signal(signal.SIGCONT)
    poll(lambda: first.ask("lost")[0] == "LEASE_LOST")


def test_a_keeper_outlasts_the_ttl(hf, talker):
    first, second = talker(), talker()
    assert first.acquire(ttl_ms=1000 * TTL_S)[0] == "OK"
    assert first.ask("keep")[0] == "OK"
    expect_renewals(hf, "it", lived_s=TTL_S)
    assert second.acquire()[0] == "LOCK_HELD"
    assert first.ask("lost")[0] == "OK"


# ---- a holder that dies


def test_a_killed_holder_is_succeeded_far_sooner_than_its_ttl(hf, talker):
    """Its lease is an hour; who waits is told by the kernel, not by a poll."""
    took_s = []
    holder = talker()
    assert holder.acquire()[0] == "OK"
    for i in range(7):
        waiter = talker()
        waiter.wait()
        wait_for_waiters(hf, 1)
        began = time.monotonic()
        holder.kill()
        code, _, reason = waiter.answer()
        took_s.append(time.monotonic() - began)
        assert (code, int(reason)) == ("OK", HOLDER_DIED)
        holder = waiter
    assert statistics.median(took_s) < SHORTEST_POLL_S / 2


def test_a_killed_holder_is_succeeded_though_waiters_died_too(hf, talker):
    """Each waiter looks after the one ahead: the dead in between must not break the chain."""
    took_s = []
    for _ in range(3):
        holder, dead, alive = talker(), talker(), talker()
        assert holder.acquire(wait_ms=FOREVER)[0] == "OK"
        dead.wait()
        wait_for_waiters(hf, 1)
        alive.wait()
        wait_for_waiters(hf, 2)
        dead.kill()
        time.sleep(0.2)
        began = time.monotonic()
        holder.kill()
        assert alive.answer()[0] == "OK"
        took_s.append(time.monotonic() - began)
        assert alive.ask("release")[0] == "OK"
    assert statistics.median(took_s) < SHORTEST_POLL_S / 2


def test_a_try_takes_over_the_dead_at_once(hf, talker):
    holder = talker()
    assert holder.acquire()[0] == "OK"
    holder.kill()
    assert status(hf)["state"] == "stale"
    assert status(hf)["alive"] is False
    assert talker().acquire()[0] == "OK"


# ---- who waits


def test_waiters_are_served_in_order_with_the_dead_skipped(hf, talker):
    holder = talker()
    holder.acquire()
    waiters = []
    for i in range(10):
        waiters.append(talker())
        waiters[-1].wait(bound=i % 2)
        wait_for_waiters(hf, i + 1)
    for i in (1, 4, 5):
        waiters[i].kill()
    holder.ask("release")
    fences = []
    for i in (0, 2, 3, 6, 7, 8, 9):
        code, fence, _ = waiters[i].answer()
        assert code == "OK"
        fences.append(int(fence))
        assert waiters[i].ask("guard")[0] == "OK"
        assert waiters[i].ask("release")[0] == "OK"
    assert fences == sorted(fences)


def switches(pid):
    """How often the process has gone to sleep by itself."""
    with open(f"/proc/{pid}/status", encoding="ascii") as text:
        return int(re.search(r"^voluntary_ctxt_switches:\s*(\d+)", text.read(), re.M).group(1))


def test_who_stands_behind_the_dead_far_back_in_the_queue_sleeps(hf, talker):
    """The bug: it asked ten times a second for as long as it waited."""
    holder = talker()
    holder.acquire()
    waiters = []
    for i in range(12):
        waiters.append(talker())
        waiters[-1].wait()
        wait_for_waiters(hf, i + 1)
    before = switches(waiters[11].process.pid)
    waiters[10].kill()
    poll(lambda: switches(waiters[11].process.pid) > before)  # it has noticed
    time.sleep(0.5)
    before = switches(waiters[11].process.pid)
    time.sleep(3)
    assert switches(waiters[11].process.pid) - before < 12


def test_a_higher_priority_goes_first(hf, talker):
    holder = talker()
    holder.acquire()
    waiters = {}
    for i, priority in enumerate((0, 5, 0, 9, 5)):
        waiters[i] = talker()
        waiters[i].wait(priority=priority)
        wait_for_waiters(hf, i + 1)
    holder.ask("release")
    fences = {}
    for i in (3, 1, 4, 0, 2):
        fences[i] = int(waiters[i].answer()[1])
        waiters[i].ask("release")
    assert sorted(fences, key=fences.get) == [3, 1, 4, 0, 2]


def test_a_try_does_not_overtake_who_waits(hf, talker):
    holder, waiter, hasty = talker(), talker(), talker()
    holder.acquire()
    waiter.wait()
    wait_for_waiters(hf, 1)
    waiter.process.send_signal(signal.SIGSTOP)
    holder.ask("release")
    assert hasty.acquire()[0] == "LOCK_HELD"
    waiter.process.send_signal(signal.SIGCONT)
    assert waiter.answer()[0] == "OK"


def test_a_waiter_that_slept_through_its_offer_is_served_in_the_end(hf, talker):
    holder, waiter, other = talker(), talker(), talker()
    holder.acquire()
    waiter.wait(ttl_ms=400)  # so that the offer is short too
    wait_for_waiters(hf, 1)
    waiter.process.send_signal(signal.SIGSTOP)
    holder.ask("release")
    assert other.acquire(wait_ms=FOREVER)[0] == "OK"
    waiter.process.send_signal(signal.SIGCONT)
    wait_for_waiters(hf, 1)
    other.ask("release")
    assert waiter.answer()[0] == "OK"


def test_no_wake_up_is_lost(hf, talker):
    """Hundreds of hand-overs between two: with every wake-up lost they would take polls each."""
    rounds = 300
    one, other = talker(), talker()
    one.acquire()
    began = time.monotonic()
    for _ in range(rounds):
        other.wait()
        one.ask("release")
        assert other.answer()[0] == "OK"
        one, other = other, one
    assert time.monotonic() - began < rounds * SHORTEST_POLL_S / 10


# ---- a store that fails


@pytest.mark.parametrize("scheme", FILE_STORES)
def test_who_waits_outlasts_a_full_disk(scheme, small_disk, tmp_path):
    """The bug: a waiter ended with the store's first error."""
    hf = Holdfast(FILE_STORES[scheme].format(small_disk), tmp_path)
    try:
        hf.ok("acquire", "--ttl", "5s", "it")
        patient = hf.start("acquire", "--wait", "it")
        wait_for_waiters(hf, 1)
        hasty = hf.start("acquire", "--wait=8s", "it")  # longer than the lease, whose end must be written
        wait_for_waiters(hf, 2)
        fill(small_disk)
        _, err = hasty.communicate()
        assert hasty.returncode == 69 and "o space left" in err
        poll(lambda: status(hf)["state"] == "stale")
        assert patient.poll() is None
        os.unlink(small_disk / "filler")
        assert patient.wait(PATIENCE_S) == 0
    finally:
        hf.close()


# ---- clocks


FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"


def stepped(offset):
    """The environment of a process whose wall clock is off; under ASan the order does not matter."""
    if not os.path.exists(FAKETIME):
        pytest.skip("libfaketime is not installed")
    return {"LD_PRELOAD": FAKETIME, "FAKETIME": offset, "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "ASAN_OPTIONS": "verify_asan_link_order=0"}


def wall_hours_ahead(hf, env):
    """By how many hours the program's own idea of the time is off, as its leases show it. (Those of a
    server show the server's: there, as `date` shows it.)"""
    if hf.scheme == "postgres":
        shown = subprocess.run(["date", "+%s"], env={**hf.env, **env}, capture_output=True, check=True)
        return round((int(shown.stdout) - time.time()) / 3600)
    lease = hf.json("acquire", "--ttl", "1s", f"probe-{env['FAKETIME'][0]}", env=env)
    at = lease["acquiredAt"].split(".")[0]
    seconds = time.mktime(time.strptime(at, "%Y-%m-%dT%H:%M:%S")) - time.timezone - time.time()
    return round(seconds / 3600)


@pytest.mark.parametrize("offset, hours", [("+1h", 1), ("-1h", -1)])
def test_a_stepped_wall_clock_changes_nothing(hf, talker, offset, hours):
    env = stepped(offset)
    assert wall_hours_ahead(hf, env) == hours, "the clock was not stepped: this proves nothing"
    here, there = talker(), talker(env=env)
    assert here.acquire("mine", ttl_ms=60000, bound=0)[0] == "OK"
    assert there.acquire("theirs", ttl_ms=60000, bound=0)[0] == "OK"
    assert there.acquire("mine")[0] == "LOCK_HELD"
    assert there.ask("status mine")[1] == "held"
    assert talker().acquire("theirs")[0] == "LOCK_HELD"
    assert here.ask("extend")[0] == "OK"
    # A short lease ends when it should, whoever's clock is off.
    assert there.acquire("short", ttl_ms=300, bound=0)[0] == "OK"
    assert talker().acquire("short", wait_ms=FOREVER)[0] == "OK"
    assert here.acquire("brief", ttl_ms=300, bound=0)[0] == "OK"
    assert there.acquire("brief", wait_ms=FOREVER)[0] == "OK"


@pytest.mark.parametrize("offset", ["+1h", "-1h"])
def test_run_goes_on_under_a_stepped_wall_clock(hf, offset):
    """Longer than its ttl: renewals come when they should, and no deadline comes early."""
    done = hf("run", "--ttl", TTL_S, "it", "--", "sleep", TTL_S + 1, env=stepped(offset))
    assert (done.returncode, done.stderr) == (0, "")


def test_another_time_namespace_changes_nothing(hf, talker):
    needs_root()
    shifted = ["unshare", "-T", "--boottime", "500000", "--monotonic", "500000", "--fork"]
    if subprocess.run([*shifted, "true"], stderr=subprocess.DEVNULL).returncode != 0:
        pytest.skip("no time namespaces here")
    here, there = talker(), talker(prefix=shifted)
    assert here.acquire("mine")[0] == "OK"
    assert there.acquire("theirs")[0] == "OK"
    assert there.acquire("mine")[0] == "LOCK_HELD"
    assert there.ask("status mine")[1:3] == ["held", "alive"]
    assert here.ask("status theirs")[1:3] == ["held", "alive"]
    assert there.acquire("short", ttl_ms=300, bound=0)[0] == "OK"
    assert here.acquire("short", wait_ms=FOREVER)[0] == "OK"
    here.kill()
    assert there.acquire("mine")[0] == "OK"


# ---- other namespaces, another boot


def test_a_pid_of_another_namespace_is_not_taken_for_one_of_ours(hf, talker):
    """In a container every holder is pid 1 or so: alive or dead, only the ttl decides."""
    needs_root()
    inside = ["unshare", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*inside, "true"], stderr=subprocess.DEVNULL).returncode != 0:
        pytest.skip("no pid namespaces here")
    here, there = talker(), talker(prefix=inside)
    assert there.acquire("theirs", ttl_ms=60000)[0] == "OK"
    assert here.ask("status theirs")[1:3] == ["held", "unknown"]
    assert here.acquire("theirs")[0] == "LOCK_HELD"
    assert here.acquire("mine", ttl_ms=60000)[0] == "OK"
    assert there.ask("status mine")[1:3] == ["held", "unknown"]
    assert there.acquire("mine")[0] == "LOCK_HELD"
    other = talker(prefix=inside)  # the same pid, in a third namespace
    assert other.acquire("theirs")[0] == "LOCK_HELD"


def rebooted(tmp_path):
    """A command prefix: as after a reboot, as far as the boot's id can tell."""
    library = tmp_path / "another_boot.so"
    source = os.path.join(os.path.dirname(__file__), "..", "another_boot.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-D_GNU_SOURCE", "-o", library, source, "-ldl"], check=True)
    return ["env", f"LD_PRELOAD={library}", "ASAN_OPTIONS=verify_asan_link_order=0"]


@in_files  # another server's clock and disk know nothing of this machine's boot
def test_after_a_reboot_bound_leases_are_free_and_others_live_a_ttl(hf, talker, tmp_path):
    before = talker()
    assert before.acquire("bound")[0] == "OK"
    bound_fence = int(before.ask("guard")[1])
    assert before.acquire("unbound", ttl_ms=1500, bound=0)[0] == "OK"
    after = talker(prefix=rebooted(tmp_path))
    code, fence, reason = after.acquire("bound")
    assert (code, int(reason)) == ("OK", REBOOTED)
    assert int(fence) > bound_fence
    assert after.ask("status unbound")[1] in ("held", "stale")
    assert after.acquire("unbound", wait_ms=FOREVER)[0] == "OK"
    assert int(after.ask("guard")[1]) > int(fence)


def in_container(tmp_path, name):
    """A command prefix: /proc tells a boot id of its own, as in LXC and systemd-nspawn."""
    needs_root()
    boot_id = tmp_path / f"{name}-boot_id"
    boot_id.write_text(f"{uuid.uuid4()}\n")
    prefix = ["unshare", "--mount", "sh", "-c",
              f"mount --bind {boot_id} /proc/sys/kernel/random/boot_id && exec \"$@\"", "sh"]
    seen = subprocess.run([*prefix, "cat", "/proc/sys/kernel/random/boot_id"], text=True, capture_output=True)
    if seen.stdout != boot_id.read_text():
        pytest.skip("the boot's id can't be replaced here")
    return prefix


@in_files
def test_a_containers_own_boot_id_is_not_taken_for_a_reboot(hf, talker, tmp_path):
    """The bug (exclusion.md, row 3): whoever had another boot id took every lease at once."""
    places = [[], in_container(tmp_path, "one"), in_container(tmp_path, "two")]
    everyone = [talker(prefix=place) for place in places]
    highest = 0
    for i, one in enumerate(everyone):
        assert one.acquire(f"bound-{i}", ttl_ms=HOUR_MS)[0] == "OK"
        fence = int(one.ask("guard")[1])
        assert fence > highest
        highest = fence
    talker(prefix=places[1]).wait("bound-0")
    wait_for_waiters(hf, 1, "bound-0")
    for i, one in enumerate(talker(prefix=place) for place in places):
        for other in range(len(places)):
            assert one.acquire(f"bound-{other}")[0] == "LOCK_HELD"
            assert one.ask(f"status bound-{other}")[1:3] == ["held", "alive" if i == other else "unknown"]
        assert one.acquire("short", ttl_ms=300, wait_ms=FOREVER, bound=0)[0] == "OK"
    assert everyone[0].acquire("short", wait_ms=FOREVER)[0] == "OK"
    wait_for_waiters(hf, 1, "bound-0")


@in_files
def test_an_unreadable_boot_id_is_refused(hf, tmp_path):
    """As with systemd's ProcSubset=pid: nobody could tell one boot from the next."""
    needs_root()
    hidden = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /proc/sys && exec "$@"', "sh"]
    if subprocess.run([*hidden, "true"], stderr=subprocess.DEVNULL).returncode != 0:
        pytest.skip("no mounts here")
    done = hf.start_program([*hidden, hf.program, "run", "a", "--", "true"])
    assert done.wait(PATIENCE_S) == 69 and "can't tell one boot from another" in done.stderr.read()


@in_files
def test_the_clock_is_known_in_every_time_namespace_or_refused(hf, talker):
    """The bugs (exclusion.md, row 10): what /proc says of the children's namespace was taken for this
    process's own, and a child took over what its parent had read."""
    holder, other = talker(), talker()
    assert holder.acquire("mine", ttl_ms=60000, bound=0)[0] == "OK"
    assert other.ask("fork")[0] == "OK"  # it has read nothing yet
    if other.ask("shift 100000")[0] != "OK":
        pytest.skip("no time namespaces here")
    assert other.ask("reopen")[0] == "STORE_UNAVAILABLE"
    assert other.ask("fork")[0] == "OK"
    assert other.ask("reopen")[0] == "OK"
    assert other.acquire("mine")[0] == "LOCK_HELD"


@pytest.mark.stores("sqlite", "postgres")  # whatever the store: it is not opened
@pytest.mark.parametrize("elsewhere, words", [
    (["--fork"], "/proc does not show this process"),
    ([], "children will be in another pid namespace"),
], ids=["proc", "children"])
@pytest.mark.parametrize("command", ["run", "update", "work"])
def test_who_cannot_find_his_processes_starts_none(hf, tmp_path, command, elsewhere, words):
    """The bug (exclusion.md, row 4): with another pid namespace's /proc the guardian found nobody to kill."""
    needs_root()
    if not elsewhere and BUILD.endswith("-asan"):
        pytest.skip("a sanitizer can't start its own helpers there")
    inside = ["unshare", "--pid", *elsewhere]
    if subprocess.run([*inside, "true"], stderr=subprocess.DEVNULL).returncode != 0:
        pytest.skip("no pid namespaces here")
    (tmp_path / "file").touch()
    (tmp_path / "holdfast.yaml").write_text(f"workflows: {{w: {{command: [touch, {tmp_path}/ran]}}}}\n")
    args = {"run": ["run", "a", "--", "touch", tmp_path / "ran"],
            "update": ["update", tmp_path / "file", "--", "touch", tmp_path / "ran"],
            "work": ["work", "--config", tmp_path / "holdfast.yaml"]}[command]
    done = hf.start_program([*inside, hf.program, *map(str, args)])
    assert done.wait(PATIENCE_S) == 69
    assert words in done.stderr.read() and not (tmp_path / "ran").exists()


def test_unshare_is_there():
    """The tests above would be skipped without it: say so."""
    assert shutil.which("unshare")
