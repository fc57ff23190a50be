"""tests/run itself: what fails by chance is run again in the open, what is broken fails."""
import os
import signal
import subprocess
import uuid

import pytest

from conftest import BUILD, PATIENCE_S, ROOT, poll
from processes import is_alive

# At its first call a name is new.
NEW = """
import os, pathlib, sys
def is_new(name):
    path = pathlib.Path(__file__).with_name(f"{name}.seen")
    was_new = not path.exists()
    path.touch()
    return was_new
"""


def run(shared, *args):
    """Its exit code, the lines of its end and all that it printed. `shared` is in the place of /tmp, where other runs are."""
    done = subprocess.run([os.path.join(ROOT, "tests", "run"), *map(str, args)], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          timeout=PATIENCE_S, env=dict(os.environ, HOLDFAST_JOBS="2", HOLDFAST_SHARED=str(shared), HOLDFAST_CLEAR_S="2"))
    return done.returncode, done.stdout.splitlines()[-6:], done.stdout


@pytest.fixture
def run_tests(tmp_path):
    """run_tests(source): tests/run with these tests of pytest."""

    def run_source(source):
        (tmp_path / "test_it.py").write_text(NEW + source)
        return run(tmp_path, BUILD, tmp_path / "test_it.py")

    return run_source


def test_a_test_that_passes_at_its_second_try_is_named(run_tests):
    code, end, all = run_tests("def test_good(): pass\ndef test_once(): assert not is_new('once')\n")
    assert code == 0, all
    assert end[-1] == "2 passed, 0 failed, 0 skipped"
    assert end[-2].startswith("flaky: ") and end[-2].endswith("test_it.py::test_once")


def test_a_test_that_fails_twice_fails(run_tests):
    code, end, all = run_tests("def test_good(): pass\ndef test_bad(): assert False\n")
    assert code == 1, all
    assert end[-1] == "1 passed, 1 failed, 0 skipped"
    assert end[-2].startswith("failed: ") and end[-2].endswith("test_it.py::test_bad")


@pytest.mark.parametrize("n, code", [(3, 0), (4, 1)])
def test_three_may_be_flaky_and_not_four(run_tests, n, code):
    got, end, all = run_tests("".join(f"def test_{i}(): assert not is_new({i})\n" for i in range(n)))
    assert got == code, all
    assert all.count("\nflaky: ") == n
    assert end[-1] == f"{n} passed, {code} failed, 0 skipped"


def test_what_is_skipped_is_counted_and_says_why(run_tests):
    code, end, all = run_tests("import pytest\ndef test_good(): pass\ndef test_not(): pytest.skip('no such thing here')\n")
    assert (code, end[-1]) == (0, "1 passed, 0 failed, 1 skipped"), all
    assert "no such thing here" in all


def test_what_is_left_behind_is_named_and_removed(run_tests, tmp_path):
    mark = f"holdfast-left-{uuid.uuid4()}"
    code, end, all = run_tests("import subprocess\ndef test_good():\n"
                               f"    subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)', {mark!r}], start_new_session=True)\n"
                               f"    pathlib.Path({str(tmp_path)!r}, {mark!r}).touch()\n")
    assert (code, end[-1]) == (1, "1 passed, 2 failed, 0 skipped"), all
    assert f"left behind: file {tmp_path / mark}" in end
    process = next(line for line in end if line.startswith("left behind: process ") and mark in line)
    poll(lambda: not is_alive(int(process.split()[3].rstrip(":"))))


def test_the_faked_clocks_of_the_dead_are_removed(run_tests, tmp_path):
    dead, alive = tmp_path / "sem.faketime_sem_999999999", tmp_path / f"faketime_shm_{os.getpid()}"
    code, end, all = run_tests(f"def test_good():\n    for name in {[str(dead), str(alive)]}: pathlib.Path(name).touch()\n")
    assert (code, dead.exists(), alive.exists()) == (0, False, True), all


def test_no_tests_are_a_failure(run_tests):
    code, end, all = run_tests("")
    assert (code, end[-1]) == (1, "0 passed, 1 failed, 0 skipped"), all


