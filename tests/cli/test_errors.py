"""Bad input: every kind gets one clear line on stderr and its exit code, and changes nothing."""
import os
import re
import shutil
import sqlite3
import subprocess
import tempfile

import pytest

from conftest import in_files, poll

USAGE, DATA, UNAVAILABLE, FORBIDDEN = 64, 65, 69, 77
GOOD_TOKEN = "00000000-0000-4000-8000-000000000000"


def refused(hf, code, pattern, *args, **options):
    """The command exits with `code` and says exactly one line that the pattern matches."""
    done = hf(*args, **options)
    assert done.returncode == code, f"{args}: exit {done.returncode}: {done.stderr}"
    assert done.stdout == ""
    assert re.fullmatch(rf"holdfast: {pattern}\n", done.stderr), done.stderr


@pytest.mark.stores("sqlite")
@pytest.mark.parametrize("args, pattern", [
    (["stauts"], r"unknown command 'stauts'; did you mean status\? \(see: holdfast help\)"),
    (["frobnicate"], r"unknown command 'frobnicate' \(see: holdfast help\)"),
    (["help", "lst"], r"unknown command 'lst'; did you mean list\? \(see: holdfast help\)"),
    (["--jsn", "list"], r"holdfast has no option --jsn; did you mean --json\? \(see: holdfast help\)"),
    (["--ttl", "5s", "acquire", "a"], r"holdfast has no option --ttl.*"),
    (["acquire", "--tll", "5s", "a"],
     r"acquire has no option --tll; did you mean --ttl\? \(see: holdfast help acquire\)"),
    (["status", "--ttl", "5s", "a"], r"status has no option --ttl \(see: holdfast help status\)"),
    (["list", "-x"], r"list has no option -x \(see: holdfast help list\)"),
    (["list", "--json=yes"], r"--json takes no value .*"),
    (["acquire"], r"acquire needs NAME .*"),
    (["run"], r"run needs NAME \[--\] COMMAND \[ARG...\] .*"),
    (["update", "--name", "a"], r"update needs FILE \[--\] COMMAND \[ARG...\] .*"),
    (["run", "a", "--wait=5m", "--", "true"],
     r"options of run end at 'a': put --wait=5m before it \(or -- before a command\) .*"),
    (["update", "a", "-n", "true"], r"options of update end at 'a': put -n before it .*"),
    (["status"], r"status needs NAME .*"),
    (["status", "a", "b"], r"status: one word too many: 'b' .*"),
    (["acquire", "a", "--ttl"], r"--ttl needs a value: --ttl D .*"),
    (["acquire", "-w"], r"-w needs a value: -w D .*"),
    (["acquire", "--wait", "5m", "a"],
     r"write --wait=5m or -w 5m: --wait takes its time only after '=' \(plain --wait waits for ever\) .*"),
    (["run", "--wait", "30", "a", "true"], r"write --wait=30 or -w 30: .*"),
    (["acquire", "--wait=soon", "a"], r"--wait: 'soon' is not a duration; expected .*5m, 1h, 2d .*"),
    (["acquire", "--ttl", "soon", "a"], r"--ttl: 'soon' is not a duration; expected .*"),
    (["acquire", "--ttl", "-5s", "a"], r"--ttl: '-5s' is not a duration; expected .*"),
    (["acquire", "--ttl", "0", "a"], r"--ttl: a ttl of 0 ms can't be had; expected 100ms to 366d .*"),
    (["acquire", "--ttl", "36500d", "a"],
     r"--ttl: a ttl of 36500 days can't be had; expected 100ms to 366d .*"),
    (["acquire", "--ttl", "99999999999999999999d", "a"], r"--ttl: '9+d' is not a duration.*"),
    (["acquire", "-E", "256", "a"], r"-E: '256' is not a whole number from 0 to 255 .*"),
    (["acquire", "--priority", "high", "a"], r"--priority: 'high' is not a whole number from .*"),
    (["acquire", "--pid", "0", "a"], r"--pid: '0' is not a whole number from 1 to .*"),
    (["acquire", "--owner", "", "a"], r"--owner: must not be empty .*"),
    (["acquire", "--owner", "a\nb", "a"], r"--owner: the owner has a control character in it .*"),
    (["acquire", "--note", "x" * 401, "a"], r"--note: the note has 401 bytes; at most 400 are kept .*"),
    (["acquire", "--store", "", "a"], r"--store: must not be empty .*"),
    (["run", "a"], r"run 'a': what is to be run\? Add COMMAND, or -c STRING .*"),
    (["run", "a", "-c", "true", "false"], r"run takes COMMAND or -c STRING, not both: 'false' .*"),
    (["run", "a", "-c"], r"-c needs a value: -c STRING .*"),
    (["run", "--grace", "30s", "a", "true"],
     r"--grace may be at most a third of --ttl, here 20000 ms .*"),
    (["run", "--once-per", "week", "a", "true"], r"--once-per: 'week' is neither hour nor day .*"),
    (["run", "--once", "k", "--once-per", "day", "a", "true"],
     r"--once and --once-per exclude each other .*"),
    (["update", "f"], r"update 'f': what is to be run\? .*"),
    (["extend"], r"extend needs NAME and TOKEN: HOLDFAST_NAME and HOLDFAST_TOKEN are not set .*"),
    (["extend", "a"], r"extend needs NAME and TOKEN, or neither .*"),
    (["guard"], r"guard needs NAME and FENCE: HOLDFAST_NAME and HOLDFAST_FENCE are not set .*"),
    (["guard", "a"], r"guard needs NAME and FENCE, or neither .*"),
    (["release", "--force", "a"], r"release --force needs --fence N: .*"),
    (["release", "--force", "--fence", "1", "a", GOOD_TOKEN],
     r"release --force takes NAME alone, without a token .*"),
    (["release", "--fence", "1", "a", GOOD_TOKEN], r"--fence and --reason go with --force .*"),
    (["events", "--since", "yesterday"], r"--since: 'yesterday' is not a duration; .*"),
    (["sweep", "--every", "1ms"], r"--every: '1ms' is too short: at least 100 ms .*"),
])
def test_usage(hf, args, pattern):
    refused(hf, USAGE, pattern, *args)
    assert not os.path.exists(hf.url.split(":", 1)[1])


