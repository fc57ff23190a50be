"""The commands around a lock, from the outside: what they do, print and answer."""
import json
import os
import re
import signal
import time
from datetime import datetime, timezone

import pytest

from conftest import STORES, poll

pytestmark = pytest.mark.stores(*STORES, "http")

UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")
NO_TOKEN = "00000000-0000-4000-8000-000000000000"


def state(hf, name):
    return hf.json("status", name)["state"]


def let_expire(hf, name):
    """A lease on NAME that nobody renewed in time."""
    lease = hf.json("acquire", "--ttl", "100ms", "--owner", "slowpoke", name)
    poll(lambda: state(hf, name) == "stale")
    return lease


# ---- acquire ----------------------------------------------------------------------------------


def test_acquire_prints_the_token_alone(hf):
    token = hf.ok("acquire", "a")
    assert UUID.match(token)
    assert hf("release", "a", token).returncode == 0


def test_fences_grow(hf):
    fences = []
    for _ in range(3):
        lease = hf.json("acquire", "a")
        fences.append(lease["fence"])
        hf.ok("release", "a", lease["token"])
    assert fences == sorted(set(fences)) and fences[0] > 0


def test_a_held_lock_refuses_and_says_who_holds_it(hf):
    fence = hf.json("acquire", "--owner", "web1/4121", "nightly-report")["fence"]
    refused = hf("acquire", "nightly-report")
    assert refused.returncode == 75 and refused.stdout == ""
    assert re.fullmatch(r"holdfast: nightly-report is held by web1/4121 since \d+ m?s ago, "
                        rf"fence {fence}; wait with --wait=5m\n", refused.stderr)


def test_conflict_exit_code(hf):
    hf.ok("acquire", "a")
    assert hf("acquire", "-E", "3", "a").returncode == 3
    assert hf("acquire", "--conflict-exit-code=0", "a").returncode == 0


def test_quiet_leaves_held_to_the_exit_code(hf):
    hf.ok("acquire", "a")
    refused = hf("-q", "acquire", "a")
    assert (refused.returncode, refused.stdout, refused.stderr) == (75, "", "")


def test_owner_is_who_asked(hf):
    assert hf.json("acquire", "a")["owner"] == f"{os.uname().nodename}/{os.getpid()}"
    named = hf.json("acquire", "--owner", "me", "--note", "for tea", "b")
    assert (named["owner"], named["note"]) == ("me", "for tea")


@pytest.mark.parametrize("how", [["--wait"], ["--wait=100s"], ["-w", "100s"], ["-w100s"]])
def test_a_waiter_is_granted_what_is_released(hf, how):
    first = hf.json("acquire", "a")
    waiter = hf.start("--json", "acquire", *how, "a")
    poll(lambda: hf.json("status", "a")["waiters"] == 1)
    hf.ok("release", "a", first["token"])
    out, err = waiter.communicate(timeout=60)
    assert waiter.returncode == 0, err
    assert json.loads(out)["fence"] > first["fence"]


def test_a_wait_that_runs_out(hf):
    hf.ok("acquire", "--owner", "me", "a")
    refused = hf("acquire", "-w", "200ms", "a")
    assert refused.returncode == 75
    assert re.search(r"a is held by me .*; gave up after waiting 200 ms\n", refused.stderr)
    assert hf.json("status", "a")["waiters"] == 0


def test_nonblock_after_wait_does_not_wait(hf):
    hf.ok("acquire", "a")
    assert hf("acquire", "--wait", "-n", "a").returncode == 75


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_wait_and_leaves_the_queue(hf, number):
    hf.ok("acquire", "a")
    waiter = hf.start("acquire", "--wait", "a")
    poll(lambda: hf.json("status", "a")["waiters"] == 1)
    waiter.send_signal(number)
    assert waiter.wait(timeout=60) == -number
    assert hf.json("status", "a")["waiters"] == 0


