"""The YAML of workflows: a bad file is refused whole, with file, line, setting and what was expected."""
import os
import re

import pytest

pytestmark = pytest.mark.stores("sqlite")

GOOD = """
workflows:
  everything:
    command: [sh, -c, 'echo "$MODE $1"', sh, live]
    ttl: 10m
    timeout: 5m
    overlap: reject
    queue-limit: 100
    concurrency: 1
    rate: 10/s
    retries: 3
    retry-backoff: 5s
    on-lost: verify
    verify: [/srv/flows/was-it-done]
    lock: "{workflow}/{key}"
    schedule: "*/5 * * * *"
    time-zone: Europe/Oslo
    jitter: 10s
    catch-up: last
    keep: 7d
    keep-count: 1000
    key-path: $.id
    secret-files: [/etc/holdfast/stripe.secret]
    cwd: /
    env: {MODE: really}
  small: {command: ["true"]}
"""

# What the file says, the line of the error, and what the error says.
BAD = {
    "empty": ("", 1, "expected `workflows:`"),
    "a list": ("- a", 1, "expected `workflows:`, not a list"),
    "no yaml": ("workflows: [", 2, ""),
    "a tab": ("workflows:\n\ta: b", 2, "cannot start any token"),
    "another top": ("workflow:\n  a: {command: [x]}", 1, "workflow: there is no such setting; did you mean workflows?"),
    "no command": ("workflows:\n  a:\n    ttl: 5s", 2, "a: needs a command"),
    "a shell string": ("workflows:\n  a:\n    command: echo hi", 3, "a.command: expected a list"),
    "an empty list": ("workflows:\n  a: {command: []}", 2, "a.command: expected a list of 1 to"),
    "an empty program": ("workflows:\n  a: {command: ['']}", 2, "a.command: the first text of the list is empty"),
    "nested": ("workflows:\n  a: {command: [[x]]}", 2, "a.command: expected a text, not a list"),
    "an unknown key": ("workflows:\n  a:\n    command: [x]\n    tll: 5s", 4, "a.tll: there is no such setting; did you mean ttl?"),
    "a strange key": ("workflows:\n  a:\n    command: [x]\n    colour: red", 4, "a.colour: there is no such setting"),
    "twice": ("workflows:\n  a:\n    command: [x]\n    ttl: 5s\n    ttl: 6s", 5, "a.ttl: is given twice"),
    "a workflow twice": ("workflows:\n  a: {command: [x]}\n  a: {command: [y]}", 3, "'a' is there twice"),
    "a bad duration": ("workflows:\n  a:\n    command: [x]\n    ttl: soon", 4, "a.ttl: "),
    "a short ttl": ("workflows:\n  a:\n    command: [x]\n    ttl: 5ms", 4, "a.ttl: '5ms' is out of bounds"),
    "a bad rate": ("workflows:\n  a:\n    command: [x]\n    rate: fast", 4, "a.rate: 'fast' is no rate: expected 1 to"),
    "a bad choice": ("workflows:\n  a:\n    command: [x]\n    overlap: maybe", 4, "a.overlap: 'maybe' is none of reject, queue"),
    "a bad number": ("workflows:\n  a:\n    command: [x]\n    retries: -1", 4, "a.retries: '-1' is not a whole number from 0"),
    "a mapping for a text": ("workflows:\n  a:\n    command: [x]\n    cwd: {}", 4, "a.cwd: expected a text, not a mapping"),
    "a relative cwd": ("workflows:\n  a:\n    command: [x]\n    cwd: here", 2, "a: cwd must be an absolute path"),
    "a bad template": ("workflows:\n  a:\n    command: [x]\n    lock: '{nme}'", 4, "a.lock: {nme} is not known"),
    "a bad path": ("workflows:\n  a:\n    command: [x]\n    key-path: id", 4, "a.key-path: 'id' is not a path"),
    "a wildcard": ("workflows:\n  a:\n    command: [x]\n    key-path: $.a[*]", 4, "a.key-path: '$.a[*]' is not a path"),
    "a whole body": ("workflows:\n  a:\n    command: [x]\n    key-path: $", 4, "a.key-path: "),
    "a lone brace": ("workflows:\n  a:\n    command: [x]\n    lock: 'a{key'", 4, "a.lock: "),
    "verify without": ("workflows:\n  a:\n    command: [x]\n    on-lost: verify", 2, "a: on-lost: verify needs verify"),
    "a bad schedule": ("workflows:\n  a:\n    command: [x]\n    schedule: '61 * * * *'", 4, "a.schedule: the minute '61' is not understood; expected 0-59"),
    "four fields": ("workflows:\n  a:\n    command: [x]\n    schedule: '* * * *'", 4, "a.schedule: '* * * *' has 4 fields; expected five"),
    "a date that never comes": ("workflows:\n  a:\n    command: [x]\n    schedule: 0 0 30 2 *", 4, "a.schedule: '0 0 30 2 *' never comes"),
    "a bad zone": ("workflows:\n  a:\n    command: [x]\n    time-zone: Europe/Olso", 4, "a.time-zone: there is no time zone 'Europe/Olso'; did you mean Europe/Oslo?"),
    "a zone that leads away": ("workflows:\n  a:\n    command: [x]\n    time-zone: ../../../etc/hostname", 4, "a.time-zone: there is no time zone"),
    "a schedule without its input": ("workflows:\n  a:\n    command: [x]\n    schedule: '@daily'\n    lock: '{input.id}'", 2, "a: what is started by its schedule has no input"),
    "a short keep": ("workflows:\n  a:\n    command: [x]\n    keep: 0", 4, "a.keep: '0' is out of bounds"),
    "none to keep": ("workflows:\n  a:\n    command: [x]\n    keep-count: 0", 4, "a.keep-count: '0' is not a whole number from 1 to 1000000"),
    "our variable": ("workflows:\n  a:\n    command: [x]\n    env: {HOLDFAST_X: 1}", 4, "a.env: HOLDFAST_X"),
    "a bad name": ("workflows:\n  ' a': {command: [x]}", 2, "the name of a workflow"),
    "no workflow at all": ("workflows: 7", 1, "expected a mapping from names"),
}


