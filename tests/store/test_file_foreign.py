"""The file store beside programs that know only the three-field lock file, and in bad company:
symbolic links, other users, full disks."""
import datetime
import json
import os
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import time

import pytest

from conftest import PATIENCE_S, TTL_S, Holdfast, expect_renewals, fill, poll

SEED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "seed_lock.py")
NOBODY = 65534

pytestmark = pytest.mark.stores("file")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as other users")


def locks(hf):
    return hf.url.split(":", 1)[1].split("?")[0]


def lock_file(hf, name="x"):
    return os.path.join(locks(hf), name + ".lock")


def read(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def stamp(seconds_ago=0):
    at = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(seconds=seconds_ago)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def when(text):
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def foreign(seconds_ago, process_id="pid-77"):
    return json.dumps({"lockId": "1736458800000-abc123xyz", "createdAt": stamp(seconds_ago),
                       "processId": process_id})


def seed(hf, *args, **env):
    return hf.start_program([sys.executable, SEED, *map(str, args)], env=env,
                            stdin=subprocess.PIPE)


# ---- the lock file ------------------------------------------------------------------------------


def test_lock_file_has_the_three_fields_and_ours_but_no_token(hf):
    lease = hf.json("acquire", "--ttl", "60s", "--note", "a note", "x")
    with open(lock_file(hf), encoding="utf-8") as file:
        text = file.read()
    data = json.loads(text)
    assert lease["token"] not in text
    assert list(data)[:3] == ["lockId", "createdAt", "processId"]
    assert len(data["lockId"]) == 32
    assert data["processId"].startswith("pid-")
    assert data["createdAt"] == data["acquiredAt"] == lease["acquiredAt"]
    assert data["name"] == "x" and data["fence"] == lease["fence"] and data["note"] == "a note"
    assert data["ttlMs"] == 60000
    assert abs(when(data["expiresAt"]) - when(lease["expiresAt"])) < 1
    hf.ok("release", "x", lease["token"])
    assert not os.path.exists(lock_file(hf))


def test_created_at_keeps_a_long_lease_from_being_stolen(hf):
    lease = hf.json("acquire", "--ttl", "1h", "x")
    data = read(lock_file(hf))
    assert abs(when(data["createdAt"]) - (when(data["expiresAt"]) - 300)) < 1
    hf.ok("extend", "x", lease["token"], "--ttl", "2h")
    again = read(lock_file(hf))
    assert when(again["createdAt"]) > when(data["createdAt"]) + 3000
    assert again["acquiredAt"] == data["acquiredAt"] and again["fence"] == data["fence"]


def test_process_id_is_the_bound_process(hf):
    hf.json("acquire", "--pid", os.getpid(), "x")
    assert read(lock_file(hf))["processId"] == f"pid-{os.getpid()}"


def test_names_become_files(hf):
    for name, file in ((".index", ".index.lock"), ("a/b%c", "a%2Fb%25c.lock"),
                       ("../up", "..%2Fup.lock"), (".holdfast", ".holdfast.lock"),
                       ("metrics.json", "metrics.json.lock")):
        hf.ok("acquire", name)
        assert os.path.isfile(os.path.join(locks(hf), file))
    assert [lock["name"] for lock in hf.lines("list", "--held")] == sorted(
        [".index", "a/b%c", "../up", ".holdfast", "metrics.json"])
    assert not os.path.exists(os.path.join(os.path.dirname(locks(hf)), "up.lock"))


def test_once_is_not_for_the_file_store(hf):
    done = hf("run", "--once", "k", "x", "--", "true")
    assert done.returncode == 69
    assert "the file store keeps locks only" in done.stderr


# ---- beside a seed-style program ----------------------------------------------------------------


def test_we_wait_for_a_seed_style_holder(hf):
    os.makedirs(locks(hf))
    holder = seed(hf, "hold", lock_file(hf))
    assert holder.stdout.readline() == "held\n"
    refused = hf("acquire", "x")
    assert refused.returncode == 75 and f"pid-{holder.pid}" in refused.stderr
    status = hf.json("status", "x")
    assert status["state"] == "held" and status["owner"] == f"pid-{holder.pid}"
    waiter = hf.start("run", "--wait=100s", "x", "--", "echo", "ran")
    poll(lambda: hf.json("status", "x")["waiters"] == 1)
    holder.stdin.close()
    assert holder.stdout.readline() == "released\n"
    assert waiter.wait(PATIENCE_S) == 0 and waiter.stdout.read() == "ran\n"


def test_a_seed_style_program_waits_for_us(hf):
    lease = hf.json("acquire", "x")
    waiter = seed(hf, "hold", lock_file(hf), SEED_TIMEOUT_S="100")
    time.sleep(0.5)
    assert waiter.poll() is None and hf.json("status", "x")["fence"] == lease["fence"]
    hf.ok("release", "x", lease["token"])
    assert waiter.stdout.readline() == "held\n"
    waiter.stdin.close()
    assert waiter.wait(PATIENCE_S) == 0


def test_a_renewed_lease_is_not_stolen_by_a_seed_style_program(hf):
    """Its threshold passes twice while we hold the lock and renew it."""
    hf.env["HOLDFAST_STORE"] += f"?stale={TTL_S}s"
    holder = hf.start("run", "--ttl", TTL_S, "x", "--", "cat", stdin=subprocess.PIPE)
    poll(lambda: os.path.exists(lock_file(hf)))
    thief = seed(hf, "hold", lock_file(hf), SEED_STALE_S=str(TTL_S), SEED_TIMEOUT_S="100")
    expect_renewals(hf, "x", lived_s=2 * TTL_S)
    holder.stdin.close()
    assert holder.wait(PATIENCE_S) == 0
    assert thief.stdout.readline() == "held\n"
    thief.stdin.close()
    assert thief.wait(PATIENCE_S) == 0 and "STALE" not in thief.stderr.read()


def test_what_a_seed_style_program_took_is_lost(hf):
    lease = hf.json("acquire", "x")
    os.unlink(lock_file(hf))
    holder = seed(hf, "hold", lock_file(hf))
    assert holder.stdout.readline() == "held\n"
    assert hf("extend", "x", lease["token"]).returncode == 76
    assert hf("release", "x", lease["token"]).returncode == 76
    assert read(lock_file(hf))["processId"] == f"pid-{holder.pid}"
    holder.stdin.close()
    assert holder.wait(PATIENCE_S) == 0


def test_nothing_is_lost_between_both_kinds(hf, tmp_path):
    counter = tmp_path / "counter"
    counter.write_text("0")
    os.makedirs(locks(hf))
    ours = 'v=$(cat "$0"); sleep 0.001; echo $((v + 1)) > "$0"'
    loop = f'i=0; while [ $i -lt 25 ]; do {shlex.quote(hf.program)} -q run --wait=100s x -- sh -c \'{ours}\' ' \
           f'{counter} || exit 1; i=$((i + 1)); done'
    running = [seed(hf, "count", lock_file(hf), counter, 25, SEED_STEP_S="0.001",
                    SEED_TIMEOUT_S="100") for _ in range(3)]
    running += [hf.start_program(["sh", "-c", loop]) for _ in range(3)]
    for child in running:
        assert child.wait(PATIENCE_S) == 0, child.stderr.read()
    assert int(counter.read_text()) == 150


# ---- what others left ---------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "not json", "{}", "[1]", '{"lockId": 1}', '{"fence": 3}',
                                  '{"lockId":"a","createdAt":"yesterday","processId":"p"}'])
