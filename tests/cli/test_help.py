"""Help, man pages and completions say the same: what the program's table of options has."""
import os
import re
import shlex
import shutil
import subprocess

import pytest

from conftest import ROOT, find_holdfast

MAN = os.path.join(ROOT, "man")
COMPLETIONS = os.path.join(ROOT, "completions")
PROGRAM = find_holdfast()


def run(*argv, **options):
    return subprocess.run(argv, capture_output=True, text=True, **options)


def help_of(*args):
    done = run(PROGRAM, *args)
    assert done.returncode == 0 and done.stderr == ""
    return done.stdout


def commands():
    return re.findall(r"^  ([a-z]+)  ", help_of("help").split("Options of every")[0], re.M)


def own_and_global_options(command):
    """Two lists of (letter or None, long name), as --help shows them."""
    parts = help_of("help", command).split("Options of every command:")
    pattern = re.compile(r"^  (?:-(\w)(?: \S+)?, |    )--([a-z-]+)", re.M)
    return [[(letter or None, name) for letter, name in pattern.findall(part)] for part in parts]


def rendered(page):
    """A man page as plain text."""
    done = run("mandoc", "-T", "utf8", "-O", "width=1000", os.path.join(MAN, page))
    assert done.returncode == 0
    return re.sub(r".\x08", "", done.stdout)


def read(name):
    with open(os.path.join(COMPLETIONS, name)) as file:
        return file.read()


COMMANDS = commands()
BY_HAND = [c for c in COMMANDS if c != "help"]


# ---- help -------------------------------------------------------------------------------------


def test_every_command_of_this_part_is_there():
    assert COMMANDS == ["run", "acquire", "extend", "release", "status", "list", "why", "events", "guard",
                        "sweep", "update", "start", "schedule", "work", "executions", "show", "cancel", "retry", "log", "serve", "token", "metrics",
                        "init", "help"]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_three_forms(command):
    text = help_of("help", command)
    assert text.startswith(f"usage: holdfast {command}")
    assert help_of(command, "--help") == help_of(command, "-h") == help_of("--help", command) == text
    own, common = own_and_global_options(command)
    assert common == [(None, "store"), (None, "json"), ("q", "quiet"), ("h", "help"), (None, "version")]
    assert len(set(own)) == len(own)
    assert max(map(len, text.splitlines())) <= 120


def test_help_without_a_command():
    assert help_of("--help") == help_of("help") == help_of("-h")


def test_help_needs_no_store():
    assert run(PROGRAM, "run", "--help", env={"HOLDFAST_STORE": "nonsense"}).returncode == 0


def test_version():
    assert re.fullmatch(r"holdfast \d+\.\d+\.\d+\n", help_of("--version"))


def test_options_of_the_interface():
    waits = {"wait", "nonblock", "conflict-exit-code", "owner", "note", "priority"}
    take = waits | {"ttl"}
    wrap = take | {"grace", "command"}
    expected = {
        "run": wrap | {"timeout", "once", "once-per"}, "acquire": take | {"pid"},
        "update": wrap | {"name"}, "extend": {"ttl"}, "release": {"force", "fence", "reason"},
        "list": {"held", "stale", "all", "prefix"}, "events": {"name", "since", "follow"},
        "schedule": {"at", "in", "jitter", "config", "key", "input", "priority"},
        "work": {"concurrency", "workflow", "max", "drain", "grace", "config", "log-format"},
        "start": waits | {"config", "key", "input", "detach"}, "log": {"follow"},
        "executions": {"workflow", "state", "limit"}, "retry": {"workflow", "state", "dry-run"},
        "sweep": {"every", "dry-run"}, "init": {"print", "bump-epoch"},
        "serve": {"listen", "config", "no-work", "concurrency", "grace", "require-token", "tls-cert", "tls-key", "max-connections", "max-body", "receive-timeout", "log-format", "log-requests"},
        "token": {"allow", "prefix", "expires", "note"},
    }
    for command in COMMANDS:
        own = {name for _, name in own_and_global_options(command)[0]}
        assert own == expected.get(command, set()), command


# ---- man pages --------------------------------------------------------------------------------


@pytest.mark.parametrize("command", BY_HAND)
def test_man_page_of_a_command(command):
    text = rendered(f"holdfast-{command}.1")
    own = own_and_global_options(command)[0]
    for letter, name in own:
        assert re.search(rf"^ +(-\w \S+, |-\w, )?--{name}\b", text, re.M), name
        assert not letter or re.search(rf"^ +-{letter}\b", text, re.M), letter
    shown = set(re.findall(r"^ +(?:-\w(?: \S+)?, )?--([a-z-]+)", text, re.M))
    assert shown - {name for _, name in own} <= {"store", "json"}, "an option that is none"


def test_man_page_of_the_program():
    text = rendered("holdfast.1")
    for command in BY_HAND:
        assert f"holdfast-{command}(1)" in text
    for letter, name in own_and_global_options("help")[1]:
        assert re.search(rf"^ +(-{letter}, )?--{name}\b", text, re.M)
    for code in (0, 64, 65, 69, 70, 74, 75, 76, 77, 124, 126):
        assert re.search(rf"^ +{code}\b", text, re.M), code