@pytest.mark.stores("sqlite")
def test_no_command_shows_the_commands(hf):
    done = hf()
    assert done.returncode == USAGE and done.stdout == ""
    assert done.stderr.startswith("usage: holdfast ")


@pytest.mark.parametrize("name, pattern", [
    ("", "the name is empty; expected 1 to 200 bytes"),
    ("a\nb", "the name has a control character in it"),
    ("a\x1b[31mb", "the name has a control character in it"),
    ("x" * 201, "the name has 201 bytes; at most 200 are kept"),
    (" a", "the name ' a' begins or ends with a space"),
    ("a ", "the name 'a ' begins or ends with a space"),
    (b"\xff", "the name is not valid UTF-8"),
    (b"\xc0\xaf", "the name is not valid UTF-8"),
])
def test_names(hf, name, pattern):
    for command in (["acquire"], ["status"], ["why"], ["release", "--force", "--fence", "1"]):
        done = subprocess.run([hf.program, *command, name], env=hf.env, capture_output=True, text=True)
        assert done.returncode == DATA
        assert re.fullmatch(rf"holdfast: {pattern}\n", done.stderr)
    for command in (["extend"], ["release"], ["guard"]):
        second = "1" if command == ["guard"] else GOOD_TOKEN
        done = subprocess.run([hf.program, *command, name, second], env=hf.env, capture_output=True,
                              text=True)
        assert done.returncode == DATA
    assert hf.lines("list", "--all") == []


@pytest.mark.stores("sqlite")
def test_a_bad_name_is_bad_data_as_an_option_too(hf):
    refused(hf, DATA, "--name: the name has a control character in it", "events", "--name", "a\nb")


@in_files
def test_names_that_could_leave_the_store_do_not(hf):
    for name in ("../../escape", "a/../../b", "/etc/passwd", ".", "..", "a.lock", "x" * 200, "é" * 100):
        token = hf.ok("acquire", name)
        assert hf.json("status", name)["state"] == "held"
        hf.ok("release", name, token)
    inside = hf.url.split(":", 1)[1]
    entries = sorted(os.listdir(hf.tmp_path))
    assert all(entry.startswith(os.path.basename(inside)) for entry in entries), entries


def test_tokens_and_fences(hf):
    refused(hf, DATA, "that is not a token; expected the 36 characters that acquire printed",
            "release", "a", "secret")
    refused(hf, DATA, "the token has 40 bytes; at most 36 are kept", "extend", "a", "x" * 40)
    refused(hf, DATA, "'seven' is not a whole number from 0 to 9007199254740991", "guard", "a", "seven")
    refused(hf, DATA, "'-1' is not a whole number from 0 to 9007199254740991", "guard", "--", "a", "-1")


def test_pid_of_nobody(hf):
    done = hf("acquire", "--pid", 2**22 + 1, "a")
    assert done.returncode == DATA and str(2**22 + 1) in done.stderr
    assert hf.json("status", "a")["state"] == "free"


# ---- stores -----------------------------------------------------------------------------------