def test_what_can_not_be_read_is_held_until_its_file_is_old(hf, text):
    write(lock_file(hf), text)
    assert hf("acquire", "x").returncode == 75
    with open(lock_file(hf), encoding="utf-8") as file:
        assert file.read() == text
    os.utime(lock_file(hf), (time.time() - 301,) * 2)
    assert hf.json("status", "x")["state"] == "stale"
    done = hf("acquire", "x")
    assert done.returncode == 0 and "STALE LOCK" in done.stderr


def test_a_stale_foreign_lock_is_taken_over_loudly_and_counted(hf):
    write(lock_file(hf), foreign(299))
    refused = hf("acquire", "x")
    assert refused.returncode == 75 and "pid-77" in refused.stderr
    write(lock_file(hf), foreign(302))
    done = hf("--json", "acquire", "x")
    assert done.returncode == 0 and "STALE LOCK" in done.stderr and "pid-77" in done.stderr
    metrics = read(os.path.join(locks(hf), "metrics.json"))
    assert metrics["totalCleanups"] == 1
    event = metrics["recentCleanups"][0]
    assert event["lockId"] == "1736458800000-abc123xyz" and event["processId"] == "pid-77"
    assert 302000 <= event["ageMs"] < 302000 + PATIENCE_S * 1000
    assert event["reason"] == "expired"
    assert "taken-over" in [e["kind"] for e in hf.lines("events", "--name", "x")]
    assert json.loads(done.stdout)["fence"] > 0


