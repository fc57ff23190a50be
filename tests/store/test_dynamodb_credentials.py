"""Who we are to AWS: every place that keys may come from, against fakes of those places, and their refreshing."""
import os
import shutil
import subprocess
import sys
import time

import pytest

from conftest import PATIENCE_S, poll
from dynamodb_client import FAKETIME, Client
from fake_aws import FakeAws

HERE = os.path.dirname(os.path.abspath(__file__))


@pytest.fixture
def aws():
    with FakeAws() as fake:
        yield fake


@pytest.fixture
def client(aws, tmp_path):
    clients = []

    def start(**env):
        clients.append(Client(aws, tmp_path, **env))
        return clients[-1]

    yield start
    for each in clients:
        each.__exit__(None)


def used(aws):
    """Whose keys signed the calls."""
    return [call.key for call in aws.calls]


def test_none(client):
    message = client().fails("UNAUTHORIZED")
    assert "no AWS credentials" in message and "AWS_ACCESS_KEY_ID" in message


# ---- shared files


@pytest.fixture
def shared(aws, tmp_path):
    """~/.aws with keys for default, other, and one that is only in config."""
    for key in ("DEFAULT", "OTHER", "CONFIG", "WRONG"):
        aws.keys[key] = (f"secret-of-{key}", "session-of-OTHER" if key == "OTHER" else None)
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/credentials").write_text("""\
# a comment
[default]
aws_access_key_id = DEFAULT
aws_secret_access_key=secret-of-DEFAULT   # another

[other]
AWS_ACCESS_KEY_ID = OTHER\r
aws_secret_access_key = secret-of-OTHER
aws_session_token = session-of-OTHER
""")
    (tmp_path / ".aws/config").write_text("""\
[default]
region = eu-west-1
aws_access_key_id = WRONG
s3 =
  aws_secret_access_key = nested
