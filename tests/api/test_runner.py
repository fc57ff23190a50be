"""The service's runner: the process in which what webhooks and schedules record is run."""
import os
import re
import signal

import pytest

from api_helpers import Service, api, on_each_engine  # noqa: F401
from conftest import PATIENCE_S, poll
from processes import is_alive
from workflows import Workflows, sh

pytestmark = pytest.mark.usefixtures("api")


class Running:
    """A service that runs what its webhooks record."""

    def __init__(self, hf, *options, **workflows):
        self.hf = hf
        self.flows = Workflows(hf, **workflows)
        self.service = Service(hf, *options)

    def post(self, workflow, body=b"", **headers):
        return self.service.ask("POST", f"/api/webhooks/{workflow}", body, headers=headers).ok()["executionId"]

    def runners(self):
        return [int(pid) for line in list(self.service.log) for pid in re.findall(r"event=runner-started pid=(\d+)", line)]

    def runner(self, n=1):
        """The pid of the n-th, once it works."""
        poll(lambda: sum("event=working" in line for line in list(self.service.log)) >= n)
        return self.runners()[n - 1]

    def ends(self, execution_id, *states):
        return self.flows.wait_for(execution_id, *states)


@on_each_engine
def test_what_a_webhook_records_is_run(api):
    on = Running(api, pay=sh("tr a-z A-Z"))
    x = on.ends(on.post("pay", b"the input"), "SUCCESS")
    assert api.ok("log", x["id"]) == "THE INPUT"
    waited = on.service.ask("POST", "/api/webhooks/pay", b"again", headers={"Prefer": "wait=60"}).ok()
    assert (waited["state"], waited["output"]) == ("SUCCESS", "AGAIN")
    on.service.stop()
    assert not is_alive(on.runner())


def test_it_has_what_the_service_was_given(api):
    """Its limits, signals and environment, not what the service has made of them."""
    script = "ulimit -Sn; grep SigBlk /proc/self/status; grep SigIgn /proc/self/status; env"
    on = Running(api, pay=sh(script))
    with_service = api.ok("log", on.ends(on.post("pay"), "SUCCESS")["id"]).splitlines()
    on.service.stop()
    api.ok("schedule", "pay", "--in", "0s")
    assert api("work", "--max", "1").returncode == 0
    with_worker = api.ok("log", on.flows.all("--limit", "1")[0]["id"]).splitlines()
    assert with_service[:3] == with_worker[:3]
    own = re.compile(r"HOLDFAST_(EXECUTION|TOKEN|FENCE|OWNER|KEY|ATTEMPT)=|_=|LISTEN_|SHLVL=")

    def kept(lines):
        return sorted(line for line in lines[3:] if not own.match(line))

    assert kept(with_service) == kept(with_worker)


def test_the_url_of_the_store_is_not_on_its_command_line(api):
    on = Running(api, pay=sh("true"))
    with open(f"/proc/{on.runner()}/cmdline") as file:
        assert api.url not in file.read()


def test_no_work(api):
    on = Running(api, "--no-work", pay=sh("true"))
    id = on.post("pay")
    assert on.service.get("/healthz").ok()
    assert on.runners() == [] and on.flows.show(id)["state"] == "PENDING"
    assert api("work", "--drain").returncode == 0
    assert on.flows.show(id)["state"] == "SUCCESS"


def test_no_runner_where_nothing_could_be_run(api):
    service = Service(api)
    path = api.tmp_path / "flows.yaml"
    path.write_text("workflows: {pay: {command: ['true']}}")
    only_locks = Service(api, "--store", f"file:{api.tmp_path}/locks", "--config", path)
    for each in (service, only_locks):
        assert each.get("/healthz").ok()
        each.stop()
        assert not each.logged("runner-started")


@on_each_engine
def test_a_runner_that_is_killed_is_started_again(api):
    on = Running(api, aborts=sh("exec sleep 1000", ttl="30s"), retries=sh('test "$HOLDFAST_ATTEMPT" = 2 || exec sleep 1000', **{"on-lost": "retry"}))
    first = on.runner()
    ids = [on.post("aborts"), on.post("retries")]
    poll(lambda: all(on.flows.show(id)["state"] == "RUNNING" for id in ids))
    os.kill(first, signal.SIGKILL)
    second = on.runner(2)
    assert second != first and "killed by signal 9" in on.service.logged("runner-ended")
    assert on.ends(ids[0], "ABORTED")["attempt"] == 1
    assert on.ends(ids[1], "SUCCESS")["attempt"] == 2
    on.service.stop()
    assert not is_alive(second)