def test_everything_that_is_documented_is_understood(hf, tmp_path):
    path = tmp_path / "good.yaml"
    path.write_text(GOOD)
    done = hf("start", "--config", path, "everything", "--key", "k")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "really live\n"
    assert hf("start", "--config", path, "small").returncode == 0


def test_every_setting_is_in_the_man_page_and_the_test():
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    with open(os.path.join(root, "src", "runner", "workflows.c")) as file:
        table = file.read().split("settings[] = {")[1].split("};")[0]
    with open(os.path.join(root, "man", "holdfast-workflows.5")) as file:
        documented = set(re.findall(r"^\.It Ic (\S+)", file.read(), re.M))
    names = set(re.findall(r'{"([a-z-]+)",', table))
    assert documented == names
    assert names - {"user"} == set(re.findall(r"^    ([a-z-]+):", GOOD, re.M))


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused_with_where_and_what(hf, tmp_path, name):
    text, line, said = BAD[name]
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    done = hf("start", "--config", path, "a")
    assert done.returncode == 65
    assert done.stderr.startswith(f"holdfast: {path}:{line}: "), done.stderr
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_where_the_file_is(hf, tmp_path):
    missing = hf("start", "a")
    assert missing.returncode == 65 and "/etc/holdfast/holdfast.yaml" in missing.stderr
    (tmp_path / "one.yaml").write_text("workflows: {a: {command: [echo, one]}}")
    (tmp_path / "two.yaml").write_text("workflows: {a: {command: [echo, two]}}")
    env = {"HOLDFAST_CONFIG": str(tmp_path / "one.yaml")}
    assert hf("start", "a", env=env).stdout == "one\n"
    assert hf("start", "--config", tmp_path / "two.yaml", "a", env=env).stdout == "two\n"
    assert hf("start", "--config", tmp_path, "a").returncode == 65


def test_aliases_that_grow_are_no_bomb(hf, tmp_path):
    levels = ["a0: &a0 [x, x]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 20)]
    (tmp_path / "bomb.yaml").write_text("\n".join(levels))
    done = hf("start", "--config", tmp_path / "bomb.yaml", "a", timeout=30)
    assert done.returncode == 65