[profile "on its own"]
aws_access_key_id = CONFIG
aws_secret_access_key = secret-of-CONFIG
[other]
aws_access_key_id = WRONG
[profile process]
credential_process = /bin/echo
[profile role]
role_arn = arn:aws:iam::1:role/r
source_profile = default
""")
    return tmp_path / ".aws"


def test_shared_files(aws, client, shared):
    client().ok()
    client(AWS_PROFILE="other").ok()
    client(AWS_PROFILE="on its own").ok()
    shutil.move(shared / "credentials", shared / "elsewhere")
    client(AWS_DEFAULT_PROFILE="other", AWS_SHARED_CREDENTIALS_FILE=shared / "elsewhere").ok()
    shutil.move(shared / "config", shared / "moved")
    client(AWS_PROFILE="on its own", AWS_CONFIG_FILE=shared / "moved").ok()
    assert used(aws) == ["DEFAULT", "OTHER", "CONFIG", "OTHER", "CONFIG"]


def test_the_environment_comes_first(aws, client, shared):
    aws.keys["ENV"] = ("secret-of-ENV", None)
    client(AWS_ACCESS_KEY_ID="ENV", AWS_SECRET_ACCESS_KEY="secret-of-ENV", AWS_PROFILE="other").ok()
    assert used(aws) == ["ENV"]


def test_profiles_that_are_of_no_use(client, shared):
    message = client(AWS_PROFILE="nobody").fails("UNAUTHORIZED")
    assert "'nobody'" in message and str(shared / "config") in message
    assert "'credential_process' is not supported" in client(AWS_PROFILE="process").fails("UNAUTHORIZED")
    assert "'source_profile' is not supported" in client(AWS_PROFILE="role").fails("UNAUTHORIZED")
    (shared / "credentials").write_text("[default]\naws_access_key_id = only\n")
    (shared / "config").write_text("")
    assert "profile 'default'" in client().fails("UNAUTHORIZED")


def test_keys_that_the_service_calls_expired_are_read_again(aws, client, shared):
    c = client()
    c.ok()
    aws.expired.add("DEFAULT")
    text = (shared / "credentials").read_text()
    (shared / "credentials").write_text(text.replace("DEFAULT", "NEXT"))
    aws.keys["NEXT"] = ("secret-of-NEXT", None)
    c.ok()
    assert used(aws) == ["DEFAULT", None, "NEXT"]
    aws.expired.add("NEXT")
    assert "have expired" in c.fails("UNAUTHORIZED")
    assert used(aws)[3:] == [None, None]


# ---- web identity


def web_identity(aws, tmp_path):
    (tmp_path / "token").write_text("jwt.of+the/pod=\n")
    aws.asked = []

    def sts(form):
        aws.asked.append(form)
        return 200, aws.give_keys_xml(f"WEB{len(aws.asked)}"), "text/xml"

    aws.sts = sts
    return {"AWS_WEB_IDENTITY_TOKEN_FILE": tmp_path / "token", "AWS_ROLE_ARN": "arn:aws:iam::1:role/a b",
            "AWS_ENDPOINT_URL_STS": aws.url}


def test_web_identity(aws, client, tmp_path):
    c = client(**web_identity(aws, tmp_path))
    c.ok()
    c.ok()
    assert used(aws) == ["WEB1", "WEB1"]
    [asked] = aws.asked
    assert asked.pop("RoleSessionName").startswith("holdfast-")
    assert asked == {"Action": "AssumeRoleWithWebIdentity", "Version": "2011-06-15", "RoleArn": "arn:aws:iam::1:role/a b",
                     "WebIdentityToken": "jwt.of+the/pod="}


def test_web_identity_of_a_profile(aws, client, tmp_path):
    env = web_identity(aws, tmp_path)
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/config").write_text(f"[profile pod]\nrole_arn = arn:aws:iam::1:role/p\nrole_session_name = me\n"
                                          f"web_identity_token_file = {tmp_path}/token\n")
    client(AWS_PROFILE="pod", AWS_ENDPOINT_URL_STS=env["AWS_ENDPOINT_URL_STS"]).ok()
    assert used(aws) == ["WEB1"] and aws.asked[0]["RoleSessionName"] == "me" and aws.asked[0]["RoleArn"].endswith("/p")


def test_web_identity_that_is_refused(aws, client, tmp_path):
    env = web_identity(aws, tmp_path)
    aws.keys["unused"] = ("jwt.of+the/pod=", None)  # so that it may not be shown
    aws.sts = lambda form: (400, "<ErrorResponse><Error><Code>InvalidIdentityToken</Code><Message>jwt.of+the/pod=</Message>"
                                 "</Error></ErrorResponse>", "text/xml")
    assert "InvalidIdentityToken" in client(**env).fails("UNAUTHORIZED")
    aws.sts = lambda form: (200, "<Credentials><AccessKeyId>A</AccessKeyId></Credentials>", "text/xml")
    assert "no AWS credentials" in client(**env).fails("UNAUTHORIZED")
    del env["AWS_ROLE_ARN"]
    assert "AWS_ROLE_ARN" in client(**env).fails("UNAUTHORIZED")
    (tmp_path / "token").unlink()
    assert "can't read" in client(**env, AWS_ROLE_ARN="arn").fails("UNAUTHORIZED")


# ---- a container's endpoint


def container(aws, authorization=None, lasts_s=3600):
    aws.given, aws.given_at = [], []

    def give(handler):
        if handler.headers_low.get("authorization") != authorization:
            return 401, {"message": "who?"}
        aws.given.append(f"BOX{len(aws.given) + 1}")
        aws.given_at.append(int(aws.now()))
        return 200, aws.give_keys(aws.given[-1], lasts_s)

    aws.paths["/v2/credentials"] = give
    return {"AWS_CONTAINER_CREDENTIALS_FULL_URI": aws.url + "/v2/credentials/id?a=b"}


def test_container(aws, client, tmp_path):
    client(**container(aws)).ok()
    (tmp_path / "token").write_text("Basic file\n")
    env = container(aws, "Basic file")
    client(AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE=tmp_path / "token", AWS_CONTAINER_AUTHORIZATION_TOKEN="other", **env).ok()
    env = container(aws, "Basic word")
    client(AWS_CONTAINER_AUTHORIZATION_TOKEN="Basic word", **env).ok()
    assert "HTTP 401" in client(**env).fails("UNAUTHORIZED")
    assert "is not one line" in client(AWS_CONTAINER_AUTHORIZATION_TOKEN="a\r\nb", **env).fails("UNAUTHORIZED")
    assert used(aws) == ["BOX1"] * 3


def test_keys_are_not_asked_for_in_the_clear(aws, client):
    for url in ("http://example.com/", "http://127.0.0.1.example.com/", "http://127.0.0.1@example.com/", "ftp://127.0.0.1/"):
        assert "must be https://" in client(AWS_CONTAINER_CREDENTIALS_FULL_URI=url).fails("UNAUTHORIZED")
    assert not aws.requests


# ---- an instance's endpoint, version 2


def instance(aws):
    def token(handler):
        assert handler.command == "PUT" and handler.headers_low["x-aws-ec2-metadata-token-ttl-seconds"] == "21600"
        return 200, "imds-session", "text/plain"

    def keys(handler):
        if handler.headers_low.get("x-aws-ec2-metadata-token") != "imds-session":
            return 401, "", "text/plain"
        name = handler.path[len("/latest/meta-data/iam/security-credentials/"):]
        return (200, aws.give_keys("IMDS")) if name == "my-role" else (200, "my-role\n", "text/plain")

    aws.paths["/latest/api/token"] = token
    aws.paths["/latest/meta-data/iam/security-credentials/"] = keys
    return {"AWS_EC2_METADATA_DISABLED": "false", "AWS_EC2_METADATA_SERVICE_ENDPOINT": aws.url + "/"}


def test_instance(aws, client):
    env = instance(aws)
    client(**env).ok()
    assert used(aws) == ["IMDS"]
    assert "no AWS credentials" in client(**{**env, "AWS_EC2_METADATA_DISABLED": "true"}).fails("UNAUTHORIZED")
    aws.paths["/latest/meta-data/iam/security-credentials/"] = lambda handler: (404, "", "text/plain")
    assert "no AWS credentials" in client(**env).fails("UNAUTHORIZED")
    aws.paths["/latest/meta-data/iam/security-credentials/"] = lambda handler: (503, "", "text/plain")
    client(**env).fails("STORE_UNAVAILABLE")


# ---- at the addresses that they have in AWS


def in_a_namespace(home):
    """In a network of our own, where these addresses are this machine's."""
    for address in ("169.254.170.2", "169.254.169.254"):
        subprocess.run(["ip", "address", "add", f"{address}/32", "dev", "lo"], check=True)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with FakeAws("169.254.170.2", 80) as aws:
        container(aws)
        with Client(aws, home, AWS_CONTAINER_CREDENTIALS_RELATIVE_URI="/v2/credentials/id") as c:
            c.ok()
        assert used(aws) == ["BOX1"]
    with FakeAws("169.254.169.254", 80) as aws:
        instance(aws)
        with Client(aws, home, AWS_EC2_METADATA_DISABLED="") as c:
            c.ok()
        assert used(aws) == ["IMDS"]