def test_a_runner_that_can_not_start_is_tried_again(api):
    """The service goes on with what it has read; the runner reads the file anew each time."""
    on = Running(api, pay=sh("true"))
    good = on.flows.path.read_text()
    first = on.runner()
    on.flows.path.write_text("workflows: [")
    os.kill(first, signal.SIGKILL)
    poll(lambda: len(on.runners()) >= 3)
    id = on.post("pay")
    on.flows.path.write_text(good)
    on.ends(id, "SUCCESS")


def test_stopping_lets_commands_end(api):
    go = api.tmp_path / "go"
    on = Running(api, "--grace", "60s", pay=sh(f"until test -e {go}; do sleep 0.05; done; echo done"), later=sh("true"))
    runner = on.runner()
    id = on.post("pay")
    poll(lambda: on.flows.show(id)["state"] == "RUNNING")
    on.service.process.send_signal(signal.SIGTERM)
    poll(lambda: sum("event=stopping" in line for line in list(on.service.log)) == 2)
    api.ok("schedule", "later", "--in", "0s")
    assert on.service.process.poll() is None
    go.touch()
    assert on.service.process.wait(timeout=PATIENCE_S) == 0
    assert not is_alive(runner)
    x = on.flows.show(id)
    assert (x["state"], x["exitCode"]) == ("SUCCESS", 0)
    assert on.flows.only("later")["state"] == "PENDING"


@pytest.mark.parametrize("how", ["the grace is over", "the same signal again"])
def test_stopping_ends_commands(api, how):
    on = Running(api, "--grace", "100ms" if how == "the grace is over" else "1h", pay=sh("exec sleep 1000"))
    on.runner()
    id = on.post("pay")
    poll(lambda: on.flows.show(id)["state"] == "RUNNING")
    on.service.process.send_signal(signal.SIGTERM)
    if how != "the grace is over":
        poll(lambda: sum("event=stopping" in line for line in list(on.service.log)) == 2)
        on.service.process.send_signal(signal.SIGTERM)
    assert on.service.process.wait(timeout=PATIENCE_S) == 0
    x = on.flows.show(id)
    assert (x["state"], x["reason"]) == ("ABORTED", "its worker was stopped")


def test_a_service_that_is_killed_takes_its_runner_along(api):
    go = api.tmp_path / "go"
    on = Running(api, "--grace", "60s", pay=sh(f"until test -e {go}; do sleep 0.05; done"))
    runner = on.runner()
    id = on.post("pay")
    poll(lambda: on.flows.show(id)["state"] == "RUNNING")
    on.service.process.kill()
    on.service.process.wait()
    poll(lambda: on.service.logged("stopping"))
    # Another one may be there by now: neither disturbs the other.
    again = Service(api)
    go.touch()
    on.ends(id, "SUCCESS")
    poll(lambda: not is_alive(runner))
    assert again.ask("POST", "/api/webhooks/pay", b"", headers={"Prefer": "wait=60"}).ok()["state"] == "SUCCESS"


def test_the_first_workflows_come_with_a_reload(api):
    path = api.tmp_path / "flows.yaml"
    path.write_text("workflows: {}")
    service = Service(api, "--config", path)
    assert not service.logged("runner-started")
    path.write_text("workflows: {pay: {command: ['true']}}")
    service.process.send_signal(signal.SIGHUP)
    poll(lambda: service.logged("working"))
    wait = {"Prefer": "wait=60"}
    assert service.ask("POST", "/api/webhooks/pay", b"", headers=wait).ok()["state"] == "SUCCESS"
    # What changes later reaches the runner, too.
    path.write_text("workflows: {two: {command: ['true']}}")
    service.process.send_signal(signal.SIGHUP)
    poll(lambda: service.ask("POST", "/api/webhooks/two", b"", headers=wait).status == 200)
    poll(lambda: sum("event=reloaded" in line for line in list(service.log)) == 3)
    assert service.ask("POST", "/api/webhooks/two", b"", headers=wait).ok()["state"] == "SUCCESS"
    assert sum("event=runner-started" in line for line in service.log) == 1
