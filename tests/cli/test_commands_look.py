"""Looking and housekeeping, from the outside: status, list, why, events, sweep, metrics, init."""
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import time

import pytest

from conftest import STORES, poll
from test_commands import NO_TOKEN, let_expire, state

pytestmark = pytest.mark.stores(*STORES, "http")

# ---- status, list -----------------------------------------------------------------------------


def test_status_of_a_name_that_nobody_used(hf):
    assert hf.ok("status", "never seen").splitlines()[0] == "never seen is free"


def test_status_for_people(hf):
    hf.ok("acquire", "--owner", "me", "--note", "for tea", "--ttl", "1h", "a")
    text = hf.ok("status", "a")
    assert re.match(r"a is held by me since \d+ m?s ago, fence \d+\n", text)
    assert "for tea" in text and re.search(r"expires +\S+Z \(in \d+ min\)", text)
    assert re.search(r"waiting +0$", text)


def test_list_shows_what_is_held(hf):
    hf.ok("acquire", "--owner", "me", "job/b")
    hf.ok("acquire", "job/a")
    hf.ok("release", "job/c", hf.ok("acquire", "job/c"))
    let_expire(hf, "old")
    rows = [line.split() for line in hf.ok("list").splitlines()]
    assert rows[0] == "NAME STATE OWNER ALIVE SINCE EXPIRES FENCE WAITERS".split()
    assert [row[0:2] for row in rows[1:]] == [["job/a", "held"], ["job/b", "held"], ["old", "stale"]]
    assert rows[2][2:4] == ["me", "-"]


def test_list_filters_and_prefix(hf):
    hf.ok("acquire", "job/a")
    hf.ok("release", "job/c", hf.ok("acquire", "job/c"))
    let_expire(hf, "old")

    def names(*args):
        return [row["name"] for row in hf.lines("list", *args)]

    assert names() == names("--held") == ["job/a", "old"]
    assert names("--stale") == ["old"]
    assert names("--all") == ["job/a", "job/c", "old"]
    assert names("--all", "--prefix", "job/") == ["job/a", "job/c"]
    assert names("--prefix", "nothing") == []
    assert hf.ok("list", "--prefix", "nothing") == ""


def test_list_aligns_what_is_not_ascii(hf):
    hf.ok("acquire", "--owner", "me", "é" * 20)
    hf.ok("acquire", "--owner", "me", "plain")
    lines = hf.ok("list").splitlines()
    assert len({line.index("STATE" if "STATE" in line else "held") for line in lines}) == 1


@pytest.mark.stores("file")
def test_list_of_more_than_a_screenful(hf):
    hf.ok("init")
    names = [f"name-{i:04}" for i in range(450)]
    script = 'for n in "$@"; do "$0" acquire "$n" >/dev/null || exit; done'
    subprocess.run(["sh", "-c", script, hf.program, *names], env=hf.env, check=True)
    lines = hf.ok("list").splitlines()
    assert [line.split()[0] for line in lines] == ["NAME"] + names


# ---- why, events ------------------------------------------------------------------------------


def test_why_tells_the_story(hf):
    first = hf.json("acquire", "--owner", "web1/1", "--ttl", "5s", "a")["fence"]
    hf("acquire", "--owner", "web2/2", "a")
    poll(lambda: state(hf, "a") == "stale")
    lease = hf.json("acquire", "--owner", "web3/3", "a")
    second = lease["fence"]
    hf.ok("release", "a", lease["token"])
    lines = hf.ok("why", "a").splitlines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \(UTC\)", lines[0])
    story = [re.sub(r"^  \d\d:\d\d:\d\d  ", "", line) for line in lines
             if not line.endswith("(UTC)")]
    assert story[:5] == [
        f"web1/1 acquired it (fence {first})",
        f"web2/2 was denied: held by web1/1, fence {first}",
        f"the lease of web1/1 (fence {first}) ended because its ttl ran out",
        f"web3/3 took over from web1/1, fence {first}, because its ttl ran out (now fence {second})",
        f"web3/3 acquired it (fence {second})",
    ]
    assert re.fullmatch(rf"web3/3 released it \(fence {second}\), held for \d+ m?s", story[5])
    assert story[6:] == ["Now: a is free", "Next: take it with holdfast run a -- COMMAND"]


