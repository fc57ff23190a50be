"""The workers of examples/, in Python and in shell: they claim, renew and finish through HTTP alone."""
import signal
import sys
import time

import pytest

from api_helpers import Service, api, service  # noqa: F401
from conftest import PATIENCE_S, ROOT, marked_processes, poll
from processes import is_alive
from test_http_executions import at, begin, create, state_of

PYTHON, SHELL = "python", "shell"
both = pytest.mark.parametrize("language", [PYTHON, SHELL])


class Worker:
    """One of them, for the workflow `work`."""

    def __init__(self, service, language, script, drain=False, ttl=30):
        url = f"http://127.0.0.1:{service.port}"
        if language == PYTHON:
            argv = [sys.executable, f"{ROOT}/examples/worker.py", "--url", url, "--workflow", "work", "--ttl", str(ttl)]
            argv += ["--drain"] * drain + ["--", "sh", "-c", script]
        else:
            argv = ["sh", f"{ROOT}/examples/worker.sh", url, "work", "sh", "-c", script]
        env = {"DRAIN": "1"} if drain else {}
        if service.token:
            env["HOLDFAST_API_TOKEN"] = service.token
        self.process = service.hf.start_program(argv, env=env)

    def end(self):
        out, err = self.process.communicate(timeout=PATIENCE_S)
        assert self.process.returncode == 0, err
        return out


def make(service, i=0, **body):
    return create(service, "work", lock=f"work/{i}", **body)


@both
def test_each_item_is_run_once(service, tmp_path, language):
    made = [make(service, i, input=f"item {i}") for i in range(12)]
    workers = [Worker(service, language, f"item=$(cat); echo \"$item\" >>{tmp_path}/ran; echo done", drain=True) for _ in range(3)]
    assert sum(w.end().count("SUCCESS") for w in workers) == 12
    ran = (tmp_path / "ran").read_text().split("\n")
    assert sorted(line for line in ran if line) == sorted(f'"item {i}"' for i in range(12))
    for x in made:
        whole = service.get(at(x)).ok()
        assert whole["state"] == "SUCCESS" and whole["attempt"] == 1 and "done\n" in whole["output"] + whole["outputTail"]
        assert whole["owner"]


@both
def test_exit_codes_and_long_output(service, language):
    bad = make(service)
    Worker(service, language, "head -c 300000 /dev/zero | tr '\\0' x; echo the end; exit 7", drain=True).end()
    whole = service.get(at(bad)).ok()
    assert (whole["state"], whole["exitCode"]) == ("FAILED", 7)
    assert whole["outputTail"].endswith("x the end\n".replace(" ", "", 1))
    assert len(whole["output"]) + len(whole["outputTail"]) + whole["outputSkipped"] == 300008


@both
def test_any_bytes_are_the_input(service, tmp_path, language):
    import base64
    blob = bytes(range(256)) * 8192
    make(service, inputBase64=base64.b64encode(blob).decode())
    Worker(service, language, f"cat >{tmp_path}/in", drain=True).end()
    assert (tmp_path / "in").read_bytes() == blob


@both
def test_cancel_ends_the_command(service, language):
    x = make(service)
    worker = Worker(service, language, "echo begun; sleep 1000 & sleep 1000")
    poll(lambda: state_of(service, x) == "RUNNING" and service.get(at(x)).ok()["spawned"])
    service.post(at(x, "/cancel")).ok()
    poll(lambda: state_of(service, x) == "ABORTED")
    assert service.get(at(x)).ok()["reason"] == "cancelled"
    assert worker.process.poll() is None  # and the worker goes on
    y = make(service, 1)
    poll(lambda: state_of(service, y) == "RUNNING")


@both
def test_a_lease_that_is_taken_away(service, tmp_path, language):
    x = make(service)
    Worker(service, language, f"echo $$ >{tmp_path}/pid; exec sleep 1000")
    poll(lambda: state_of(service, x) == "RUNNING" and (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip())
    pid = int((tmp_path / "pid").read_text())
    service.post("/v1/locks/work%2F0/force-release", {"fence": service.get(at(x)).ok()["fence"], "reason": "test"}).ok()
    poll(lambda: not is_alive(pid))
    assert state_of(service, x) == "ABORTED"


@both
def test_a_service_that_starts_again_meanwhile(service, tmp_path, language):
    x = make(service)
    Worker(service, language, f"until [ -e {tmp_path}/go ]; do sleep 0.05; done; echo survived")
    poll(lambda: state_of(service, x) == "RUNNING" and service.get(at(x)).ok()["spawned"])
    service.kill()
    (tmp_path / "go").touch()
    time.sleep(0.5)  # it can't tell anybody
    service.start()
    poll(lambda: state_of(service, x) == "SUCCESS")
    assert "survived" in service.get(at(x, "/log")).body


def test_a_worker_that_is_killed_before_it_starts_anything_loses_nothing(service):
    """Between claim and spawned: claimed again. After it: ABORTED, as nobody knows what was done."""
    not_started = begin(service, "work", spawned=False, ttlMs=200, lock="work/0").ok(201)
    x = make(service, 1)
    worker = Worker(service, PYTHON, "sleep 1000", ttl=1)
    poll(lambda: service.get(at(x)).ok()["spawned"])
    worker.process.kill()

    def swept():
        service.post("/v1/sweep").ok()
        return state_of(service, x) == "ABORTED"

    poll(swept)
    assert state_of(service, not_started) == "PENDING"
    Worker(service, PYTHON, "true", drain=True).end()
    assert state_of(service, not_started) == "SUCCESS"


def test_a_service_that_stays_away_ends_the_command(service, tmp_path):
    make(service)
    Worker(service, PYTHON, f"echo $$ >{tmp_path}/pid; exec sleep 1000", ttl=3)
    poll(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip())
    service.process.send_signal(signal.SIGSTOP)
    pid = int((tmp_path / "pid").read_text())
    poll(lambda: not is_alive(pid))
    service.process.send_signal(signal.SIGCONT)


@both
def test_with_a_token(api, language):
    token = api.json("token", "create", "--allow", "executions:read,executions:write,executions:work", "--prefix", "work")["token"]
    service = Service(api, "--require-token")
    service.token = token
    x = make(service)
    Worker(service, language, "true", drain=True).end()
    assert state_of(service, x) == "SUCCESS"


def test_sigterm_lets_the_one_that_runs_end(service, tmp_path):
    x = make(service)
    worker = Worker(service, PYTHON, f"until [ -e {tmp_path}/go ]; do sleep 0.05; done")
    poll(lambda: service.get(at(x)).ok()["spawned"])
    worker.process.terminate()
    (tmp_path / "go").touch()
    assert "SUCCESS" in worker.end()
    assert not [p for p in marked_processes(service.hf.mark) if p == worker.process.pid]