def test_the_threshold_can_be_set(hf):
    write(lock_file(hf), foreign(20))
    assert hf("acquire", "x").returncode == 75
    assert hf("--store", hf.url + "?stale=10s", "acquire", "x").returncode == 0
    assert hf("--store", hf.url + "?stale=no", "status", "x").returncode in (64, 65)
    assert hf("--store", hf.url + "?old=10s", "status", "x").returncode in (64, 65)


def test_a_foreign_lock_has_no_fence_that_could_be_current(hf):
    write(lock_file(hf), foreign(1))
    assert hf("guard", "x", "0").returncode == 76


def test_a_time_in_the_future_counts_for_nothing(hf):
    write(lock_file(hf), foreign(-3600))
    assert hf("acquire", "x").returncode == 75
    os.utime(lock_file(hf), (time.time() - 301,) * 2)
    assert hf("acquire", "x").returncode == 0


def test_sweep_frees_stale_foreign_locks_only(hf):
    write(lock_file(hf, "old"), foreign(400))
    write(lock_file(hf, "new"), foreign(1))
    hf.ok("sweep")
    assert not os.path.exists(lock_file(hf, "old")) and os.path.exists(lock_file(hf, "new"))


def test_our_own_stale_lock_is_counted_too(hf):
    child = hf.start("run", "x", "--", "sleep", "100")
    poll(lambda: os.path.exists(lock_file(hf)))
    pid = read(lock_file(hf))["processId"]
    hf.ok("acquire", "--ttl", "100ms", "y")
    time.sleep(0.2)
    hf.ok("acquire", "y")
    metrics = read(os.path.join(locks(hf), "metrics.json"))
    assert metrics["cleanupsByReason"] == {"expired": 1}
    assert pid.startswith("pid-")
    child.terminate()


def test_metrics_keep_the_last_fifty(hf):
    for i in range(53):
        write(lock_file(hf), foreign(400 + i, f"pid-{i}"))
        hf.ok("sweep")
    metrics = read(os.path.join(locks(hf), "metrics.json"))
    assert metrics["totalCleanups"] == 53
    assert [e["processId"] for e in metrics["recentCleanups"]] == [f"pid-{i}" for i in range(3, 53)]


def test_metrics_that_can_not_be_written_stop_nothing(hf):
    os.makedirs(os.path.join(locks(hf), "metrics.json"))
    write(lock_file(hf), foreign(400))
    assert hf("acquire", "x").returncode == 0


# ---- bad company --------------------------------------------------------------------------------


def test_a_symbolic_link_is_not_followed(hf, tmp_path):
    target = tmp_path / "target"
    target.write_text("precious")
    os.makedirs(locks(hf))
    for to in (target, tmp_path / "nowhere"):
        os.symlink(to, lock_file(hf))
        for command in (["acquire", "x"], ["status", "x"]):
            done = hf(*command)
            assert done.returncode == 69 and "symbolic link" in done.stderr
        os.unlink(lock_file(hf))
    assert target.read_text() == "precious" and not (tmp_path / "nowhere").exists()


def test_what_is_not_a_file_is_refused(hf):
    os.makedirs(locks(hf))
    os.mkfifo(lock_file(hf))
    assert hf("acquire", "x").returncode == 69
    os.makedirs(lock_file(hf, "y"))
    done = hf("acquire", "y")
    assert done.returncode == 69 and "not a plain file" in done.stderr


