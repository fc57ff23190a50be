"""Workflows for tests: a configuration file, and what executions are asked for.

    flows = Workflows(hf, hello={"command": ["echo", "hello"]})
    flows.start("hello").returncode
    flows.only("hello")["state"]
"""
import json

from conftest import poll


class Workflows:
    def __init__(self, hf, **workflows):
        self.hf = hf
        self.path = hf.tmp_path / "workflows.yaml"
        self.write(**workflows)
        hf.env["HOLDFAST_CONFIG"] = str(self.path)

    def write(self, **workflows):
        # JSON is YAML.
        named = {name.replace("_", "-"): settings for name, settings in workflows.items()}
        self.path.write_text(json.dumps({"workflows": named}))

    def start(self, *args, **options):
        return self.hf("start", *args, **options)

    def all(self, *args):
        return self.hf.lines("executions", *args)

    def only(self, workflow):
        found = self.all("--workflow", workflow)
        assert len(found) == 1, found
        return found[0]

    def show(self, execution_id):
        return self.hf.json("show", execution_id)

    def running(self, workflow):
        """The id of the execution that runs, once one does and its command was started."""

        def look():
            return [x["id"] for x in self.all("--workflow", workflow, "--state", "RUNNING")]

        return poll(look)[0]

    def wait_for(self, execution_id, *states):
        return poll(lambda: (x := self.show(execution_id))["state"] in states and x)


def sh(script, **settings):
    """A workflow whose command is a shell's."""
    return {"command": ["sh", "-c", script], **settings}


def work(hf, *args, **options):
    """A worker that goes on; what it says goes to a file, so that it never waits for us to read it."""
    with open(hf.tmp_path / "work.log", "a") as log:
        return hf.start("work", *args, stderr=log, **options)


def said(hf):
    path = hf.tmp_path / "work.log"
    return path.read_text() if path.exists() else ""
