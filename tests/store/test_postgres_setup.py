"""How a PostgreSQL may be set up: every mistake is one clear line and an exit code; what may lose commits is
warned about; the schema is made once, whoever comes first."""
import os
import re
import time

import pytest
from conftest import PATIENCE_S, ROOT, poll

DATA, UNAVAILABLE, FORBIDDEN = 65, 69, 77


@pytest.fixture
def server(shared_postgres):
    return shared_postgres


@pytest.fixture
def database(server, request):
    """An empty database of this test; its name."""
    name = f"setup_{abs(hash(request.node.nodeid)):x}_{time.time_ns():x}"
    server.create_database(name)
    yield name
    server.drop_database(name)


@pytest.fixture
def role(server, database):
    """A role that may connect and no more; it must say a password. (pg_hba.conf knows it by this name.)"""
    server.psql("CREATE ROLE secretive LOGIN PASSWORD 'open sesame'")
    server.psql(f'REVOKE CREATE ON DATABASE "{database}" FROM PUBLIC')
    yield "secretive"
    server.psql('DROP OWNED BY secretive', database)
    server.psql("DROP ROLE secretive")


def refused(hf, code, pattern, *args):
    done = hf(*args)
    assert done.returncode == code, done.stderr
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("holdfast: "), done.stderr
    assert re.search(pattern, done.stderr), done.stderr
    assert "sesame" not in done.stderr
    assert done.stdout == ""


# ---- mistakes


@pytest.mark.parametrize("command", [["acquire", "a"], ["run", "a", "--", "true"], ["status", "a"], ["init"]])
def test_a_wrong_password(server, database, role, make_holdfast, command):
    hf = make_holdfast(server.url(database, role, password="open barley and sesame"))
    refused(hf, FORBIDDEN, "password authentication failed", *command)


def test_a_right_password(server, database, role, make_holdfast):
    server.psql(f'GRANT CREATE ON DATABASE "{database}" TO {role}')
    hf = make_holdfast(server.url(database, role, password="open sesame"))
    assert "sesame" not in hf.ok("init")
    assert hf.ok("run", "a", "--", "sh", "-c", f"'{hf.program}' guard && echo on") == "on"


def test_no_password(server, database, role, make_holdfast):
    refused(make_holdfast(server.url(database, role)), FORBIDDEN, "password", "acquire", "a")


def test_no_such_role(server, database, make_holdfast):
    refused(make_holdfast(server.url(database, "nobody_knows_me")), FORBIDDEN, "nobody_knows_me", "acquire", "a")


def test_no_such_database(server, make_holdfast):
    refused(make_holdfast(server.url("nowhere")), UNAVAILABLE, '"?nowhere"? does not exist', "acquire", "a")


def test_a_schema_that_may_not_be_made(server, database, role, make_holdfast):
    hf = make_holdfast(server.url(database, role, password="open sesame"))
    refused(hf, FORBIDDEN, "init", "acquire", "a")
    refused(hf, FORBIDDEN, "permission|privilege", "init")


def test_a_schema_that_may_not_be_used(server, database, role, make_holdfast):
    make_holdfast(server.url(database)).ok("init")
    hf = make_holdfast(server.url(database, role, password="open sesame"))
    refused(hf, FORBIDDEN, "permission denied", "acquire", "a")
    refused(hf, FORBIDDEN, "permission denied", "status", "a")


def test_a_server_that_is_down(start_postgres, make_holdfast):
    server = start_postgres()
    url = server.create_database("locks")
    server.stop()
    refused(make_holdfast(url), UNAVAILABLE, rf"127\.0\.0\.1.*{server.port}|{server.port}.*127\.0\.0\.1", "acquire", "a")