def test_a_symbolic_link_inside_is_not_followed(hf, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    os.makedirs(locks(hf))
    os.symlink(tmp_path / "elsewhere", os.path.join(locks(hf), ".holdfast"))
    assert hf("acquire", "x").returncode == 69
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_directory_open_to_everybody_is_refused(hf):
    os.makedirs(locks(hf))
    os.chmod(locks(hf), 0o777)
    done = hf("acquire", "x")
    assert done.returncode == 69 and "everybody" in done.stderr
    os.chmod(locks(hf), 0o1777)
    assert hf("acquire", "x").returncode == 0


@pytest.fixture
def commons():
    """A directory and a program that other users can reach."""
    path = tempfile.mkdtemp(prefix="holdfast-test-")
    os.chmod(path, 0o755)
    yield path
    shutil.rmtree(path)


def acting_as(hf, commons, uid, gid=NOBODY, groups=()):
    """The program, run by another user on DIR/locks of the commons."""
    program = os.path.join(commons, "holdfast")
    if not os.path.exists(program):
        shutil.copy(hf.program, program)
        os.chmod(program, 0o755)

    def act(*args):
        return subprocess.run([program, *args], user=uid, group=gid, extra_groups=list(groups),
                              env={**hf.env, "HOLDFAST_STORE": f"file:{commons}/locks"}, text=True,
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE_S,
                              cwd="/")
    return act


@needs_root
def test_a_lock_file_of_another_user_is_refused(hf, commons):
    act = acting_as(hf, commons, NOBODY)
    os.mkdir(os.path.join(commons, "locks"), 0o700)
    os.chown(os.path.join(commons, "locks"), NOBODY, NOBODY)
    assert act("acquire", "mine").returncode == 0
    path = os.path.join(commons, "locks", "x.lock")
    write(path, foreign(1000))
    os.chown(path, 12345, 12345)
    done = act("acquire", "x")
    assert done.returncode == 69 and "another user" in done.stderr
    assert os.stat(path).st_uid == 12345


@needs_root
def test_several_users_share_a_directory_of_their_group(hf, commons):
    group = 4242
    path = os.path.join(commons, "locks")
    os.mkdir(path)
    os.chown(path, 0, group)
    os.chmod(path, 0o2770)
    one = acting_as(hf, commons, 2001, 2001, [group])
    two = acting_as(hf, commons, 2002, 2002, [group])
    lease = json.loads(one("--json", "acquire", "x").stdout)
    assert two("acquire", "x").returncode == 75
    assert one("release", "x", lease["token"]).returncode == 0
    done = two("--json", "acquire", "x")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["fence"] > lease["fence"]
    assert one("extend", "x", json.loads(done.stdout)["token"], "--ttl", "1h").returncode == 0
    assert stat.S_IMODE(os.stat(os.path.join(path, "x.lock")).st_mode) == 0o660
    stranger = acting_as(hf, commons, 2003, 2003)
    assert stranger("status", "x").returncode != 0


def test_a_full_disk_grants_nothing_and_leaves_nothing(small_disk, tmp_path):
    hf = Holdfast(f"file:{small_disk}/locks", tmp_path)
    try:
        token = hf.ok("acquire", "kept")
        fill(small_disk)
        done = hf("acquire", "x")
        assert done.returncode == 69 and "No space left" in done.stderr
        assert not os.path.exists(lock_file(hf)) and hf.json("status", "x")["state"] == "free"
        hf.ok("extend", "kept", token)
        hf.ok("release", "kept", token)
        os.unlink(small_disk / "filler")
        hf.ok("acquire", "x")
    finally:
        hf.close()


def test_a_read_only_disk_is_said_to_be_one(small_disk, tmp_path):
    hf = Holdfast(f"file:{small_disk}/locks", tmp_path)
    try:
        token = hf.ok("acquire", "x")
        subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
        for command in (["acquire", "y"], ["release", "x", token]):
            done = hf(*command)
            assert done.returncode == 69 and "Read-only" in done.stderr
        subprocess.run(["mount", "-o", "remount,rw", small_disk], check=True)
        hf.ok("release", "x", token)
    finally:
        hf.close()