@pytest.mark.stores("sqlite")
@pytest.mark.parametrize("url, pattern", [
    ("redis://localhost", r"there is no store 'redis:'; known are sqlite:PATH, file:DIR, .*"),
    ("locks", r"'locks' is not a store; expected SCHEME:..., as in sqlite:PATH or file:DIR"),
    ("sqlite:x%zz", r"the store's URL has a '%' that is not followed by two hex digits .*"),
    ("sqlite:/tmp/x?colour=red", r"the sqlite store knows no parameter 'colour'"),
])
def test_store_urls(hf, url, pattern):
    refused(hf, DATA, pattern, "--store", url, "list")


@pytest.mark.stores("sqlite")
def test_a_password_is_not_shown(hf):
    done = hf("--store", "redis://me:sesame@localhost/x?password=sesame", "list")
    assert done.returncode == DATA and "sesame" not in done.stderr


@in_files
def test_a_directory_that_can_not_be_made(hf):
    blocker = hf.tmp_path / "blocker"
    blocker.write_text("not a directory")
    done = hf("--store", f"{hf.scheme}:{blocker}/below", "acquire", "a")
    assert done.returncode == UNAVAILABLE
    assert done.stderr.count("\n") == 1 and "blocker" in done.stderr


def as_another_user():
    """How root becomes somebody whom permissions hold back; nothing for anybody else."""
    return ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []


@in_files
def test_a_directory_that_may_not_be_written(hf):
    with tempfile.TemporaryDirectory() as place:  # pytest's own directories are closed to others
        os.chmod(place, 0o755)
        program = shutil.copy(hf.program, place)
        done = subprocess.run([*as_another_user(), program, "--store", f"{hf.scheme}:{place}/store",
                               "acquire", "a"], env=hf.env, capture_output=True, text=True)
    assert done.returncode in (UNAVAILABLE, FORBIDDEN)
    assert done.stderr.count("\n") == 1 and "ermission denied" in done.stderr


@pytest.mark.stores("sqlite")
def test_a_database_that_is_none(hf):
    path = hf.url.split(":", 1)[1]
    with open(path, "wb") as file:
        file.write(b"this is not a database, and long enough to tell. " * 100)
    done = hf("acquire", "a")
    assert done.returncode == UNAVAILABLE and done.stderr.count("\n") == 1
    assert path in done.stderr


@pytest.mark.stores("sqlite")
def test_a_database_of_another_program_is_left_alone(hf):
    path = hf.url.split(":", 1)[1]
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE theirs (x)")
        database.execute("PRAGMA application_id = 4711")
        database.execute("PRAGMA user_version = 3")
    done = hf("acquire", "a")
    assert done.returncode == UNAVAILABLE and done.stderr.count("\n") == 1
    with sqlite3.connect(path) as database:
        assert database.execute("SELECT name FROM sqlite_master").fetchall() == [("theirs",)]


@pytest.mark.stores("file")
def test_a_lock_file_that_is_not_json(hf):
    hf.ok("release", "a", hf.ok("acquire", "a"))
    path = os.path.join(hf.url.split(":", 1)[1], "a.lock")
    with open(path, "w") as file:
        file.write("{ not json")
    done = hf("acquire", "a")
    assert done.returncode != 0 and done.stderr.count("\n") == 1
    assert "a.lock" in done.stderr or "held" in done.stderr
    with open(path) as file:
        assert file.read() == "{ not json"


# ---- output -----------------------------------------------------------------------------------


@pytest.mark.parametrize("args", [["list"], ["status", "a"], ["why", "a"], ["events"], ["metrics"],
                                  ["help"], ["--version"], ["init"]])
@pytest.mark.parametrize("redirect", [">/dev/full", ">&-"])
def test_an_output_that_can_not_be_written(hf, args, redirect):
    hf.ok("acquire", "a")
    command = hf.start_program(["sh", "-c", f'"$0" "$@" {redirect}', hf.program, *args])
    _, err = command.communicate(timeout=60)
    assert command.returncode == 74
    assert re.fullmatch(r"holdfast: can't write the output: .*\n", err)


def test_a_closed_stderr_and_stdin_harm_nothing(hf):
    token = hf.ok("acquire", "a")
    closed = hf.start_program(["sh", "-c", '"$0" acquire a 0<&- 2>&- 1>&-', hf.program])
    assert closed.wait(timeout=60) == 75
    assert hf.ok("release", "a", token) == "released a"


def test_a_reader_that_went_away(hf):
    hf.ok("acquire", "a")
    lister = hf.start("events", "--follow")
    lister.stdout.close()
    hf.ok("acquire", "b")
    assert poll(lambda: lister.poll() is not None) and lister.returncode == 74