@pytest.mark.parametrize("page", sorted(f for f in os.listdir(MAN) if f[-2:] in (".1", ".3", ".5", ".7")))
def test_man_pages_are_clean(page):
    done = run("mandoc", "-T", "lint", "-W", "style", os.path.join(MAN, page))
    said = [line for line in (done.stdout + done.stderr).splitlines()
            if "referenced manual not found" not in line and "outdated mandoc.db" not in line]
    assert said == []
    with open(os.path.join(MAN, "meson.build")) as file:
        assert f"'{page}'" in file.read()


def test_every_function_of_the_man_page_is_in_the_header():
    with open(os.path.join(ROOT, "include", "holdfast.h")) as file:
        header = file.read()
    with open(os.path.join(MAN, "holdfast.3")) as file:
        functions = set(re.findall(r"^\.F[no] (hf_\w+)", file.read(), re.M))
    assert functions
    for function in functions:
        assert re.search(rf"^HF_API .*\b{function}\(", header, re.M), function


# ---- completions ------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_bash_knows_the_options(command):
    script = f'. {shlex.quote(COMPLETIONS)}/holdfast.bash; _holdfast_options {command}'
    words = set(run("bash", "-c", script).stdout.split())
    expected = {"--wait="} & words
    for part in own_and_global_options(command):
        for letter, name in part:
            expected |= {f"--{name}"} | ({f"-{letter}"} if letter else set())
    assert words == expected


def bash_completes(*words, env=None):
    script = (f'. {shlex.quote(COMPLETIONS)}/holdfast.bash; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); '
              '_holdfast; printf "%s\\n" "${COMPREPLY[@]}"')
    done = run("bash", "-c", script, "bash", PROGRAM, *words, env=env)
    assert done.stderr == ""
    return done.stdout.split()


def test_bash_completes():
    assert bash_completes("") == COMMANDS
    assert bash_completes("sta") == ["status", "start"]
    assert bash_completes("--json", "sw") == ["sweep"]
    assert bash_completes("executions", "--state", "F") == ["FAILED"]
    assert bash_completes("help", "w") == ["why", "work"]
    assert bash_completes("acquire", "--w") == ["--wait", "--wait="]
    assert bash_completes("run", "--once-per", "") == ["hour", "day"]
    assert bash_completes("acquire", "--ttl", "") == []
    assert "true" in bash_completes("run", "--wait", "=", "5m", "a", "--", "tru")


def test_bash_completes_names(hf):
    hf.ok("acquire", "job/a")
    hf.ok("acquire", "with a space")
    assert bash_completes("status", "j", env=hf.env) == ["job/a"]
    other = {k: v for k, v in hf.env.items() if k != "HOLDFAST_STORE"}
    assert bash_completes("--store", hf.url, "why", "", env=other) == ["job/a"]


@pytest.mark.parametrize("command", COMMANDS)
def test_zsh_knows_the_options(command):
    text = read("_holdfast")
    groups = {name: re.search(rf"local -a {name}=\((.*?)\n  \)", text, re.S).group(1)
              for name in ("global", "waits", "take", "wrap")}
    branch = re.search(rf"^    (?:\w+\|)*{command}(?:\|\w+)*\)\n(.*?);;", text, re.M | re.S).group(1)
    used = [g for g in groups if f"${g}" in branch]
    words = branch + "".join(groups[g] for g in used) + (groups["waits"] if "take" in used else "")
    shown = set(re.findall(r"(?<=[')},{*])--([a-z-]+)(?==?-?\[|[,}])", words))
    own, common = own_and_global_options(command)
    if command == "help":
        own, common = [], []
    assert shown == {name for _, name in own + common}
    letters = set(re.findall(r"(?<=[){,'])-(\w)(?=[\[,}])", words))
    assert letters == {letter for letter, _ in own + common if letter}
    assert f"'{command}:" in text


def fish_options(command):
    """(letter, name) pairs that the fish completion gives a command."""
    found = set()
    for line in read("holdfast.fish").splitlines():
        condition = re.search(r"-n '__holdfast_is ([a-z ]+)'", line)
        letter, name = re.search(r" -s (\w)", line), re.search(r" -l ([a-z-]+)", line)
        if (letter or name) and (not condition or command in condition.group(1).split()):
            found |= {f"-{letter.group(1)}"} if letter else set()
            found |= {f"--{name.group(1)}"} if name else set()
    return found


@pytest.mark.parametrize("command", COMMANDS)
def test_fish_knows_the_options(command):
    expected = set()
    for part in own_and_global_options(command):
        for letter, name in part:
            expected |= {f"--{name}"} | ({f"-{letter}"} if letter else set())
    assert fish_options(command) == expected
    assert re.search(rf"-a {command} -d", read("holdfast.fish"))


@pytest.mark.parametrize("shell, name", [("bash", "holdfast.bash"), ("zsh", "_holdfast"),
                                         ("fish", "holdfast.fish")])
def test_shells_can_read_them(shell, name):
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    assert run(shell, "-n", os.path.join(COMPLETIONS, name)).returncode == 0


@pytest.mark.skipif(not shutil.which("fish"), reason="fish is not installed")
def test_fish_completes(tmp_path):
    script = f"source {shlex.quote(COMPLETIONS)}/holdfast.fish; complete -C 'holdfast st'; complete -C 'holdfast list --s'"
    done = run("fish", "--no-config", "-c", script, env={**os.environ, "HOME": str(tmp_path)})
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == [
        "start", "status", "--stale", "--store"]