def test_a_server_that_starts(start_postgres, make_holdfast):
    """It says so itself (57P03); nothing is broken."""
    server = start_postgres()
    url = server.create_database("locks")
    hf = make_holdfast(url)
    hf.ok("init")
    server.pause()
    refused(make_holdfast(url + "?timeout=300ms"), UNAVAILABLE, "300 ms|0.3 s|in time|answer", "acquire", "a")
    server.resume()
    poll(lambda: hf("acquire", "a").returncode == 0)


def test_a_database_that_is_read_only(server, database, make_holdfast):
    hf = make_holdfast(server.url(database))
    hf.ok("init")
    server.psql(f'ALTER DATABASE "{database}" SET default_transaction_read_only = on')
    refused(hf, UNAVAILABLE, "read.only", "acquire", "a")
    assert hf.json("status", "a")["state"] == "free"


@pytest.mark.parametrize("query", ["colour=red", "timeout=soon", "pool=0", "listen=locks"])
def test_bad_urls(make_holdfast, query):
    refused(make_holdfast(f"postgres://127.0.0.1:1/x?{query}"), DATA, query.split("=")[0] + "|URL", "acquire", "a")


def test_both_schemes_of_libpq(server, database, make_holdfast):
    url = server.url(database)
    fence = make_holdfast(url).json("acquire", "a")["fence"]
    assert make_holdfast(url.replace("postgres:", "postgresql:")).json("status", "a")["fence"] == fence


def test_our_parameters_are_not_libpqs(server, database, make_holdfast):
    """`listen`, `pool` and `timeout` are ours; others go to libpq."""
    hf = make_holdfast(server.url(database, pool="2", timeout="20s", application_name="our own", listen=server.url(database)))
    assert hf.ok("run", "a", "--", "echo", "on") == "on"


# ---- what may lose commits


def warnings(done):
    return [line for line in done.stderr.splitlines() if line.startswith("holdfast: warning: ")]


@pytest.mark.parametrize("setting", ["synchronous_commit", "fsync"])
def test_what_may_lose_commits_is_warned_about(start_postgres, make_holdfast, setting):
    server = start_postgres(**{setting: "off"})
    hf = make_holdfast(server.create_database("locks"))
    for command in (["init"], ["acquire", "a"], ["run", "b", "--", "true"]):
        done = hf(*command)
        assert done.returncode == 0
        assert len(warnings(done)) == 1 and setting in warnings(done)[0], done.stderr
        assert done.stderr.count("\n") == 1
    assert hf("-q", "run", "b", "--", "true").stderr == ""
    assert hf("status", "a").stderr == ""


def test_a_server_that_keeps_its_word_is_not_warned_about(server, database, make_holdfast):
    hf = make_holdfast(server.url(database))
    assert hf("init").stderr == "" and hf("run", "a", "--", "true").stderr == ""


def test_an_asynchronous_standby_is_warned_about(start_postgres, make_holdfast):
    """And no lock can be taken at a standby itself."""
    server = start_postgres(wal_level="replica", max_wal_senders="4")
    url = server.create_database("locks")
    hf = make_holdfast(url)
    assert hf("init").stderr == ""
    standby = start_postgres(copy_of=server)
    poll(lambda: server.psql("SELECT state FROM pg_stat_replication") == "streaming")
    done = hf("run", "a", "--", "true")
    assert done.returncode == 0 and len(warnings(done)) == 1 and "standby" in done.stderr
    poll(lambda: standby.psql("SELECT count(*) FROM pg_namespace WHERE nspname = 'holdfast'", "locks") == "1")
    refused(make_holdfast(standby.url("locks")), UNAVAILABLE, "read.only|standby|recovery", "acquire", "b")
    server.set(synchronous_standby_names="'*'")
    server.reload()
    poll(lambda: server.psql("SELECT sync_state FROM pg_stat_replication") == "sync")
    assert hf("run", "a", "--", "true").stderr == ""


# ---- the schema


def test_many_inits_at_once(server, database, make_holdfast):
    hf = make_holdfast(server.url(database))
    started = [hf.start("init") for _ in range(8)] + [hf.start("acquire", f"n{i}") for i in range(4)]
    for process in started:
        _, err = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, err) == (0, "")
    assert len(hf.lines("list")) == 4