def test_what_is_no_python_is_a_failure(run_tests):
    code, end, all = run_tests("def test_good(:\n")
    assert code == 1 and end[-1].startswith("0 passed, 1 failed"), all


@pytest.mark.parametrize("crash", ["print('==1==ERROR: AddressSanitizer: heap-use-after-free on address')",
                                   "print('src/a.c:1:2: runtime error: signed integer overflow', file=sys.stderr)"])
def test_a_crash_that_a_failed_test_shows_gets_no_second_try(run_tests, crash):
    code, end, all = run_tests(f"def test_good(): pass\ndef test_once():\n    if is_new('once'):\n        {crash}\n        assert False\n")
    assert code == 1, all
    assert end[-1] == "1 passed, 1 failed, 0 skipped" and end[-2].startswith("crashed: ")


@pytest.mark.parametrize("report, code", [("ERROR: AddressSanitizer: stack-overflow", 1), ("a.c:1:2: runtime error: division by zero", 1),
                                          ("", 0), ("==1==LeakSanitizer has encountered a fatal error.", 0)])
def test_the_report_of_a_crash_fails_a_run_whose_tests_pass(run_tests, report, code):
    write = f"pathlib.Path(os.environ['ASAN_OPTIONS'].rsplit('log_path=')[-1] + '.1').write_text({report!r})"
    got, end, all = run_tests(f"def test_good(): {write}\n")
    assert got == code, all
    assert end[-1] == f"1 passed, {code} failed, 0 skipped"
    assert (end[-2] == "report of a crash: report.1") == (code == 1) and (report in all) == (code == 1 or not report)


@pytest.mark.stores("sqlite")
def test_a_program_that_is_ended_by_a_fatal_signal_is_reported(hf, tmp_path, monkeypatch):
    monkeypatch.setenv("HOLDFAST_CRASHES", str(tmp_path))
    for number in (signal.SIGABRT, signal.SIGTERM, signal.SIGSEGV):
        child = hf.start_program(["sh", "-c", f"kill -{int(number)} $$"])
        poll(lambda child=child: child.poll() is not None)
    hf.close()
    hf.children.clear()
    reports = [path.read_text() for path in tmp_path.glob("signal.*")]
    assert sorted(report.split()[0] for report in reports) == ["SIGABRT", "SIGSEGV"]
    assert all("is_reported" in report for report in reports)


def test_mesons_tests_get_a_second_try_with_the_same_seed(tmp_path):
    (tmp_path / "meson.build").write_text("project('p')\n"
                                          "test('once', find_program('once.sh'), suite: 'a')\n"
                                          "test('good', find_program('true'), suite: 'a')\n"
                                          "test('bad', find_program('false'), suite: 'b')\n"
                                          "test('killed', find_program('killed.sh'), suite: 'c')\n")
    once = tmp_path / "once.sh"
    once.write_text(f"#!/bin/sh\necho $HOLDFAST_SEED >>{tmp_path}/seeds; exec test $(wc -l <{tmp_path}/seeds) = 2\n")
    killed = tmp_path / "killed.sh"
    killed.write_text("#!/bin/sh\nkill -SEGV $$\n")
    once.chmod(0o755)
    killed.chmod(0o755)
    build = tmp_path / "build"
    subprocess.run(["meson", "setup", build, tmp_path], check=True, stdout=subprocess.DEVNULL)
    code, end, all = run(tmp_path, build, "--suite", "a")
    assert (code, end[-2:]) == (0, ["flaky: once", "2 passed, 0 failed, 0 skipped"]), all
    first, second = (tmp_path / "seeds").read_text().split()
    assert first == second
    code, end, all = run(tmp_path, build, "--suite", "b")
    assert (code, end[-2:]) == (1, ["failed: bad", "0 passed, 1 failed, 0 skipped"]), all
    code, end, all = run(tmp_path, build, "--suite", "c")
    assert (code, end[-2:]) == (1, ["crashed: killed", "0 passed, 1 failed, 0 skipped"]), all
    assert "second try" not in all
