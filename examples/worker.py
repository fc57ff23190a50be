#!/usr/bin/env python3
"""A worker in Python that needs nothing but its standard library: it claims executions through Holdfast's service and runs a
command for each, whose stdin is the input.

    worker.py --url http://localhost:7480 --workflow resize -- ./resize.sh

What a worker must do, in whatever language:

* Say `spawned` just before it starts, and not start where the answer says `cancelRequested`: whatever is lost before that is
  claimed again, whatever is lost after it is not repeated unless the execution was made with "onLost": "retry".
* Renew the lease (heartbeat) well before it runs out, and count that time from when the request was *sent*.
* Stop before that time where no renewal has come through, and at once where the answer is LEASE_LOST.
* Tell how it ended. Where no answer comes, tell it again: the same finish twice is one finish.
"""
import argparse
import base64
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

KEPT = 64 * 1024  # bytes of the beginning of the output, and as many of its end


class Lost(Exception):
    """The lease is not ours any more."""


class Service:
    def __init__(self, url):
        self.url = url.rstrip("/") + "/v1/executions/"

    def ask(self, path, body=None, timeout=10):
        """The answer's bytes. OSError: there was none, or none that is of use; Lost: LEASE_LOST."""
        request = urllib.request.Request(self.url + path, None if body is None else json.dumps(body).encode())
        request.add_header("Content-Type", "application/json")
        if "HOLDFAST_API_TOKEN" in os.environ:
            request.add_header("Authorization", "Bearer " + os.environ["HOLDFAST_API_TOKEN"])
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return answer.read()
        except urllib.error.HTTPError as problem:
            code = json.loads(problem.read() or b"{}").get("code")
            if code == "LEASE_LOST":
                raise Lost() from None
            if problem.code < 500:
                sys.exit(f"worker: {path}: {code}")  # we asked for something that can't be done
            raise

    def claim(self, workflows, ttl_ms, wait_ms):
        body = {"worker": f"{os.uname().nodename}/{os.getpid()}", "ttlMs": ttl_ms, "waitMs": wait_ms, "spawned": False}
        if workflows:
            body["workflows"] = workflows
        items = json.loads(self.ask("claim", body, timeout=10 + wait_ms / 1000))["items"]
        return items[0] if items else None


class Execution:
    """One that was claimed, until it is finished."""

    def __init__(self, service, claimed, ttl_s):
        self.service, self.ttl_s = service, ttl_s
        self.id, self.lease = claimed["id"], {"token": claimed["token"], "fence": claimed["fence"]}
        self.deadline = 0.0
        self.cancelled = self.lost = False

    def beat(self, **more):
        sent = time.monotonic()
        answer = json.loads(self.service.ask(self.id + "/heartbeat", {**self.lease, **more}, timeout=self.ttl_s / 3))
        self.deadline = sent + self.ttl_s * 0.9
        self.cancelled = self.cancelled or answer["cancelRequested"]

    def finish(self, state, **more):
        """Until it is told: a service that is away comes back."""
        pause = 0.1
        while True:
            try:
                self.service.ask(self.id + "/finish", {**self.lease, "state": state, **more})
                return print(f"worker: {self.id} {state}", flush=True)
            except Lost:
                return print(f"worker: {self.id} was lost", flush=True)
            except OSError:
                time.sleep(pause)
                pause = min(2 * pause, 5)

    def watch(self, process):
        """Renew until the command ends; end it where it must not go on."""
        while process.poll() is None:
            try:
                process.wait(timeout=min(1, self.ttl_s / 3))
                return
            except subprocess.TimeoutExpired:
                pass
            try:
                self.beat()
            except Lost:
                self.lost = True
            except OSError:
                self.lost = time.monotonic() > self.deadline - self.ttl_s / 3
            if self.lost or self.cancelled:
                os.killpg(process.pid, signal.SIGKILL)

    def read_input(self, claimed):
        if claimed["input"] is None:  # it is too large to come with the claim
            return self.service.ask(self.id + "/input", timeout=60)
        text = claimed["input"].encode()
        return base64.b64decode(text) if claimed["inputEncoding"] == "base64" else text

    def run(self, claimed, command):
        try:
            stdin_bytes = self.read_input(claimed)
            self.beat(spawned=True)
        except (Lost, OSError):
            return  # it was not started: whoever claims it next does
        if self.cancelled:
            return self.finish("ABORTED", reason="cancelled")
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as stdin:
            stdin.write(stdin_bytes)
            stdin.seek(0)
            process = subprocess.Popen(command, stdin=stdin, stdout=output, stderr=output, start_new_session=True,
                                       env={**os.environ, "HOLDFAST_EXECUTION": self.id, "HOLDFAST_FENCE": str(self.lease["fence"])})
            self.watch(process)
            code = process.wait()
            printed = read_output(output)
        if self.lost:
            print(f"worker: {self.id} was lost", flush=True)
        elif self.cancelled:
            self.finish("ABORTED", reason="cancelled", **printed)
        else:
            self.finish("SUCCESS" if code == 0 else "FAILED", exitCode=code if code >= 0 else 128 - code, **printed)


def read_output(file):
    """The head and the tail of it, and how much lies between them."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    head = file.read(KEPT)
    file.seek(max(KEPT, size - KEPT))
    tail = file.read()
    return {"outputBase64": base64.b64encode(head).decode(), "outputTailBase64": base64.b64encode(tail).decode(),
            "outputSkipped": size - len(head) - len(tail)}


def main():
    parser = argparse.ArgumentParser(description="Claim executions and run a command for each.")
    parser.add_argument("--url", default="http://localhost:7480")
    parser.add_argument("--workflow", action="append", default=[])
    parser.add_argument("--ttl", type=float, default=30, help="seconds")
    parser.add_argument("--drain", action="store_true", help="end when there is nothing more to do")
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())  # the one that runs is finished first
    service = Service(args.url)
    while not stop.is_set():
        try:
            claimed = service.claim(args.workflow, int(args.ttl * 1000), 0 if args.drain else 20000)
        except OSError as problem:
            print(f"worker: {args.url}: {problem}", file=sys.stderr, flush=True)
            stop.wait(1)
            continue
        if claimed:
            Execution(service, claimed, args.ttl).run(claimed, args.command)
        elif args.drain:
            return


if __name__ == "__main__":
    main()
