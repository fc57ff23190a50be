"""update: reads, filters, verifies and renames under a lock; whatever fails, FILE is as it was."""
import fcntl
import json
import os
import signal
import struct
import subprocess
import sys
import threading

import pytest

from conftest import PATIENCE_S, poll
from processes import process_state


@pytest.fixture
def index(tmp_path):
    where = tmp_path / "data"
    where.mkdir()
    path = where / "index"
    path.write_text("old\n")
    return path


def litter(index):
    """What is beside the file and should not be."""
    return [p.name for p in index.parent.iterdir() if p.name != index.name]


def assert_untouched(index, before):
    after = index.stat()
    assert index.read_text() == "old\n"
    assert (after.st_ino, after.st_mtime_ns, after.st_mode) == (before.st_ino, before.st_mtime_ns,
                                                                before.st_mode)
    assert litter(index) == []


# ---- when all goes well --------------------------------------------------------------------------


def test_the_output_replaces_the_file(hf, index):
    done = hf("update", index, "--", "tr", "a-z", "A-Z")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert index.read_text() == "OLD\n"
    assert litter(index) == []


def test_a_file_that_is_not_there_is_empty_input(hf, index):
    index.unlink()
    hf.ok("update", index, "-c", "cat; echo new", preexec_fn=lambda: os.umask(0o027))
    assert index.read_text() == "new\n"
    assert index.stat().st_mode & 0o7777 == 0o640


def test_a_large_file_passes_through_unharmed(hf, index):
    data = os.urandom(5_000_000)
    index.write_bytes(data)
    hf.ok("update", index, "--", "cat")
    assert index.read_bytes() == data


def test_an_empty_result_is_a_result(hf, index):
    hf.ok("update", index, "--", "true")
    assert index.read_text() == ""


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o755, 0o400])
def test_the_mode_is_kept(hf, index, mode):
    index.chmod(mode)
    hf.ok("update", index, "-c", "cat; echo more")
    assert index.stat().st_mode & 0o7777 == mode


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_the_owner_is_kept(hf, index):
    os.chown(index, 1234, 5678)
    index.chmod(0o640)
    hf.ok("update", index, "-c", "cat; echo more")
    assert (index.stat().st_uid, index.stat().st_gid) == (1234, 5678)
    assert index.stat().st_mode & 0o7777 == 0o640


CAPABILITY = struct.pack("<IIIII", 0x02000001, 1 << 10, 0, 0, 0)  # cap_net_bind_service, effective


@pytest.mark.parametrize("right", [0o4000, 0o2000, "capability"])
def test_the_rights_of_a_program_are_not_carried_over_to_another_content(hf, index, right):
    """The bug (audit.md, row 1): who could exchange the content got a set-user-ID program of root's."""
    if right == "capability":
        try:
            os.setxattr(index, "security.capability", CAPABILITY)
        except OSError as why:
            pytest.skip(f"no capabilities here: {why}")
    else:
        index.chmod(0o755 | right)
    done = hf("update", index, "-c", "cat; echo more")
    assert done.returncode == 0 and index.read_text() == "old\nmore\n"
    assert "had set-user-ID, set-group-ID or capabilities; its new content has not" in done.stderr
    assert index.stat().st_mode & 0o7000 == 0 and "security.capability" not in os.listxattr(index)


