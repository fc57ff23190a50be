"""Calls to DynamoDB: what is signed, tried again, unknown; the server's time; connections."""
import json
import os
import subprocess
import time

import pytest

from conftest import PATIENCE_S, built, poll
from dynamodb_client import FAKETIME, Client
from fake_aws import CLOSE, DROP, STALL, FakeAws, broken, condition, failure, throttled
from servers import free_port

SECRET, SESSION = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "AQoDYXdzEPT//////////wEXAMPLE+session=="


@pytest.fixture
def aws():
    with FakeAws() as fake:
        fake.keys["AKIDEXAMPLE"] = (SECRET, None)
        yield fake


@pytest.fixture
def client(aws, tmp_path):
    """client(**environment), with keys of its own."""
    clients = []

    def start(**env):
        clients.append(Client(aws, tmp_path, **{"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": SECRET, **env}))
        return clients[-1]

    yield start
    for each in clients:
        each.__exit__(None)


# ---- AWS's published examples (aws-sig-v4-test-suite), by what libcurl sends

TOKEN = ("AQoDYXdzEPT//////////wEXAMPLEtc764bNrC9SAPBSM22wDOk4x4HIZ8j4FZTwdQWLWsKWHGBuFqwAeMicRXmxfpSPfIeoIYRqTflfKD8YUuwthAx7mSEI"
         "/qkPpKPi/kMcGdQrmGdeehM4IC1NtBmUpp2wUE8phUZampKsburEDy0KPkyQDYwT7WZ0wq5VSXDvp75YU9HFvlRd8Tx6q6fE8YQcHNVXAkiY9q6d+xo0rKwT"
         "38xVqr7ZD0u0iPPkUL64lIZbqBAz+scqKmlzm8FDrypNC9Yjc8fPOLn9FX9KSYvKTr4rvx3iSIlTJabIQwj2ICCR/oLxBA==")
FORM = "Content-Type: application/x-www-form-urlencoded"

# name: method, headers, body, session token, signed headers, signature
VECTORS = {
    "get-vanilla": ("GET", [], "", None, "host;x-amz-date",
                    "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"),
    "get-header-value-trim": ("GET", ["My-Header1:  value1", 'My-Header2: "a   b   c"'], "", None,
                              "host;my-header1;my-header2;x-amz-date",
                              "acc3ed3afb60bb290fc8d2dd0098b9911fcaa05412b367055dee359757a9c736"),
    "post-vanilla": ("POST", [], "", None, "host;x-amz-date",
                     "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"),
    "post-header-key-sort": ("POST", ["My-Header1: value1"], "", None, "host;my-header1;x-amz-date",
                             "c5410059b04c1ee005303aed430f6e6645f61f4dc9e1461ec8f8916fdf18852c"),
    "post-header-value-case": ("POST", ["My-Header1: VALUE1"], "", None, "host;my-header1;x-amz-date",
                               "cdbc9802e29d2942e5e10b5bccfdd67c5f22c7c4e8ae67b53629efa58b974b7d"),
    "post-sts-header-before": ("POST", [], "", TOKEN, "host;x-amz-date;x-amz-security-token",
                               "85d96828115b5dc0cfc3bd16ad9e210dd772bbebba041836c64533a82be05ead"),
    "post-x-www-form-urlencoded": ("POST", [FORM], "Param1=value1", None, "content-type;host;x-amz-date",
                                   "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a"),
    "post-x-www-form-urlencoded-parameters": (  # its files differ in the charset; this is the one that was signed
        "POST", [FORM + "; charset=utf8"], "Param1=value1", None, "content-type;host;x-amz-date",
        "1a72ec8f64bd914b0e42e42607c7fbce7fb2c7465f63e3092b3b0d39fa77a6fe"),
}