def test_an_ignored_signal_stays_ignored(hf):
    lease = hf.json("acquire", "a")
    waiter = hf.start_program(["nohup", hf.program, "acquire", "--wait", "a"])
    poll(lambda: hf.json("status", "a")["waiters"] == 1)
    waiter.send_signal(signal.SIGHUP)
    hf.ok("release", "a", lease["token"])
    out, _ = waiter.communicate(timeout=60)
    assert waiter.returncode == 0 and UUID.match(out.strip())


def test_priority_goes_first(hf):
    lease = hf.json("acquire", "a")
    later = hf.start("acquire", "--wait", "--owner", "low", "a")
    poll(lambda: hf.json("status", "a")["waiters"] == 1)
    urgent = hf.start("acquire", "--wait", "--owner", "high", "--priority", "5", "a")
    poll(lambda: hf.json("status", "a")["waiters"] == 2)
    hf.ok("release", "a", lease["token"])
    token = urgent.communicate(timeout=60)[0].strip()
    assert hf.json("status", "a")["owner"] == "high"
    hf.ok("release", "a", token)
    assert later.wait(timeout=60) == 0


def test_an_expired_lease_is_taken_over_loudly(hf):
    old = let_expire(hf, "a")
    taken = hf("--json", "acquire", "a")
    assert taken.returncode == 0 and json.loads(taken.stdout)["fence"] > old["fence"]
    assert "STALE LOCK" in taken.stderr and "slowpoke" in taken.stderr
    assert hf("release", "a", old["token"]).returncode == 76
    assert state(hf, "a") == "held"


@pytest.mark.stores(*STORES)  # a service knows nothing of its clients' processes
def test_a_lease_bound_to_a_process_ends_with_it(hf):
    holder = hf.start_program(["sleep", "1000"])
    lease = hf.json("acquire", "--pid", holder.pid, "--ttl", "1h", "a")
    assert lease["owner"].endswith(f"/{holder.pid}")
    assert hf.json("status", "a")["alive"] is True
    assert "(alive)" in hf("acquire", "a").stderr
    holder.kill()
    holder.wait()
    dead = hf.json("status", "a")
    assert (dead["alive"], dead["state"]) == (False, "stale")
    taken = hf("acquire", "a")
    assert taken.returncode == 0 and "STALE LOCK" in taken.stderr


def test_a_lease_bound_to_nothing_is_neither_alive_nor_dead(hf):
    hf.ok("acquire", "a")
    assert hf.json("status", "a")["alive"] is None


@pytest.mark.parametrize("redirect", [">/dev/full", ">&-"])
def test_a_token_that_nobody_got_is_given_back(hf, redirect):
    done = hf.start_program(["sh", "-c", f'"$0" acquire a {redirect}', hf.program])
    _, err = done.communicate(timeout=60)
    assert done.returncode == 74 and "can't write the output" in err
    assert state(hf, "a") == "free"


# ---- extend, release, guard -------------------------------------------------------------------


def as_environment(lease):
    return {"HOLDFAST_NAME": lease["name"], "HOLDFAST_TOKEN": lease["token"],
            "HOLDFAST_FENCE": str(lease["fence"])}


def test_extend_keeps_token_and_fence(hf):
    lease = hf.json("acquire", "--ttl", "1h", "a")
    longer = hf.json("extend", "a", lease["token"], "--ttl", "2h")
    assert longer["ttlMs"] == 7200000 and longer["expiresAt"] > lease["expiresAt"]
    assert (longer["token"], longer["fence"]) == (lease["token"], lease["fence"])
    assert hf.json("extend", "a", lease["token"])["ttlMs"] == 7200000
    assert re.match(r"extended a until \d{4}-.*Z \(ttl 2 h, fence \d+\)$", hf.ok("extend", "a", lease["token"]))
    assert hf.ok("-q", "extend", "a", lease["token"]) == ""


