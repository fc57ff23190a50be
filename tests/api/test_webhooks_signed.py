"""Webhooks that are signed, by the senders' own libraries (tests/api/node), and who may send those that are not."""
import base64
import json
import os
import re
import signal
import time

import pytest

from api_helpers import UnixConnection, Answer, Service, api, run_node, run_tool  # noqa: F401
from conftest import PATIENCE_S, ROOT, is_listened_at, poll
from hooks import Hooks

SECRETS = {"standard": "whsec_" + base64.b64encode(b"0123456789abcdef01234567").decode(), "github": "It's a secret",
           "stripe": "whsec_5f0cab12f2e64d0a9d7b6a_-x"}
OTHERS = {"standard": "whsec_" + base64.b64encode(b"not 0123456789abcdef0123").decode(), "github": "It's another",
          "stripe": "whsec_another"}
BODY = '{"id":"evt_1","text":"grün"}'
SIGNATURES = {"standard": "webhook-signature", "github": "X-Hub-Signature-256", "stripe": "Stripe-Signature"}
schemes = pytest.mark.parametrize("scheme", SECRETS)


def sign(*messages):
    """The headers of each (scheme, secret, body, id, seconds from now)."""
    asked = [{"scheme": scheme, "secret": secret, "body": body, "id": event, "time": int(time.time()) + offset_s}
             for scheme, secret, body, event, offset_s in messages]
    done = run_node("sign.mjs", input=json.dumps(asked))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def secret_file(hf, name, text):
    path = hf.tmp_path / name
    path.write_text(text + "\n")
    path.chmod(0o600)
    return str(path)


def signed_hooks(hf, secret, *options, **settings):
    settings.setdefault("key-path", "$.id")
    return Hooks(hf, *options, pay={"command": ["cat"], "secret-files": [secret_file(hf, "secret", secret)], **settings})


@schemes
def test_what_the_senders_library_signs_is_accepted(api, scheme):
    hooks = signed_hooks(api, SECRETS[scheme])
    headers, = sign((scheme, SECRETS[scheme], BODY, "evt_1", 0))
    taken = hooks.post("pay", BODY.encode(), headers).ok()
    assert not taken["duplicate"]
    # A replay is the same execution, and not a way to another one: not by headers that nobody signed either.
    for more in ({}, {"Idempotency-Key": "evt_2"}, {"webhook-id": "evt_2"} if scheme != "standard" else {},
                 {"X-GitHub-Delivery": "evt_2"}):
        again = hooks.post("pay", BODY.encode(), {**headers, **more}).ok()
        assert (again["executionId"], again["duplicate"]) == (taken["executionId"], True)
    assert hooks.flows.only("pay")["key"] == "evt_1"


@schemes
def test_what_is_not_right_is_refused_and_leaves_nothing(api, scheme):
    hooks = signed_hooks(api, SECRETS[scheme])
    right, wrong, other_body = sign((scheme, SECRETS[scheme], BODY, "evt_1", 0), (scheme, OTHERS[scheme], BODY, "evt_1", 0),
                                    (scheme, SECRETS[scheme], BODY + " ", "evt_1", 0))
    name = SIGNATURES[scheme]
    secret_part = right[name].rsplit("=", 1)[1] if scheme != "standard" else right[name].split(",", 1)[1]
    answers = [hooks.post("pay", BODY.encode(), headers) for headers in (
        {}, wrong, other_body, {k: v for k, v in right.items() if k != name}, {**right, name: ""},
        {**right, name: right[name][:-4] + "AAA="}, {**right, name: right[name].replace("1", "2")}, {"Authorization": "Bearer x"})]
    for answer in answers:
        answer.problem(401, "UNAUTHORIZED")
        assert secret_part not in answer.body
    assert hooks.flows.all() == []
    hooks.service.stop()
    assert not any(secret_part in line or SECRETS[scheme] in line for line in hooks.service.log)


@pytest.mark.parametrize("scheme", ["standard", "stripe"])
def test_what_is_too_old_or_of_the_future_is_refused(api, scheme):
    hooks = signed_hooks(api, SECRETS[scheme])
    old, early, fine = sign((scheme, SECRETS[scheme], BODY, "evt_1", -400), (scheme, SECRETS[scheme], BODY, "evt_1", 400),
                            (scheme, SECRETS[scheme], BODY, "evt_1", -120))
    assert "old" in hooks.post("pay", BODY.encode(), old).problem(401, "UNAUTHORIZED")["detail"]
    assert "ahead" in hooks.post("pay", BODY.encode(), early).problem(401, "UNAUTHORIZED")["detail"]
    assert hooks.flows.all() == []
    hooks.post("pay", BODY.encode(), fine).ok()


@schemes
def test_secrets_are_rotated(api, scheme):
    hooks = signed_hooks(api, SECRETS[scheme])
    old, new = sign((scheme, SECRETS[scheme], BODY, "evt_1", 0), (scheme, OTHERS[scheme], BODY, "evt_1", 0))
    new_file = secret_file(api, "new", OTHERS[scheme])
    assert (hooks.post("pay", BODY.encode(), old).status, hooks.post("pay", BODY.encode(), new).status) == (200, 401)

    def reload(*files):
        hooks.flows.write(pay={"command": ["cat"], "key-path": "$.id", "secret-files": files})
        before = len(hooks.service.log)
        hooks.service.process.send_signal(signal.SIGHUP)
        poll(lambda: any("event=reloaded" in line for line in hooks.service.log[before:]))

    reload(str(api.tmp_path / "secret"), new_file)
    assert (hooks.post("pay", BODY.encode(), old).status, hooks.post("pay", BODY.encode(), new).status) == (200, 200)
    reload(new_file)
    assert (hooks.post("pay", BODY.encode(), old).status, hooks.post("pay", BODY.encode(), new).status) == (401, 200)