def test_the_addresses_in_aws(tmp_path):
    unshare = ["unshare", "-rn"]
    if subprocess.run([*unshare, "ip", "link"], capture_output=True).returncode:
        pytest.skip("no network namespace can be made here")
    code = f"import sys; sys.path[:0] = [{HERE!r}, {os.path.dirname(HERE)!r}]; import test_dynamodb_credentials as t; t.in_a_namespace({str(tmp_path)!r})"
    subprocess.run([*unshare, sys.executable, "-c", code], check=True, timeout=PATIENCE_S)


# ---- refreshing


def test_keys_are_refreshed_before_they_expire(aws, client):
    lasts_s = 6
    c = client(**container(aws, lasts_s=lasts_s))

    def refreshed():
        c.ok()
        return any(second < first + lasts_s for first, second in zip(aws.given_at, aws.given_at[1:]))

    poll(refreshed, every_s=0.2)
    assert None not in used(aws)  # nor had any to be refused first


def test_a_failing_refresh_does_no_harm_while_the_keys_last(aws, client):
    c = client(**container(aws, lasts_s=10))
    c.ok()
    asked = []

    def fail(handler):
        asked.append(time.monotonic())
        return 500, ""

    aws.paths["/v2/credentials"] = fail

    def tried():
        c.ok()
        return asked

    poll(tried, every_s=0.2)
    assert set(used(aws)) == {"BOX1"}
    answers = []

    def ended():
        answers.append(c("GetItem")["code"])
        return answers[-1] != "OK"

    poll(ended, every_s=0.2)  # they are over, and no others are to be had
    assert answers[-1] == "STORE_UNAVAILABLE"
    container(aws)
    c.ok()


def test_many_threads_ask_once(aws, client):
    c = client(**container(aws))
    assert c.ask("many GetItem {}") == {"well": 40}
    assert aws.given == ["BOX1"]


@pytest.mark.parametrize("offset_s", [3600, -3600])
def test_keys_last_as_long_with_a_clock_that_is_off(aws, client, offset_s):
    if not os.path.exists(FAKETIME):
        pytest.skip("libfaketime is not installed")
    c = client(LD_PRELOAD=FAKETIME, FAKETIME=f"{offset_s:+}s", FAKETIME_DONT_FAKE_MONOTONIC="1",
               ASAN_OPTIONS="verify_asan_link_order=0", **container(aws, lasts_s=1800))
    c.ok()
    time.sleep(1.2)  # by the clock that is off, they may have expired long ago
    c.ok()
    assert aws.given == ["BOX1"]