def test_a_late_copy_of_a_request_ends_no_lease_earlier(hf):
    """The bug (exclusion.md, row 6): somebody else was granted the name while the holder counted on its renewal."""
    lease = hf.json("acquire", "--ttl", "1s", "a")
    longer = hf.json("extend", "a", lease["token"], "--ttl", "1h")
    shorter = hf.json("extend", "a", lease["token"], "--ttl", "1s")
    assert shorter["ttlMs"] == 1000 and shorter["expiresAt"] == longer["expiresAt"]
    time.sleep(1.5)
    assert hf("acquire", "-n", "a").returncode == 75
    assert hf("guard", "a", str(lease["fence"])).returncode == 0


def test_extend_release_and_guard_default_to_the_environment(hf):
    lease = hf.json("acquire", "a")
    env = as_environment(lease)
    assert hf.json("extend", env=env)["fence"] == lease["fence"]
    assert hf.ok("guard", env=env) == ""
    assert hf.ok("release", env=env) == "released a"
    assert hf("guard", env=env).returncode == 76
    assert hf("extend", env=env).returncode == 76


def test_a_fence_in_the_environment_is_checked(hf):
    lease = hf.json("acquire", "a")
    env = dict(as_environment(lease), HOLDFAST_FENCE=str(lease["fence"] + 1))
    assert hf("extend", env=env).returncode == 76
    assert hf("release", env=env).returncode == 76
    assert state(hf, "a") == "held"


def test_release_twice_is_done_once(hf):
    token = hf.ok("acquire", "a")
    assert hf("release", "a", token).returncode == 0
    assert hf("release", "a", token).returncode == 0


def test_release_of_what_is_not_yours(hf):
    hf.ok("acquire", "--owner", "me", "a")
    refused = hf("release", "a", NO_TOKEN)
    assert refused.returncode == 76
    assert refused.stderr.startswith(
        "holdfast: the lease on a was lost or is not yours; a is held by me")
    assert state(hf, "a") == "held"


def test_force_needs_the_fence_that_was_seen(hf):
    lease = hf.json("acquire", "--owner", "me", "a")
    fence = lease["fence"]
    wrong = hf("release", "--force", "--fence", fence + 1, "a")
    assert wrong.returncode == 76
    assert re.match(rf"holdfast: fence {fence + 1} is not the current one; a is held by me .*; "
                    "nothing was freed, look again with holdfast status\n", wrong.stderr)
    assert state(hf, "a") == "held"
    assert hf.ok("release", "--force", "--fence", fence, "--reason", "it hangs", "a") == "released a"
    assert state(hf, "a") == "free"
    assert re.search(rf"the lease of me \(fence {fence}\) was freed by force .*: it hangs", hf.ok("why", "a"))
    assert hf("extend", "a", lease["token"]).returncode == 76
    assert hf("release", "--force", "--fence", fence, "a").returncode == 76


@pytest.mark.stores("file")
def test_force_frees_the_lock_file_of_a_foreign_program(hf):
    hf.ok("init")
    path = os.path.join(hf.url.split(":", 1)[1], "a.lock")
    created = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    with open(path, "x") as file:
        json.dump({"lockId": "x1", "createdAt": created, "processId": "pid-1"}, file)
    status = hf.json("status", "a")
    assert (status["state"], status["fence"]) == ("held", 0)
    hf.ok("release", "--force", "--fence", "0", "a")
    assert not os.path.exists(path)


def test_guard(hf):
    fence = hf.json("acquire", "--ttl", "1h", "a")["fence"]
    assert hf("guard", "a", fence).returncode == 0
    refused = hf("guard", "a", fence + 1)
    assert refused.returncode == 76
    assert f"fence {fence + 1} is not the current one; a is held" in refused.stderr
    assert hf("guard", "never-seen", 1).returncode == 76
    assert hf("guard", "b", let_expire(hf, "b")["fence"]).returncode == 76