def access_list(*entries):
    """The kernel's own form: version 2, then tag, permissions, id."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def test_the_access_list_is_kept(hf, index):
    """The bug: the mode holds the list's mask, which then was what the file's group may do."""
    none = 0xFFFFFFFF
    acl = access_list((1, 6, none), (2, 6, 65534), (4, 0, none), (0x10, 6, none), (0x20, 0, none))
    try:
        os.setxattr(index, "system.posix_acl_access", acl)
        os.setxattr(index, "user.colour", b"green")
    except OSError as why:
        pytest.skip(f"no extended attributes here: {why}")
    hf.ok("update", index, "-c", "cat; echo more")
    assert index.stat().st_mode & 0o7777 == 0o660
    assert os.getxattr(index, "system.posix_acl_access") == acl
    assert os.getxattr(index, "user.colour") == b"green"


def test_a_symbolic_link_stays_and_its_target_is_replaced(hf, index, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(index)
    hf.ok("update", link, "--", "tr", "a-z", "A-Z")
    assert link.is_symlink()
    assert index.read_text() == "OLD\n"
    assert litter(index) == []


def test_the_lock_is_the_real_path(hf, index, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(index)
    out = tmp_path / "names"
    for path in (index, link, os.path.relpath(index, tmp_path)):
        hf.ok("update", path, "-c", f"cat; echo $HOLDFAST_NAME >> {out}", cwd=tmp_path)
    hf.ok("update", "--name", "mine", index, "-c", f"cat; echo $HOLDFAST_NAME >> {out}")
    assert out.read_text().splitlines() == [f"update:{index}"] * 3 + ["mine"]


def test_a_relative_name_in_the_current_directory(hf, index):
    hf.ok("update", "other", "--", "echo", "x", cwd=index.parent)
    assert (index.parent / "other").read_text() == "x\n"


# ---- when something fails ------------------------------------------------------------------------


@pytest.mark.parametrize("script, code", [("cat; exit 3", 3), ("echo half; kill -9 $$", 137),
                                          ("exit 1", 1)])
def test_a_filter_that_fails_changes_nothing(hf, index, script, code):
    before = index.stat()
    assert hf("update", index, "-c", script).returncode == code
    assert_untouched(index, before)


def test_a_filter_that_can_not_be_run_changes_nothing(hf, index):
    before = index.stat()
    assert hf("update", index, "--", "./no-such-program").returncode == 127
    assert_untouched(index, before)


def test_a_signal_changes_nothing(hf, index):
    before = index.stat()
    runner = hf.start("update", index, "-c", "echo half; echo on >&2; exec sleep 1000",
                      start_new_session=True)
    assert runner.stderr.readline() == "on\n"
    runner.send_signal(signal.SIGTERM)
    runner.communicate()
    assert runner.returncode == 128 + signal.SIGTERM
    assert_untouched(index, before)


def test_a_lost_lease_changes_nothing(hf, index):
    before = index.stat()
    script = f'cat; "{hf.program}" release --force --fence $HOLDFAST_FENCE --reason test $HOLDFAST_NAME >&2'
    done = hf("update", index, "-c", script)
    assert done.returncode == 76
    assert_untouched(index, before)


def test_a_foreign_change_is_noticed_and_kept(hf, index):
    done = hf("update", index, "-c", f"cat; echo foreign > {index}")
    assert done.returncode == 65
    assert "was changed meanwhile by somebody who does not hold the lock" in done.stderr
    assert index.read_text() == "foreign\n"
    assert litter(index) == []


def test_a_foreign_replacement_and_a_foreign_creation_are_noticed(hf, index):
    done = hf("update", index, "-c", f"cat; cp -p {index} {index}.new; mv {index}.new {index}")
    assert done.returncode == 65
    index.unlink()
    done = hf("update", index, "-c", f"echo ours; echo theirs > {index}")
    assert done.returncode == 65
    assert index.read_text() == "theirs\n"
    assert litter(index) == []


def test_a_foreign_removal_is_noticed(hf, index):
    assert hf("update", index, "-c", f"cat; rm {index}").returncode == 65
    assert not index.exists()
    assert litter(index) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a small filesystem of its own")
def test_a_full_disk_changes_nothing(hf, tmp_path):
    where = tmp_path / "small"
    where.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", where])
    if mount.returncode:
        pytest.skip("can't mount")
    try:
        index = where / "index"
        index.write_text("old\n")
        before = index.stat()
        done = hf("update", index, "--", "head", "-c", "1000000", "/dev/zero")
        assert done.returncode == 74
        assert "No space left on device" in done.stderr
        assert_untouched(index, before)
        # The lock was given back.
        hf.ok("update", "--nonblock", index, "--", "echo", "new")
        assert index.read_text() == "new\n"
    finally:
        subprocess.run(["umount", where], check=True)


def start_update(hf, index, *options, go="/nonexistent"):
    """One whose command has begun and goes on when `go` exists."""
    script = f"cat; echo on >&2; until test -e {go}; do sleep 0.05; done; echo new"
    started = hf.start("update", *options, index, "-c", script)
    assert started.stderr.readline() == "on\n"
    return started


def test_what_a_killed_update_left_is_removed_by_the_next_one(hf, index):
    (index.parent / "other").write_text("old\n")
    for path in (index, index.parent / "other"):
        killed = start_update(hf, path)
        killed.kill()
        killed.wait()
    assert len(litter(index)) == 3  # the other file, and what is left of both
    hf.ok("update", index, "--", "tr", "a-z", "A-Z")
    assert index.read_text() == "OLD\n"
    assert len(litter(index)) == 2
    hf.ok("update", index.parent / "other", "--", "cat")
    assert litter(index) == ["other"]


def test_what_an_update_under_another_lock_is_writing_is_left_alone(hf, index, tmp_path):
    go = tmp_path / "go"
    slow = start_update(hf, index, "--name", "mine", go=go)
    writing = litter(index)
    assert len(writing) == 1
    done = hf("update", index, "--", "false")
    assert done.returncode == 1
    assert litter(index) == writing
    go.touch()
    assert slow.wait() == 0
    assert index.read_text() == "old\nnew\n"
    assert litter(index) == []


def test_what_only_looks_like_a_leftover_is_left_alone(hf, index, tmp_path):
    killed = start_update(hf, index)
    killed.kill()
    killed.wait()
    left = index.parent / litter(index)[0]
    target = tmp_path / "target"
    target.write_text("theirs")
    left.unlink()
    left.symlink_to(target)
    hf.ok("update", index, "--", "tr", "a-z", "A-Z")
    assert index.read_text() == "OLD\n" and not index.is_symlink()
    assert target.read_text() == "theirs" and left.is_symlink()


def stopped_before_the_rename(hf, path, script):
    """It has asked about its fence, and then is stopped for so long that its lease is gone."""
    stopped = hf.start("update", "--ttl", "1h", path, "-c", script, env={"HOLDFAST_FAILPOINT": "9:stop"})
    poll(lambda: process_state(stopped.pid) == "T")
    name = f"update:{path}"
    hf.ok("release", "--force", "--fence", hf.json("status", name)["fence"], name)
    return stopped


COUNT = 'n=$(cat); echo read >&2; echo $((n + 1))'


def test_who_is_stopped_between_the_check_and_the_rename_undoes_nothing(hf, index):
    """The bug (exclusion.md, row 2): three updates, of which two were told that all was well, counted to 1."""
    index.write_text("0\n")
    slow = stopped_before_the_rename(hf, index, COUNT)
    next_one = hf.start("update", index, "-c", COUNT)
    assert next_one.stderr.readline() == "read\n"
    os.kill(slow.pid, signal.SIGCONT)
    _, err = slow.communicate(timeout=PATIENCE_S)
    assert slow.returncode == 0 and "but meanwhile" in err, err
    _, err = next_one.communicate(timeout=PATIENCE_S)
    assert next_one.returncode == 65 and "was changed meanwhile by somebody who does not hold the lock" in err
    assert index.read_text() == "1\n"
    hf.ok("update", index, "-c", COUNT)
    assert index.read_text() == "2\n"
    assert litter(index) == []


@pytest.mark.stores("sqlite")
def test_who_meets_one_that_is_stopped_is_told_who_that_is(hf, index):
    index.write_text("0\n")
    slow = stopped_before_the_rename(hf, index, COUNT)
    done = hf("update", index, "-c", COUNT)
    assert done.returncode == 75
    assert f"process {slow.pid} is stopped in the middle of a change; continue it with `kill -CONT" in done.stderr
    assert "it is as it was" in done.stderr and index.read_text() == "0\n"
    os.kill(slow.pid, signal.SIGCONT)
    assert slow.wait(PATIENCE_S) == 0 and index.read_text() == "1\n"


def test_who_is_stopped_before_a_new_file_is_put_in_place_does_not_replace_another_one(hf, index):
    index.unlink()
    slow = stopped_before_the_rename(hf, index, "echo slow")
    hf.ok("update", index, "--", "echo", "fast")
    os.kill(slow.pid, signal.SIGCONT)
    _, err = slow.communicate(timeout=PATIENCE_S)
    assert slow.returncode in (65, 76) and "was changed meanwhile" in err
    assert index.read_text() == "fast\n"
    assert litter(index) == []


def test_a_directory_that_is_exchanged_meanwhile_leads_nowhere_else(hf, index, tmp_path):
    """The bug (audit.md, row 1): whoever owned the directory had root read and replace any file."""
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "index").write_text("secret\n")
    go = tmp_path / "go"
    first = start_update(hf, index, go=go)
    waiter = hf.start("update", "--wait=1h", index, "--", "tr", "a-z", "A-Z")
    poll(lambda: [lock["waiters"] for lock in hf.lines("list")] == [1])
    index.parent.rename(tmp_path / "moved")
    index.parent.symlink_to(secret)
    go.touch()
    for process in (first, waiter):
        _, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, err
    assert (secret / "index").read_text() == "secret\n"
    assert (tmp_path / "moved" / "index").read_text() == "OLD\nNEW\n"


def test_it_waits_for_a_kernel_lock_on_the_file(hf, index):
    """Who locks the file itself, as flock(1) does, is not interrupted."""
    locked = os.open(index, os.O_RDONLY)
    fcntl.flock(locked, fcntl.LOCK_SH)
    waiter = hf.start("update", index, "-c", "cat; echo read >&2; echo more")
    assert waiter.stderr.readline() == "read\n"
    assert index.read_text() == "old\n"
    os.close(locked)
    assert waiter.wait(PATIENCE_S) == 0
    assert index.read_text() == "old\nmore\n"


def test_another_hard_link_keeps_the_old_content(hf, index, tmp_path):
    other = tmp_path / "other"
    os.link(index, other)
    hf.ok("update", index, "--", "tr", "a-z", "A-Z")
    assert (index.read_text(), other.read_text()) == ("OLD\n", "old\n")


def test_what_is_no_regular_file_is_refused(hf, index, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for path in (index.parent, tmp_path / "fifo", "/dev/null"):
        done = hf("update", path, "--", "cat")
        assert done.returncode == 65, done.stderr
        assert "not a regular file" in done.stderr


def test_a_missing_directory_and_a_dangling_link_are_refused(hf, tmp_path):
    done = hf("update", tmp_path / "none" / "file", "--", "cat")
    assert done.returncode == 65
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    done = hf("update", tmp_path / "dangling", "--", "cat")
    assert done.returncode == 65
    assert done.stderr.count("\n") == 1


def test_a_path_that_is_no_name_asks_for_one(hf, tmp_path):
    deep = tmp_path / ("x" * 150) / ("y" * 100)
    deep.mkdir(parents=True)
    done = hf("update", deep / "file", "--", "echo", "x")
    assert done.returncode == 65
    assert "--name" in done.stderr
    hf.ok("update", "--name", "short", deep / "file", "--", "echo", "x")


# ---- together ------------------------------------------------------------------------------------


def test_it_waits_for_the_other_and_75_when_told_not_to(hf, index, tmp_path):
    go_on = tmp_path / "go-on"
    holder = hf.start("update", index, "-c", f"cat; echo on >&2; until [ -e {go_on} ]; do sleep 0.05; done; echo one",
                      start_new_session=True)
    assert holder.stderr.readline() == "on\n"
    assert hf("update", "--nonblock", index, "--", "cat").returncode == 75
    waiter = hf.start("update", index, "-c", "cat; echo two")
    poll(lambda: [lock["waiters"] for lock in hf.lines("list")] == [1])
    go_on.touch()
    for process in (holder, waiter):
        _, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, err
    assert index.read_text() == "old\none\ntwo\n"


ADD = """
import json, sys
text = sys.stdin.read()
index = json.loads(text) if text else {}
index[sys.argv[1]] = len(index)
json.dump(index, sys.stdout)
"""


def test_two_updaters_of_one_json_index_lose_nothing(hf, tmp_path):
    path = tmp_path / "index.json"
    failures = []

    def add(who):
        for i in range(50):
            done = hf("update", path, "--", sys.executable, "-c", ADD, f"{who}-{i}")
            if done.returncode:
                failures.append(done)

    threads = [threading.Thread(target=add, args=(who,)) for who in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    entries = json.loads(path.read_text())
    assert set(entries) == {f"{who}-{i}" for who in ("a", "b") for i in range(50)}
    assert sorted(entries.values()) == list(range(100))


def test_a_reader_sees_the_old_or_the_new_never_a_part(hf, index):
    contents = [c * 200_000 for c in "ab"]
    index.write_text(contents[0])
    stop = threading.Event()
    seen = set()

    def look():
        while not stop.is_set():
            seen.add(index.read_text())

    reader = threading.Thread(target=look)
    reader.start()
    for _ in range(10):
        hf.ok("update", index, "--", "tr", "ab", "ba")
    stop.set()
    reader.join()
    assert seen <= set(contents)


def test_a_killed_updater_leaves_the_file_as_it_was(hf, index):
    runner = hf.start("update", index, "-c", "echo half; echo on >&2; exec sleep 1000",
                      start_new_session=True)
    assert runner.stderr.readline() == "on\n"
    runner.kill()
    runner.communicate()
    assert index.read_text() == "old\n"
    poll(lambda: hf("update", "--wait=10s", index, "--", "echo", "new").returncode == 0)
    assert index.read_text() == "new\n"
