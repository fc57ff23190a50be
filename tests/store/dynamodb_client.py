"""The store's calls to DynamoDB, one at a time: build/tests/dynamodb_call."""
import json
import os
import subprocess

from conftest import PATIENCE_S, built

FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"


class Client:
    """One process, and so one handle. Nothing that it says may have a secret of `aws` in it."""

    def __init__(self, aws, home, url=None, prefix=(), **env):
        self.aws = aws
        url = url or f"dynamodb://eu-west-1/locks?endpoint={aws.url}"
        base = {k: v for k, v in os.environ.items() if not k.startswith("AWS_") and not k.lower().endswith("_proxy")}
        base.update(HOME=str(home), AWS_EC2_METADATA_DISABLED="true")
        base.update({k: str(v) for k, v in env.items()})
        self.process = subprocess.Popen([*prefix, built("tests", "dynamodb_call"), url], env=base, text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def send(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def receive(self):
        line = self.process.stdout.readline()
        for secret, session in self.aws.keys.values() if self.aws else ():
            assert secret not in line and (not session or session not in line)
        answer = json.loads(line)
        assert answer.pop("same", True)  # what is returned is what the error says
        return answer

    def ask(self, line):
        self.send(line)
        return self.receive()

    def __call__(self, action, body=None):
        return self.ask(f"{action} {json.dumps(body or {})}")

    def ok(self, action="GetItem", body=None):
        answer = self(action, body)
        assert answer["code"] == "OK" and answer["failure"] is None, answer
        return answer["answer"]

    def fails(self, code, action="GetItem", body=None):
        """The message of the error, which has this code."""
        answer = self(action, body)
        assert answer["code"] == code, answer
        return answer["message"]

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self.process.stdin.close()
        if kind:
            self.process.kill()
        code = self.process.wait(timeout=PATIENCE_S)
        self.process.stdout.close()
        assert kind or code == 0  # else a sanitizer has found something
