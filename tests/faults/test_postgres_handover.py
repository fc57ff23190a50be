"""From one holder to the next on PostgreSQL: what was acknowledged is on the disk, and who waits is told."""
import os
import signal
import subprocess

import pytest
from conftest import PATIENCE_S
from hammer import wait_for_waiters


@pytest.fixture
def queue(direct):
    """One who holds "a" until it is told to end, and one who waits for it."""
    holder = direct.start("run", "a", "--", "sh", "-c", "echo; read x", stdin=subprocess.PIPE)
    holder.stdout.readline()
    waiter = direct.start("run", "--wait=100s", "a", "--", "echo", "mine")
    wait_for_waiters(direct, 1, "a")
    return holder, waiter


def end(holder):
    """It gives the lock back, and ends when that is acknowledged."""
    _, err = holder.communicate("\n", timeout=PATIENCE_S)
    assert holder.returncode == 0, err


def test_a_release_to_one_who_waits_is_not_lost_with_the_server(server, direct, queue):
    """Its commit does not wait for the disk, but the answer does; with nobody else who would write the log."""
    holder, waiter = queue
    os.kill(waiter.pid, signal.SIGSTOP)  # it does not confirm
    os.kill(int(server.psql("SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'")), signal.SIGSTOP)
    end(holder)
    server.kill()
    server.start()
    assert [e["kind"] for e in direct.lines("events", "--name", "a")] == ["acquired", "released", "acquired"]
    os.kill(waiter.pid, signal.SIGCONT)
    out, err = waiter.communicate(timeout=PATIENCE_S)
    assert (waiter.returncode, out) == (0, "mine\n"), err


def test_a_release_that_was_lost_with_the_server_is_not_acknowledged(server, direct, queue):
    """flush() may be answered by a server that has started again since: it must see that the hand-over is not there."""
    holder, waiter = queue
    lock_id = server.psql("SELECT lock_id FROM holdfast.lock WHERE name = 'a'", "locks")
    assert server.psql(f"SELECT holdfast.flush('a', '{lock_id}')", "locks") == "f"
    end(holder)
    assert waiter.wait(PATIENCE_S) == 0
    assert server.psql(f"SELECT holdfast.flush('a', '{lock_id}')", "locks") == "t"


def ask(session, sql, last):
    """Lines up to that one."""
    session.stdin.write(sql + "\n")
    session.stdin.flush()
    lines = []
    while not lines or lines[-1] != last:
        lines.append(session.stdout.readline().rstrip("\n"))
        assert lines[-1] or session.poll() is None, lines
    return lines


# The channel's name says which machine its listener is on; and there may be nobody behind that name.
WHERE = {"here": "channel", "gone": "left(channel, 17) || 'deadbeef'", "far": "'holdfast_00000000deadbeef'"}


@pytest.mark.parametrize("where", list(WHERE))
def test_a_notify_is_sent_where_the_waiter_cannot_be_told_otherwise(server, direct, queue, where):
    """One of this machine is told by a datagram: a NOTIFY would wake all who listen in the database."""
    holder, waiter = queue
    if where != "here":
        os.kill(waiter.pid, signal.SIGSTOP)  # or it would say its channel again when it asks again
    channel = server.psql(f"UPDATE holdfast.waiter SET channel = {WHERE[where]} RETURNING channel", "locks")
    session = server.start_psql("locks")
    ask(session, f"LISTEN {channel}; SELECT 'listening';", "listening")
    end(holder)
    if where == "here":
        out, err = waiter.communicate(timeout=PATIENCE_S)
        assert (waiter.returncode, out) == (0, "mine\n"), err
    told = [line for line in ask(session, "SELECT 1; SELECT 'done';", "done") + ask(session, "SELECT 'bye';", "bye")
            if line.startswith("Asynchronous notification")]
    session.stdin.close()
    session.wait(PATIENCE_S)
    assert len(told) == (where != "here")