def test_signatures_are_those_that_aws_publishes(aws):
    for name, (method, headers, body, session, signed, signature) in VECTORS.items():
        del aws.requests[:]
        request = {"method": method, "url": "http://example.amazonaws.com/", "headers": headers, "body": body,
                   "id": "AKIDEXAMPLE", "secret": SECRET, "session": session, "atMs": 1440938160000,
                   "scope": "aws:amz:us-east-1:service"}
        subprocess.run([built("tests", "dynamodb_sign"), f"example.amazonaws.com:80:127.0.0.1:{aws.server.server_port}"],
                       input=json.dumps(request), text=True, check=True, timeout=PATIENCE_S)
        [(_, _, sent, _)] = aws.requests
        assert sent["host"] == "example.amazonaws.com" and sent["x-amz-date"] == "20150830T123600Z"
        assert sent.get("x-amz-security-token") == session
        assert sent["authorization"] == ("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, "
                                         f"SignedHeaders={signed}, Signature={signature}"), name


# ---- what is sent


def test_a_call_is_signed_and_names_the_table(aws, client):
    aws.script = [(200, {"Item": {"PK": {"S": "ü"}}})]
    c = client()
    assert c.ok("GetItem", {"Key": {"PK": {"S": "a b\"ü€"}}}) == {"Item": {"PK": {"S": "ü"}}}
    c.ok("TransactWriteItems", {"TransactItems": [{"Put": {"Item": {}}}, {"ConditionCheck": {"Key": {}}}]})
    c.ok("BatchGetItem", {"RequestItems": {"locks": {}}})
    c.ok("PutItem", {"Item": {"data": {"S": "x" * 1500000}}})
    assert [call.key for call in aws.calls] == ["AKIDEXAMPLE"] * 4
    assert aws.calls[0].body == {"Key": {"PK": {"S": "a b\"ü€"}}, "TableName": "locks"}
    assert aws.calls[1].body == {"TransactItems": [{"Put": {"Item": {}, "TableName": "locks"}},
                                                   {"ConditionCheck": {"Key": {}, "TableName": "locks"}}]}
    assert "TableName" not in aws.calls[2].body
    assert len(aws.calls[3].body["Item"]["data"]["S"]) == 1500000


def test_a_session_token_is_signed(aws, client):
    aws.keys["AKIDEXAMPLE"] = (SECRET, SESSION)
    client(AWS_SESSION_TOKEN=SESSION).ok()
    assert "Security" not in client().fails("UNAUTHORIZED")


@pytest.mark.parametrize("wrong", [{"AWS_SECRET_ACCESS_KEY": "mistyped"}, {"AWS_ACCESS_KEY_ID": "OTHER"}])
def test_wrong_keys_are_refused_without_a_word_of_them(aws, client, wrong):
    aws.keys["AKIDEXAMPLE"] = (SECRET, SESSION)
    message = client(AWS_SESSION_TOKEN=SESSION, **wrong).fails("UNAUTHORIZED")
    assert "mistyped" not in message and "locks" in message and aws.url in message


def test_urls():
    for url, says in {"dynamodb://eu-west-1": "needs a region and a table",
                      "dynamodb://EU/locks": "not a region",
                      "dynamodb://eu-west-1/a": "not a table's name",
                      "dynamodb://eu-west-1/locks?endpoint=ftp://x": "endpoint",
                      "dynamodb://eu-west-1/locks?endpoint=http://user:hush@x": "endpoint"}.items():
        done = subprocess.run([built("tests", "dynamodb_call"), url], capture_output=True, text=True, input="")
        answer = json.loads(done.stdout)
        assert answer["code"] == "INVALID" and says in answer["message"] and "hush" not in answer["message"]


