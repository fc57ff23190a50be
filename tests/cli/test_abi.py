"""scripts/abi-check: content with what is built, and not with a library that breaks what was promised."""
import glob
import os
import shutil
import subprocess

import pytest

from conftest import BUILD, ROOT

BREAKS = {
    "a function is gone": ("hf_guard", "hf_was_there"),
    "a field has another size": ("length='401'", "length='301'"),
    "another soname": ("soname='libholdfast.so.0'", "soname='libholdfast.so.9'"),
}


def library():
    found = glob.glob(os.path.join(BUILD, "src", "libholdfast.so.*[0-9].[0-9]"))
    if not found:
        pytest.skip("libholdfast.so is not built")
    return found[0]


@pytest.fixture
def check(tmp_path):
    """abi-check in a copy, so that its reference may be changed; a call answers the finished process."""
    for part in ("scripts", "include", "abi"):
        shutil.copytree(os.path.join(ROOT, part), tmp_path / part)
    return lambda *args: subprocess.run([tmp_path / "scripts" / "abi-check", *args, library()], text=True,
                                        capture_output=True, cwd=tmp_path)


def test_what_is_built_keeps_the_promise(check):
    done = check()
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "abi-check: compatible"), done.stdout


@pytest.mark.parametrize("what", BREAKS)
def test_a_break_is_caught(check, tmp_path, what):
    reference = tmp_path / "abi" / "libholdfast.abi"
    promised, now = BREAKS[what]
    assert promised in reference.read_text()
    # The reference says that it used to be otherwise.
    reference.write_text(reference.read_text().replace(promised, now))
    done = check()
    assert done.returncode == 1, done.stdout
    assert "the ABI differs" in done.stderr


def test_update_writes_what_is_built(check, tmp_path):
    reference = tmp_path / "abi" / "libholdfast.abi"
    reference.unlink()
    assert check().returncode == 69
    assert check("--update").returncode == 0
    assert str(ROOT) not in reference.read_text()
    assert check().returncode == 0