def test_why_tells_who_gave_up_waiting(hf):
    fence = hf.json("acquire", "--owner", "web1/1", "a")["fence"]
    assert hf("acquire", "--owner", "web2/2", "--wait=100ms", "a").returncode == 75
    assert f"web2/2 gave up waiting: held by web1/1, fence {fence}" in hf.ok("why", "a")


def test_why_says_what_to_do_about_a_holder(hf):
    lease = hf.json("acquire", "--owner", "me", "it's mine")
    text = hf.ok("why", "it's mine")
    assert "Now: it's mine is held by me" in text
    assert f"holdfast release --force --fence {lease['fence']} 'it'\\''s mine'" in text
    let_expire(hf, "b")
    assert "may be taken over" in hf.ok("why", "b")


def test_why_tells_the_end_of_a_long_story(hf):
    script = 'for n in $(seq 110); do "$0" release a "$("$0" acquire a)" || exit; done'
    subprocess.run(["sh", "-c", script, hf.program], env=hf.env, check=True, stdout=subprocess.DEVNULL)
    lines = hf.ok("why", "a").splitlines()
    assert sum(line.startswith("  ") for line in lines) == 200
    assert "(the newest 200; holdfast events --name shows all)" in lines
    assert len(hf.lines("events", "--name", "a")) == 220 == len(hf.json("why", "a")["events"])


def test_why_of_what_nobody_knows(hf):
    assert hf.ok("why", "x").splitlines() == [
        "nothing is remembered of x", "Now: x is free", "Next: take it with holdfast run x -- COMMAND"]