def test_the_endpoint_may_come_from_the_environment(aws, tmp_path):
    keys = {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": SECRET, "url": "dynamodb://eu-west-1/locks"}
    with Client(aws, tmp_path, AWS_ENDPOINT_URL_DYNAMODB=aws.url + "/", AWS_ENDPOINT_URL="http://127.0.0.1:1", **keys) as c:
        c.ok()
    with Client(aws, tmp_path, AWS_ENDPOINT_URL=aws.url, **keys) as c:
        c.ok()


def test_certificates_are_checked(tmp_path):
    pem = tmp_path / "pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", tmp_path / "key", "-out", pem, "-days", "2",
                    "-subj", "/CN=fake", "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    with open(tmp_path / "both", "w") as both:
        both.write((tmp_path / "key").read_text() + pem.read_text())
    with FakeAws(certificate=tmp_path / "both") as aws:
        aws.keys["AKIDEXAMPLE"] = (SECRET, None)
        keys = {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": SECRET}
        with Client(aws, tmp_path, AWS_CA_BUNDLE=pem, **keys) as c:
            c.ok("UpdateItem")
        with Client(aws, tmp_path, **keys) as c:
            c.fails("STORE_UNAVAILABLE", "UpdateItem")
        assert len(aws.calls) == 1


# ---- what is answered


def test_failures_are_answers(aws, client):
    aws.script = [condition, failure("ResourceNotFoundException"), failure("ValidationException"),
                  failure("TransactionCanceledException", CancellationReasons=[{"Code": "None"}, {"Code": "ConditionalCheckFailed"}])]
    c = client()
    for name in ("ConditionalCheckFailedException", "ResourceNotFoundException", "ValidationException", "TransactionCanceledException"):
        answer = c("UpdateItem")
        assert (answer["code"], answer["failure"]) == ("OK", name)
    assert answer["answer"]["CancellationReasons"][1]["Code"] == "ConditionalCheckFailed"
    assert len(aws.calls) == 4


def test_other_errors_have_their_codes(aws, client):
    c = client()
    for name, code in {"AccessDeniedException": "FORBIDDEN", "UnknownOperationException": "UNSUPPORTED",
                       "ItemCollectionSizeLimitExceededException": "TOO_LARGE", "Strange": "STORE_UNAVAILABLE"}.items():
        aws.script = [failure(name)]
        assert name in c.fails(code, "UpdateItem")
    aws.script = [(404, "no page")]
    assert "as DynamoDB does not" in c.fails("STORE_UNAVAILABLE", "UpdateItem")
    aws.script = [(200, "no JSON")] + [condition]
    c.fails("UNKNOWN", "UpdateItem")


def test_throttling_is_tried_again(aws, client):
    conflict = failure("TransactionCanceledException", CancellationReasons=[{"Code": "None"}, {"Code": "TransactionConflict"}])
    aws.script = [throttled, failure("ThrottlingException"), conflict, failure("TransactionConflictException"), condition]
    # None of them was done, so the failed condition is nobody's but another's.
    assert client()("UpdateItem")["failure"] == "ConditionalCheckFailedException"
    assert len(aws.calls) == 5


def test_pauses_have_full_jitter(aws, client):
    """Any of them may be as short as nothing: fixed ones of 25, 50 and 100 ms would never take less than 175 ms."""
    c = client()

    def short():
        aws.script = [throttled] * 3
        began = time.monotonic()
        c.ok()
        return time.monotonic() - began < 0.12

    poll(short, every_s=0)


def test_server_errors_are_tried_again_but_may_have_been_done(aws, client):
    c = client()
    aws.script = [broken, (503, "busy")]
    c.ok("UpdateItem")
    aws.script = [broken, condition]
    assert c("GetItem")["failure"] == "ConditionalCheckFailedException"
    aws.script = [broken, condition]  # by whom? perhaps by ourselves
    c.fails("UNKNOWN", "UpdateItem")
    aws.script = [broken, failure("AccessDeniedException")]
    c.fails("UNKNOWN", "UpdateItem")
    assert len(aws.calls) == 9


@pytest.mark.parametrize("kept", [False, True])
def test_a_lost_reply_is_unknown_and_nothing_is_sent_twice(aws, client, kept):
    c = client()
    if kept:
        c.ok()
    before = len(aws.calls)
    aws.script = [DROP]
    c.fails("UNKNOWN", "UpdateItem")
    assert len(aws.calls) == before + 1
    aws.script = [DROP]
    c.ok("GetItem")
    assert len(aws.calls) == before + 3


def test_a_connection_that_was_closed_meanwhile_is_replaced(aws, client):
    c = client()
    aws.script = [CLOSE]
    c.ok()
    poll(lambda: aws.closed == 1)
    c.ok("UpdateItem")
    assert [call.connection for call in aws.calls] == [1, 2]


def test_nobody_there(aws, tmp_path):
    url = f"dynamodb://eu-west-1/locks?endpoint=http://127.0.0.1:{free_port()}"
    with Client(aws, tmp_path, url, AWS_ACCESS_KEY_ID="AKIDEXAMPLE", AWS_SECRET_ACCESS_KEY=SECRET) as c:
        assert "can't reach" in c.fails("STORE_UNAVAILABLE", "UpdateItem")
        assert c.ask("learn")["code"] == "STORE_UNAVAILABLE"


def test_every_call_ends(aws, tmp_path):
    """After a deadline, whatever the server does; all at once, as each takes that long."""
    keys = {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": SECRET}
    cases = [(throttled, "UpdateItem", "STORE_UNAVAILABLE"), (broken, "UpdateItem", "UNKNOWN"), (broken, "GetItem", "STORE_UNAVAILABLE"),
             (STALL, "UpdateItem", "UNKNOWN"), (STALL, "GetItem", "STORE_UNAVAILABLE")]
    running = []
    for outcome, action, code in cases:
        fake = FakeAws().__enter__()
        fake.keys, fake.otherwise = aws.keys, outcome
        c = Client(fake, tmp_path, **keys)
        c.send(f"{action} {{}}")
        running.append((fake, c, code))
    for fake, c, code in running:
        assert c.receive()["code"] == code
        assert len(fake.calls) < 100  # there were pauses between them
        c.__exit__(None)
        fake.__exit__()


# ---- connections


def test_connections_are_kept(aws, client):
    c = client()
    for _ in range(10):
        c.ok()
    assert {call.connection for call in aws.calls} == {1}
    assert c.ask("many UpdateItem {}") == {"well": 40}
    assert c.ask("many UpdateItem {}") == {"well": 40}
    assert aws.connections <= 8


# ---- the time


def assert_bounds(aws, answer):
    assert answer["known"]
    assert answer["early"] <= aws.now() * 1000 + 50 and aws.now() * 1000 - 2000 <= answer["late"]
    assert 0 < answer["late"] - answer["early"] < 60000


@pytest.mark.parametrize("offset_s", [0, 3600, -3600])
def test_a_clock_that_is_off_does_no_harm(aws, client, offset_s):
    if not os.path.exists(FAKETIME):
        pytest.skip("libfaketime is not installed")
    c = client(LD_PRELOAD=FAKETIME, FAKETIME=f"{offset_s:+}s", FAKETIME_DONT_FAKE_MONOTONIC="1", ASAN_OPTIONS="verify_asan_link_order=0")
    assert not c.ask("time")["known"]
    c.ok("UpdateItem")
    assert len(aws.calls) == (2 if offset_s else 1)  # refused for its time at first
    c.ok("UpdateItem")
    assert len(aws.calls) == (3 if offset_s else 2)
    answer = c.ask("time")
    assert abs(answer["wall"] / 1000 - offset_s - time.time()) < 600
    assert_bounds(aws, answer)


@pytest.mark.parametrize("offset_s", [7200, -7200])
def test_the_server_knows_the_time(aws, client, offset_s):
    aws.offset_s = offset_s
    c = client()
    assert c.ask("learn")["code"] == "OK" and not aws.calls
    assert_bounds(aws, c.ask("time"))
    c.ok()
    assert len(aws.calls) == 1
    aws.offset_s = 0  # it is set, or another front end answers
    c.ok()
    assert_bounds(aws, c.ask("time"))


def test_the_bounds_grow_narrow(aws, client):
    """Answers from everywhere within a second tell more than one."""
    c, widths = client(), []
    for _ in range(30):
        c.ok()
        answer = c.ask("time")
        assert_bounds(aws, answer)
        widths.append(answer["late"] - answer["early"])
        time.sleep(0.05)
    assert widths[-1] < 900
