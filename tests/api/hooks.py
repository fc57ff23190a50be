"""Webhooks for tests: workflows, the service that has them, and who runs what they start.

    hooks = Hooks(hf, pay={"command": ["cat"]})
    hooks.post("pay", b"the input", {"Idempotency-Key": "e1"}).ok()["executionId"]
    hooks.run("pay", "e1", b"the input")          # takes it up and runs it to its end
"""
import resource
import socket

from api_helpers import Later, Service, quoted
from conftest import PATIENCE_S
from workflows import Workflows


class Hooks:
    def __init__(self, hf, *options, **workflows):
        self.hf = hf
        self.flows = Workflows(hf, **workflows)
        self.service = Service(hf, "--no-work", *options)

    def post(self, workflow, body=b"", headers=None, **options):
        return self.service.ask("POST", f"/api/webhooks/{quoted(workflow)}", body, headers=headers, **options)

    def later(self, *args, **options):
        return Later(lambda: self.post(*args, **options))

    def input_file(self, body):
        path = self.hf.tmp_path / "input"
        path.write_bytes(body)
        return path

    def run(self, workflow, key, body=b"", **options):
        """Take up the PENDING execution with this key, as a worker would, and run it to its end."""
        return self.flows.start(workflow, "--key", key, "--input", self.input_file(body), **options)

    def begin(self, workflow, key, body=b""):
        """The same, in the background: (its process, the execution's id) once it runs."""
        process = self.hf.start("start", workflow, "--key", key, "--input", self.input_file(body))
        return process, self.flows.running(workflow)

    def states(self, workflow):
        return sorted(x["state"] for x in self.flows.all("--workflow", workflow, "--limit", "10000"))


def post_together(port, path, messages):
    """One connection for each (headers, body); all are open before the first is sent. Answers: (status, body)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    sockets = [socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) for _ in messages]
    answers = []
    try:
        for s, (headers, body) in zip(sockets, messages):
            lines = "".join(f"{k}: {v}\r\n" for k, v in headers.items())
            s.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{lines}"
                      f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        for s in sockets:
            answer = b""
            while chunk := s.recv(65536):
                answer += chunk
            head, _, body = answer.partition(b"\r\n\r\n")
            answers.append((int(head.split(b" ", 2)[1]), body))
    finally:
        for s in sockets:
            s.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return answers