def test_large_bodies_are_signed_as_well(api):
    hooks = signed_hooks(api, SECRETS["github"], **{"key-path": "$.id"})
    body = json.dumps({"id": "evt_1", "data": "x" * 900000})
    headers, = sign(("github", SECRETS["github"], body, "evt_1", 0))
    hooks.post("pay", body.encode(), headers).ok()
    hooks.post("pay", body.replace("xx", "yy", 1).encode(), headers).problem(401, "UNAUTHORIZED")


# ---- who may send -----------------------------------------------------------------------------


def test_tokens_are_for_what_is_not_signed(api):
    path = secret_file(api, "secret", SECRETS["github"])
    hooks = Hooks(api, "--require-token", plain={"command": ["true"], "overlap": "queue"},
                  signed={"command": ["true"], "overlap": "queue", "secret-files": [path]})
    headers, = sign(("github", SECRETS["github"], BODY, "evt_1", 0))
    hooks.post("plain").problem(401, "UNAUTHORIZED")
    hooks.post("unknown").problem(401, "UNAUTHORIZED")
    hooks.post("plain", BODY.encode(), headers).problem(401, "UNAUTHORIZED")  # nobody here could have checked that
    hooks.post("signed", BODY.encode(), headers).ok()
    hooks.post("signed", BODY.encode()).problem(401, "UNAUTHORIZED")
    tokens = {verb: api.json("token", "create", "--allow", verb, "--prefix", prefix)["token"]
              for verb, prefix in (("webhooks:write", "pla"), ("locks:write", ""))}
    poll(lambda: hooks.post("plain", headers={"Authorization": f"Bearer {tokens['webhooks:write']}"}).status == 200)
    hooks.service.token = tokens["webhooks:write"]
    hooks.post("other").problem(403, "FORBIDDEN")  # another prefix
    hooks.post("signed", BODY.encode()).problem(401, "UNAUTHORIZED")  # a token is no signature
    hooks.service.token = tokens["locks:write"]
    poll(lambda: hooks.post("plain").status != 401)  # the service reads the tokens again from time to time
    hooks.post("plain").problem(403, "FORBIDDEN")


def test_pages_of_other_sites_and_proxies(api):
    path = secret_file(api, "secret", SECRETS["github"])
    hooks = Hooks(api, plain={"command": ["true"], "overlap": "queue"},
                  signed={"command": ["true"], "overlap": "queue", "secret-files": [path]})
    headers, = sign(("github", SECRETS["github"], BODY, "evt_1", 0))
    for foreign in ({"Host": "hooks.example.org"}, {"Origin": "http://evil.example"}):
        hooks.post("plain", BODY.encode(), foreign).problem(403, "FORBIDDEN")
        # A proxy hands on what it was asked for; the signature tells from whom it is.
        hooks.post("signed", BODY.encode(), {**headers, **foreign}).ok()


def test_a_unix_socket(api, tmp_path):
    hooks = signed_hooks(api, SECRETS["github"])
    hooks.service.stop()
    path = str(tmp_path / "sock")
    Service(api, listen=f"unix:{path}")
    poll(lambda: is_listened_at(path))
    headers, = sign(("github", SECRETS["github"], BODY, "evt_1", 0))

    def post(more):
        c = UnixConnection(path, timeout=PATIENCE_S)
        c.request("POST", "/api/webhooks/pay", BODY.encode(), more)
        r = c.getresponse()
        return Answer("POST", "/api/webhooks/pay", r, r.read().decode())

    poll(lambda: post(headers).status == 200)
    post({}).problem(401, "UNAUTHORIZED")


# ---- the documentation ------------------------------------------------------------------------


def test_what_the_documentation_does_by_hand(api):
    """The file of docs/webhooks.md is understood, and its commands are answered, as they stand there."""
    with open(os.path.join(ROOT, "docs/webhooks.md")) as file:
        text = file.read().replace("/etc/holdfast", str(api.tmp_path))
    config, = re.findall(r"```yaml\n(.*?)```", text, re.S)
    commands = re.findall(r"```sh\n(.*?)```", text, re.S)
    assert len(commands) == 2
    secret_file(api, "github.secret", "0123456789abcdef")
    secret_file(api, "stripe.secret", "whsec_abcdef0123456789")
    (api.tmp_path / "holdfast.yaml").write_text(config)
    service = Service(api, "--no-work", "--config", f"{api.tmp_path}/holdfast.yaml")
    for command in commands:
        done = run_tool("sh", "-c", command.replace("curl ", "curl -sS ").replace("localhost:7480", f"127.0.0.1:{service.port}"))
        assert json.loads(done.stdout)["success"] is True, done.stdout + done.stderr
    assert {(x["workflow"], x["key"]) for x in api.lines("executions")} == {("deploy", "by-hand-1"), ("stripe-payment", "evt_by_hand")}