def test_events_of_one_name_and_of_a_while(hf):
    hf.ok("acquire", "a")
    hf.ok("acquire", "b")
    assert [e["name"] for e in hf.lines("events")] == ["a", "b"]
    assert [e["name"] for e in hf.lines("events", "--name", "b")] == ["b"]
    assert len(hf.lines("events", "--since", "1h")) == 2
    time.sleep(0.05)
    assert hf.lines("events", "--since", "1ms") == []
    assert re.match(r"\d{4}-\S+Z  a: \S+ acquired it \(fence \d+\)\n", hf.ok("events"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_events_follow(hf, number):
    hf.ok("acquire", "a")
    follower = hf.start("--json", "events", "--follow")
    assert json.loads(follower.stdout.readline())["name"] == "a"
    hf.ok("acquire", "b")
    assert json.loads(follower.stdout.readline())["name"] == "b"
    follower.send_signal(number)
    out, err = follower.communicate(timeout=60)
    assert (follower.returncode, out, err) == (0, "", "")


def test_events_follow_ends_when_nobody_reads(hf):
    hf.ok("acquire", "a")
    follower = hf.start("events", "-f")
    follower.stdout.readline()
    follower.stdout.close()
    hf.ok("acquire", "b")
    assert follower.wait(timeout=60) == 74
    assert "can't write the output: Broken pipe" in follower.stderr.read()


# ---- sweep, metrics, init ---------------------------------------------------------------------


def test_sweep_frees_what_is_stale_and_says_so(hf):
    hf.ok("acquire", "live")
    old = let_expire(hf, "old")
    looked = hf("sweep", "--dry-run")
    assert looked.returncode == 0 and "would free: old is" in looked.stdout
    assert looked.stdout.splitlines()[-1] == "would free 1"
    assert state(hf, "old") == "stale"
    swept = hf("sweep")
    assert (swept.returncode, swept.stdout) == (0, "freed 1\n")
    assert "STALE LOCK" in swept.stderr and "old" in swept.stderr and "slowpoke" in swept.stderr
    assert (state(hf, "old"), state(hf, "live")) == ("free", "held")
    assert hf.ok("sweep") == "freed 0"
    assert hf.json("acquire", "old")["fence"] > old["fence"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_sweep_every(hf, number):
    sweeper = hf.start("sweep", "--every", "100ms")
    lease = hf.json("acquire", "--ttl", "100ms", "a")
    poll(lambda: state(hf, "a") == "free")
    sweeper.send_signal(number)
    out, err = sweeper.communicate(timeout=60)
    assert (sweeper.returncode, out) == (0, "freed 1\n")
    assert "STALE LOCK" in err
    assert hf("extend", "a", lease["token"]).returncode == 76


def test_metrics_count_what_happened(hf):
    lease = hf.json("acquire", "a")
    hf("acquire", "a")
    hf.ok("release", "a", lease["token"])
    hf("release", "a", NO_TOKEN)
    let_expire(hf, "b")
    hf("acquire", "b")
    forced = hf.json("acquire", "c")
    hf.ok("release", "--force", "--fence", forced["fence"], "c")
    hf.ok("acquire", "d")
    let_expire(hf, "e")
    samples = dict(line.rsplit(" ", 1) for line in hf.ok("metrics").splitlines() if line[0] != "#")
    assert samples == {
        'holdfast_acquire_total{result="granted"}': "6",
        'holdfast_acquire_total{result="held"}': "1",
        'holdfast_acquire_total{result="raced"}': "0",
        'holdfast_acquire_total{result="error"}': "0",
        'holdfast_executions{state="PENDING"}': "0",
        'holdfast_executions{state="RUNNING"}': "0",
        'holdfast_release_total{result="done"}': "1",
        'holdfast_release_total{result="lost"}': "1",
        'holdfast_stale_takeovers_total{reason="expired"}': "1",
        'holdfast_stale_takeovers_total{reason="holder-died"}': "0",
        'holdfast_stale_takeovers_total{reason="rebooted"}': "0",
        "holdfast_forced_releases_total": "1",
        "holdfast_lost_leases_total": "0",
        'holdfast_locks{state="held"}': "2",
        'holdfast_locks{state="stale"}': "1",
        'holdfast_locks{state="free"}': "2",
        "holdfast_waiters": "0",
        'holdfast_build_info{version="0.1.0"}': "1",
    }


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool (Debian: prometheus) is missing")
def test_promtool_is_content(hf):
    hf.ok("acquire", "a")
    checked = subprocess.run(["promtool", "check", "metrics"], input=hf.ok("metrics") + "\n",
                             text=True, capture_output=True)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_init(hf):
    assert hf.ok("init") == f"{hf.url} is ready"
    assert hf.ok("-q", "init") == ""


@pytest.mark.stores("sqlite", "postgres")
def test_init_prints_the_schema(hf):
    assert "CREATE TABLE" in hf.ok("init", "--print")


@pytest.mark.stores("file")
def test_init_of_a_store_without_a_schema(hf):
    refused = hf("init", "--print")
    assert refused.returncode == 69 and "has no schema to print" in refused.stderr


@pytest.mark.stores(*STORES)  # where the store itself is
def test_bump_epoch_raises_later_fences(hf):
    before = hf.json("acquire", "a")
    hf.ok("release", "a", before["token"])
    hf.ok("init", "--bump-epoch")
    assert hf.json("acquire", "a")["fence"] > before["fence"] + 1000


# ---- for people -------------------------------------------------------------------------------


def on_a_terminal(hf, *args, **env):
    """What the command prints when stdout is a terminal."""
    master, slave = pty.openpty()
    environment = {k: v for k, v in {**hf.env, **env}.items() if v is not None}
    child = subprocess.Popen([hf.program, *args], stdout=slave, env=environment)
    os.close(slave)
    printed = b""
    try:
        while chunk := os.read(master, 4096):
            printed += chunk
    except OSError:
        pass  # how a terminal says that nobody has its other end any more
    os.close(master)
    assert child.wait(timeout=60) == 0
    return printed.decode()


def test_colour_only_on_a_terminal_and_without_no_color(hf):
    let_expire(hf, "a")
    assert "\033[" in on_a_terminal(hf, "status", "a", NO_COLOR=None)
    assert "\033[" in on_a_terminal(hf, "list", "--all", NO_COLOR="")
    assert "\033[" not in on_a_terminal(hf, "status", "a", NO_COLOR="1")
    assert "\033[" not in hf("status", "a", env={"NO_COLOR": ""}).stdout


def test_an_empty_list_says_so_to_people_only(hf):
    assert "no locks; --all shows free ones too" in on_a_terminal(hf, "list", NO_COLOR="1")
    assert on_a_terminal(hf, "-q", "list", NO_COLOR="1") == ""
    assert hf.ok("list") == ""


def test_global_options_go_before_or_after_the_command(hf):
    before = hf.ok("--store", hf.url, "--json", "status", "a")
    after = hf.ok("status", "--json", "a", f"--store={hf.url}")
    assert json.loads(before) == json.loads(after)


def test_a_name_that_looks_like_an_option(hf):
    token = hf.ok("acquire", "--", "-x")
    assert hf("acquire", "--", "-x").returncode == 75
    assert hf.ok("release", "--", "-x", token) == "released -x"
