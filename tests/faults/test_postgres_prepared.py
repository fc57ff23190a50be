"""What is sent again and again is prepared, where the session is our own; and what was prepared may vanish."""
import pytest
from hammer import Talker

NAMED = "execute SELECT holdfast.status($1): "  # as the server's log has it
PLAIN = "execute <unnamed>: SELECT holdfast.status($1)"
ENOUGH = 6  # times that something is asked: then it is prepared

# It returns the same as before, but what was prepared of it must not be used again.
REPLACED = """
    ALTER FUNCTION holdfast.status(text) RENAME TO status_before;
    CREATE FUNCTION holdfast.status(p_name text) RETURNS record LANGUAGE sql AS 'SELECT a FROM holdfast.status_before(p_name) AS a'
"""
FORGOTTEN = """
    ALTER FUNCTION holdfast.status(text) RENAME TO status_before;
    CREATE FUNCTION holdfast.status(p_name text) RETURNS holdfast.answer LANGUAGE plpgsql AS $$
        BEGIN
            DEALLOCATE ALL;
            RETURN holdfast.status_before(p_name);
        END $$
"""


@pytest.fixture
def direct(server, direct):
    server.psql("ALTER DATABASE locks SET log_statement = 'all'")
    return direct


def ask_often(client):
    lease = client.acquire("a")
    answers = {tuple(client.ask("status a")) for _ in range(ENOUGH)}
    assert len(answers) == 1 and answers.pop()[:2] == ("OK", "held")
    return lease


def test_what_is_asked_often_is_prepared(server, direct):
    ask_often(Talker(direct))
    assert server.log().count(PLAIN) < ENOUGH and server.log().count(NAMED) > 0


def test_nothing_is_prepared_behind_a_pooler(server, direct, start_pgbouncer, make_holdfast):
    ask_often(Talker(make_holdfast(start_pgbouncer(server).url("locks"))))
    assert server.log().count(PLAIN) == ENOUGH and NAMED not in server.log()


@pytest.mark.parametrize("how", [REPLACED, FORGOTTEN])
def test_what_was_prepared_may_vanish(server, direct, how):
    client = Talker(direct)
    ask_often(client)
    server.psql(how, "locks")
    before = server.log().count(PLAIN)
    for _ in range(ENOUGH):
        assert client.ask("status a")[:2] == ["OK", "held"]
    assert client.ask("release")[0] == "OK"
    assert server.log().count(PLAIN) > before, "it did not vanish: this proves nothing"
