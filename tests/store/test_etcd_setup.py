"""Opening an etcd store: its URL, users and passwords, TLS, old versions, a format that is newer, what is too large."""
import json
import os
import subprocess

import pytest
from conftest import poll
from servers import Etcd

FORBIDDEN, UNAVAILABLE, INVALID = 77, 69, 65


@pytest.fixture
def server(shared_etcd):
    return shared_etcd


@pytest.mark.parametrize("url, complaint", [
    ("etcd:localhost", "expected etcd://HOST"),
    ("etcd://", "names no host"),
    ("etcd://a:1,,b:2", "names no host"),
    ("etcd://a:1?colour=red", "knows no parameter 'colour'"),
    ("etcd://a:1?timeout=1ms", "shorter than"),
])
def test_urls_that_are_refused(make_holdfast, url, complaint):
    refused = make_holdfast(url)("status", "a")
    assert refused.returncode == INVALID
    assert complaint in refused.stderr


def test_nobody_is_there(make_holdfast):
    refused = make_holdfast("etcd://127.0.0.1:1")("status", "a")
    assert refused.returncode == UNAVAILABLE
    assert "can't reach etcd at http://127.0.0.1:1" in refused.stderr


def test_an_old_version_is_warned_of(server, make_holdfast):
    """Debian's; -q silences it."""
    hf = make_holdfast(server.url("warned"))
    warned = hf("run", "a", "--", "true")
    assert warned.returncode == 0
    assert "may end live leases" in warned.stderr and "3.4.42" in warned.stderr
    assert hf("-q", "run", "a", "--", "true").stderr == ""


def test_prefixes_are_stores_of_their_own(server, make_holdfast):
    one, other = make_holdfast(server.url("one")), make_holdfast(server.url("other"))
    one.ok("acquire", "a")
    other.ok("acquire", "a")
    assert len(one.lines("list")) == len(other.lines("list")) == 1


def test_a_lease_of_etcd_that_lives_longer_is_kept(server, make_holdfast):
    """A renewal for less (exclusion.md, row 6): the lock stays on its lease of etcd until that has less left."""
    hf = make_holdfast(server.url("longer"))

    def etcd_lease():
        key, = json.loads(server.ctl("get", "longer/alive/a", "-w", "json"))["kvs"]
        return key["lease"]

    lease = hf.json("acquire", "--ttl", "3s", "a")
    hf.ok("extend", "a", lease["token"], "--ttl", "20s")
    long = etcd_lease()
    hf.ok("extend", "a", lease["token"], "--ttl", "3s")
    assert etcd_lease() == long

    def is_on_another():
        hf.ok("extend", "a", lease["token"])
        return etcd_lease() != long
    poll(is_on_another)
    assert hf.json("extend", "a", lease["token"])["ttlMs"] == 3000


def test_a_newer_format_is_refused(server, make_holdfast):
    server.ctl("put", "newer/meta", json.dumps({"format": 2}))
    refused = make_holdfast(server.url("newer"))("status", "a")
    assert refused.returncode == UNAVAILABLE
    assert "newer holdfast (format 2; this one knows 1)" in refused.stderr


def test_an_input_that_etcd_would_not_take(server, make_holdfast, tmp_path):
    hf = make_holdfast(server.url("large"))
    (tmp_path / "flows.yaml").write_text("workflows:\n  w:\n    command: [\"true\"]\n    overlap: queue\n")
    (tmp_path / "fits").write_bytes(b"x" * (1000 << 10))
    (tmp_path / "large").write_bytes(b"x" * ((1000 << 10) + 1))
    config = ("--config", tmp_path / "flows.yaml")
    hf.ok("start", *config, "w", "--detach", "--input", tmp_path / "fits")
    refused = hf("start", *config, "w", "--detach", "--input", tmp_path / "large")
    assert refused.returncode == INVALID
    assert "at most 1024000" in refused.stderr
    assert len(hf.lines("executions")) == 1


def test_user_and_password(scratch, make_holdfast):
    """Refused without, let in with; a token that etcd has forgotten is renewed."""
    server = Etcd(scratch)
    server.start()
    server.ctl("user", "add", "root:secret")
    server.ctl("user", "add", "hf:p@ss/word")
    server.ctl("role", "add", "hf")
    server.ctl("role", "grant-permission", "hf", "readwrite", "--prefix=true", "holdfast/")
    server.ctl("user", "grant-role", "hf", "hf")
    server.ctl("auth", "enable")
    host = f"127.0.0.1:{server.port}"
    without = make_holdfast(f"etcd://{host}")("acquire", "a")
    assert without.returncode == FORBIDDEN, without.stderr
    wrong = make_holdfast(f"etcd://hf:wrong@{host}")("acquire", "a")
    assert wrong.returncode == FORBIDDEN and "wrong" not in wrong.stderr
    hf = make_holdfast(f"etcd://hf:p%40ss%2Fword@{host}")
    lease = hf.json("acquire", "a")
    elsewhere = make_holdfast(f"etcd://hf:p%40ss%2Fword@{host}/elsewhere")("acquire", "a")
    assert elsewhere.returncode == FORBIDDEN and "read and write on elsewhere/" in elsewhere.stderr
    held = hf.start("run", "--ttl", "15s", "b", "--", "sleep", "60", stderr=subprocess.DEVNULL)
    poll(lambda: hf.json("status", "b")["state"] == "held")
    server.restart()  # forgets all tokens
    before = hf.json("status", "b")["expiresAt"]
    poll(lambda: hf.json("status", "b")["expiresAt"] != before)
    assert held.poll() is None, "the holder could not renew"
    hf.ok("release", "a", lease["token"])


def make_certificate(scratch):
    """A certificate of 127.0.0.1 and its key, which the server may read."""
    cert, key = f"{scratch.path}/cert.pem", f"{scratch.path}/key.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert, "-days", "2",
                    "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    os.chmod(key, 0o644)
    return cert, key


def test_tls(scratch, make_holdfast):
    certificate = make_certificate(scratch)
    server = Etcd(scratch, certificate=certificate)
    server.start()
    url = f"etcd://127.0.0.1:{server.port}"
    make_holdfast(f"{url}?ca={certificate[0]}").ok("run", "a", "--", "true")
    untrusted = make_holdfast(f"{url}?tls=1")("run", "a", "--", "true")
    assert untrusted.returncode == UNAVAILABLE
    assert "certificate" in untrusted.stderr.lower()
    assert make_holdfast(url)("run", "a", "--", "true").returncode == UNAVAILABLE