def test_what_is_printed_is_what_is_made(server, database, make_holdfast):
    """For those who hand it to somebody else: it can be run by psql, and then nothing is left to do."""
    script = make_holdfast("postgres://nowhere.invalid/x").ok("init", "--print")
    server.psql(script, database)
    hf = make_holdfast(server.url(database))
    before = server.psql("SELECT oid, relname FROM pg_class WHERE relnamespace = 'holdfast'::regnamespace", database)
    hf.ok("init")
    assert hf.ok("run", "a", "--", "echo", "on") == "on"
    assert before == server.psql("SELECT oid, relname FROM pg_class WHERE relnamespace = 'holdfast'::regnamespace", database)


def test_a_newer_schema_is_refused(server, database, make_holdfast):
    hf = make_holdfast(server.url(database))
    hf.ok("init")
    server.psql("UPDATE holdfast.meta SET format = format + 1", database)
    refused(hf, UNAVAILABLE, "newer", "acquire", "a")
    refused(hf, UNAVAILABLE, "newer", "init")


def test_everything_has_a_comment(server, database, make_holdfast):
    """Operators read it in psql."""
    make_holdfast(server.url(database)).ok("init")
    bare = server.psql("""
        SELECT c.relname, a.attname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
        WHERE relnamespace = 'holdfast'::regnamespace AND relkind = 'r' AND attnum > 0 AND NOT attisdropped
          AND col_description(c.oid, attnum) IS NULL
        UNION ALL SELECT relname, '' FROM pg_class
        WHERE relnamespace = 'holdfast'::regnamespace AND relkind IN ('r', 'S') AND obj_description(oid, 'pg_class') IS NULL
        UNION ALL SELECT proname, '()' FROM pg_proc
        WHERE pronamespace = 'holdfast'::regnamespace AND obj_description(oid, 'pg_proc') IS NULL""", database)
    assert bare == ""


def test_an_operator_can_select_who_holds_what(server, database, make_holdfast):
    hf = make_holdfast(server.url(database))
    lease = hf.json("acquire", "--owner", "me", "a")
    row = server.psql("SELECT name, fence, owner, locked_until > clock_timestamp() FROM holdfast.lock"
                      " WHERE lock_id IS NOT NULL", database)
    assert row == f"a|{lease['fence']}|me|t"
    assert lease["token"] not in server.psql("SELECT * FROM holdfast.lock", database)


def test_a_role_with_the_documented_grants(server, database, role, make_holdfast):
    """An application needs no more."""
    with open(os.path.join(ROOT, "docs", "stores.md")) as text:
        grants = re.findall(r"^GRANT .* TO app;$", text.read(), re.M)
    assert grants
    make_holdfast(server.url(database)).ok("init")
    server.psql(" ".join(grants).replace(" TO app;", f" TO {role};"), database)
    hf = make_holdfast(server.url(database, role, password="open sesame"))
    assert hf.ok("run", "--once", "k", "a", "--", "echo", "on") == "on"
    lease = hf.json("acquire", "a")
    assert hf("acquire", "a").returncode == 75
    hf.ok("release", "--force", "--fence", lease["fence"], "a")
    hf.ok("sweep")
    assert hf.ok("metrics")


def test_prefixes_are_taken_literally(server, database, make_holdfast):
    hf = make_holdfast(server.url(database))
    for name in ("a_b", "axb", "a%b", "a\\b"):
        hf.ok("acquire", name)
    assert [s["name"] for s in hf.lines("list", "--prefix", "a_")] == ["a_b"]
    assert [s["name"] for s in hf.lines("list", "--prefix", "a%")] == ["a%b"]
    assert [s["name"] for s in hf.lines("list", "--prefix", "a\\")] == ["a\\b"]
    assert len(hf.lines("list", "--prefix", "a")) == 4
