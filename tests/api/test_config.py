"""The service's configuration: what is refused, what is read again, and what must not be freed meanwhile."""
import os
import re
import signal
import threading

import pytest

from api_helpers import Service, api  # noqa: F401
from conftest import poll
from hooks import Hooks, post_together

GOOD = "workflows: {hello: {command: ['true'], overlap: queue, queue-limit: 1000000}}"


def write(api, text, name="flows.yaml"):
    path = api.tmp_path / name
    path.write_text(text)
    return path


def status_of(service, workflow):
    return service.ask("POST", f"/api/webhooks/{workflow}", b"").status


# ---- at the start -----------------------------------------------------------------------------


def test_without_a_configuration_there_are_no_workflows(api):
    if os.path.exists("/etc/holdfast/holdfast.yaml"):
        pytest.skip("this machine has a configuration of its own")
    service = Service(api)
    assert status_of(service, "hello") == 404
    service.process.send_signal(signal.SIGHUP)
    poll(lambda: service.logged("reloaded"))
    assert service.get("/healthz").ok()


def test_which_file_it_is(api):
    write(api, GOOD, "one.yaml")
    write(api, GOOD.replace("hello", "two"), "two.yaml")
    env = {"HOLDFAST_CONFIG": f"{api.tmp_path}/one.yaml"}
    service = Service(api, "--no-work", env=env)
    assert (status_of(service, "hello"), status_of(service, "two")) == (200, 404)
    service = Service(api, "--no-work", "--config", f"{api.tmp_path}/two.yaml", env=env)
    assert (status_of(service, "hello"), status_of(service, "two")) == (404, 200)


@pytest.mark.parametrize("text, line, says", [
    ("workflows:\n  a:\n    command: [x]\n    key-path: id", 4, "a.key-path"),
    ("workflows:\n  a:\n    command: [x]\n    tll: 5s", 4, "did you mean ttl?"),
    ("workflows:\n  a:\n    command: [x]\n    secret-files: [/nonexistent/secret]", 4, "a.secret-files: can't read /nonexistent/secret"),
    ("workflows:\n  a:\n    command: [x]\n    secret-files: [/dev/null]", 4, "a.secret-files: can't read /dev/null"),
    ("workflows:\n  a:\n    command: [x]\n    secret-files: [EMPTY]", 4, "a secret has 1 to 4096 bytes"),
    ("workflows:\n  a:\n    command: [x]\n\n    secret-files: [" + "SECRET, " * 33 + "]", 5, "at most 32")])
def test_a_bad_file_is_refused_with_where_and_what(api, text, line, says):
    for name, content in (("EMPTY", "\n"), ("SECRET", "x")):
        text = text.replace(name, str(write(api, content, name)))
    path = write(api, text)
    done = api("serve", "--listen", "127.0.0.1:0", "--config", path)
    assert done.returncode == 65
    refusal = done.stderr.splitlines()[-1]
    assert refusal.startswith(f"holdfast: {path}:{line}: ") and says in refusal, done.stderr


def test_a_named_file_must_be_there(api):
    for how in ({"env": {"HOLDFAST_CONFIG": "/nonexistent.yaml"}}, {}):
        named = [] if how else ["--config", "/nonexistent.yaml"]
        done = api("serve", "--listen", "127.0.0.1:0", *named, **how)
        assert done.returncode == 65 and "/nonexistent.yaml" in done.stderr


def test_a_secret_that_everybody_can_read_is_warned_about(api):
    secret = write(api, "s3cret", "secret")
    path = write(api, f"workflows: {{a: {{command: ['true'], secret-files: [{secret}]}}}}")
    secret.chmod(0o644)
    service = Service(api, "--no-work", "--config", path)
    assert str(secret) in service.logged("warning")
    service.stop()
    secret.chmod(0o600)
    service = Service(api, "--no-work", "--config", path)
    service.stop()
    assert not service.logged("warning")
    assert not any("s3cret" in line for line in service.log)


# ---- again ------------------------------------------------------------------------------------


def test_hangup_reads_it_again_and_a_bad_one_changes_nothing(api):
    path = write(api, GOOD)
    service = Service(api, "--no-work", "--config", path)

    def reload(event):
        before = len(service.log)
        service.process.send_signal(signal.SIGHUP)
        return poll(lambda: next((line for line in service.log[before:] if f"event={event}" in line), None))

    write(api, GOOD + "\n")
    write(api, "workflows:\n  hello: {command: ['true'], overlap: queue}\n  more: {command: ['true']}\n")
    assert "workflows=2" in reload("reloaded")
    assert (status_of(service, "hello"), status_of(service, "more")) == (200, 200)
    write(api, "workflows:\n  hello: {command: ['true']}\n  other:\n    comand: ['true']\n")
    said = reload("reload-failed")
    assert f"file={path} line=4" in said and "other.comand" in said and "did you mean command?" in said
    assert (status_of(service, "hello"), status_of(service, "other")) == (200, 404)
    os.unlink(path)
    assert f"file={path}" in reload("reload-failed")
    assert status_of(service, "hello") == 200
    write(api, "workflows:\n  other: {command: ['true']}\n")
    assert "workflows=1" in reload("reloaded")
    assert (status_of(service, "hello"), status_of(service, "other")) == (404, 200)


def test_requests_in_flight_keep_what_they_began_with(api):
    """For the sanitizers: the old configuration is in use while it is replaced, over and over."""
    secret = write(api, "s3cret", "secret")
    secret.chmod(0o600)
    flow = {"command": ["true"], "overlap": "queue", "queue-limit": 1000000, "key-path": "$.id", "lock": "{workflow}/{input.id}"}
    hooks = Hooks(api, pay=flow, signed={"command": ["true"], "secret-files": [str(secret)]})
    waiting = [hooks.later("pay", b'{"id":"w%d"}' % i, {"Prefer": "wait=300"}) for i in range(20)]
    over = threading.Event()

    def hang_up():
        while not over.wait(0.003):
            hooks.service.process.send_signal(signal.SIGHUP)

    thread = threading.Thread(target=hang_up)
    thread.start()
    try:
        for n in range(3):
            answers = post_together(hooks.service.port, "/api/webhooks/pay", [({}, b'{"id":"%d-%d"}' % (n, i)) for i in range(200)])
            assert {status for status, _ in answers} == {200}
            answers = post_together(hooks.service.port, "/api/webhooks/signed", [({}, b"")] * 50)
            assert {status for status, _ in answers} == {401}
    finally:
        over.set()
        thread.join()
    assert len([line for line in hooks.service.log if "event=reloaded" in line]) > 10
    hooks.service.stop()
    assert {w.join().ok()["state"] for w in waiting} == {"PENDING"}


def test_the_description_of_options(api):
    text = api.ok("serve", "--help")
    assert re.search(r"--config FILE", text) and re.search(r"--max-body N", text)
