"""A store that two paths lead to, past what lies beside it, would have two holders of one lock."""
import os
import shutil
import subprocess

import pytest

from conftest import FILE_STORES, Holdfast

pytestmark = pytest.mark.stores(*FILE_STORES)

KEPT = {"sqlite": "store.db", "file": "locks/.holdfast/state"}  # the file that must be one


@pytest.fixture
def other(hf, tmp_path):
    """The same store below tmp_path/there, of which nothing is there yet."""
    hf.ok("acquire", "--ttl", "1h", "held")
    there = tmp_path / "there"
    (there / KEPT[hf.scheme]).parent.mkdir(parents=True)
    second = Holdfast(FILE_STORES[hf.scheme].format(there), there)
    yield second
    second.close()


def mounted(source, target):
    """A command prefix: `source` stands at `target`, too."""
    prefix = ["unshare", "--mount", "sh", "-c", f'mount --bind "{source}" "{target}" && exec "$@"', "sh"]
    if os.geteuid() != 0 or subprocess.run([*prefix, "true"], capture_output=True).returncode != 0:
        pytest.skip("needs root, and may not mount here")
    return prefix


def try_in(hf, prefix, *args):
    runner = hf.start_program([*prefix, hf.program, *args])
    out, err = runner.communicate()
    return runner.returncode, out, err


def test_a_hard_link_is_refused_by_either_name_until_one_is_gone(hf, other, tmp_path):
    mine, theirs = tmp_path / KEPT[hf.scheme], other.tmp_path / KEPT[hf.scheme]
    os.link(mine, theirs)
    for side, path in ((hf, mine), (other, theirs)):
        done = side("run", "-n", "held", "--", "echo", "in")
        assert (done.returncode, done.stdout) == (69, ""), done.stderr
        assert f"{path} has 2 names (hard links): by another one others would take the same locks" in done.stderr
    theirs.unlink()
    assert hf("run", "-n", "held", "--", "true").returncode == 75


def test_a_file_that_is_mounted_by_itself_is_refused(hf, other, tmp_path):
    """As by `docker run -v /srv/l.db:/data/l.db`."""
    mine, theirs = tmp_path / KEPT[hf.scheme], other.tmp_path / KEPT[hf.scheme]
    theirs.touch()
    code, out, err = try_in(other, mounted(mine, theirs), "run", "-n", "held", "--", "echo", "in")
    assert (code, out) == (69, ""), err
    assert f"{theirs} is mounted by itself" in err and "mount the directory that it is in instead" in err


def test_a_directory_that_is_mounted_is_the_same_store(hf, other, tmp_path):
    where = os.path.dirname(KEPT[hf.scheme].split("/.holdfast")[0] + "/x") if hf.scheme == "file" else ""
    prefix = mounted(tmp_path / where, other.tmp_path / where)
    code, _, err = try_in(other, prefix, "run", "-n", "held", "--", "echo", "in")
    assert code == 75, err


@pytest.mark.stores("file")
def test_a_guard_that_is_linked_or_mounted_is_refused(hf, other, tmp_path):
    guard = "locks/.holdfast/names/held.lock"
    os.makedirs(other.tmp_path / "locks/.holdfast/names", mode=0o700)
    os.link(tmp_path / guard, other.tmp_path / guard)
    done = other("run", "-n", "held", "--", "echo", "in")
    assert (done.returncode, done.stdout) == (69, "") and "names/held.lock has 2 names" in done.stderr
    assert "names/held.lock has 2 names" in hf("release", "--force", "--fence", "1", "held").stderr
    (other.tmp_path / guard).unlink()
    (other.tmp_path / guard).touch()
    code, out, err = try_in(other, mounted(tmp_path / guard, other.tmp_path / guard), "run", "-n", "held",
                            "--", "echo", "in")
    assert (code, out) == (69, "") and "names/held.lock is mounted by itself" in err


@pytest.mark.stores("file")
def test_a_directory_within_the_store_that_is_mounted_is_refused(hf, other, tmp_path):
    names = "locks/.holdfast/names"
    shutil.rmtree(other.tmp_path / "locks")
    os.makedirs(other.tmp_path / names, mode=0o700)
    code, out, err = try_in(hf, mounted(other.tmp_path / names, tmp_path / names), "run", "-n", "held", "--",
                            "echo", "in")
    assert (code, out) == (69, "") and f"{tmp_path}/locks/.holdfast/names is mounted by itself" in err
