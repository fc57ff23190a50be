"""Retention in SQL: that pruning and the last key are cheap, whatever else is kept, and disturb nobody."""
import re

from test_postgres_sql import place  # noqa: F401

OLD = """WITH old AS (
           INSERT INTO holdfast.execution (id, workflow, lock, state, key, run_at, created_at, finished_at)
           SELECT gen_random_uuid(), '{workflow}', 'l', 'SUCCESS', '{workflow}' || i, now(), now(), now() - interval '{ago}'
             FROM generate_series(1, {n}) AS i
           RETURNING *)
         INSERT INTO holdfast.ended (finished_at, seq, once, workflow) SELECT finished_at, seq, once, workflow FROM old"""
EXPLAIN = """LOAD 'auto_explain'; SET auto_explain.log_min_duration = 0; SET auto_explain.log_nested_statements = on;
             SET auto_explain.log_level = 'notice'; SET auto_explain.log_analyze = on; SET auto_explain.log_timing = off;
             SET client_min_messages = 'notice';"""


def add(place, workflow, n, ago):
    assert "ERROR" not in place.one(OLD.format(workflow=workflow, n=n, ago=ago))


def plans(place, statement):
    """What the server did for it, statements within functions too: (text, rows that it touched at most)."""
    text = place.one(EXPLAIN + statement)
    assert "Query Text" in text, text
    rows = [int(float(n)) * int(loops) for n, loops in re.findall(r"\(actual rows=([\d.]+) loops=(\d+)\)", text)]
    rows += [int(n) for n in re.findall(r"Rows Removed by \w+(?: \w+)*: (\d+)", text)]
    return text, max(rows)


def test_pruning_reads_what_it_removes_and_no_more(place):
    add(place, "a", 3000, "1 day")
    add(place, "b", 3000, "91 days")
    add(place, "c", 3000, "1 day")
    for analyzed in (False, True):  # by guesses, and by what is known of the table
        if analyzed:
            place.one("ANALYZE holdfast.execution, holdfast.ended")
        text, rows = plans(place, "SELECT holdfast.prune_executions('', 0, 0, 0, 0, 50)")
        assert "Seq Scan" not in text and "Sort" not in text, text
        assert "ended_of" in text
        assert rows <= 60, text
    assert place.one("SELECT count(*) FROM holdfast.execution").endswith("\n8900")  # behind its plan


def test_the_number_that_is_kept_is_counted_in_the_index(place):
    add(place, "a", 3000, "1 day")
    place.one("""SELECT holdfast.retain('[{"workflow": "a", "keep_ms": 7776000000, "keep_count": 100}]')""")
    text, rows = plans(place, "SELECT holdfast.prune_executions('', 0, 0, 0, 0, 50)")
    assert "Seq Scan" not in text and "Sort" not in text, text
    assert rows <= 110, text


def test_the_last_key_is_one_look(place):
    add(place, "cron:1", 3000, "1 day")
    place.one("UPDATE holdfast.execution SET workflow = 'w'")
    for analyzed in (False, True):
        if analyzed:
            place.one("VACUUM ANALYZE holdfast.execution")
        text, rows = plans(place, "SELECT key FROM holdfast.execution WHERE workflow = 'w' AND key >= 'cron:' AND"
                                  " key <= 'cron:2' AND NOT once ORDER BY key DESC LIMIT 1")
        assert "execution_key" in text and "Sort" not in text, text
        assert rows <= 1, text


def test_two_who_prune_at_once_share_the_work(place):
    add(place, "a", 100, "91 days")
    first, second = place.session(), place.session()
    assert "60)" in first("BEGIN; SELECT holdfast.prune_executions('', 0, 0, 0, 0, 60)")
    assert ",40)" in second("SELECT holdfast.prune_executions('', 0, 0, 0, 0, 60)")
    first("COMMIT")
    assert place.one("SELECT count(*) FROM holdfast.execution") == "0"


def test_rules_that_are_known_are_not_written_again(place):
    rules = """SELECT holdfast.retain('[{"workflow": "a", "keep_ms": 5, "keep_count": 0},
                                        {"workflow": "b", "keep_ms": 7776000000, "keep_count": 0}]')"""
    first, second = place.session(), place.session()
    first(rules)
    assert place.one("SELECT workflow, keep_ms, keep_count FROM holdfast.retain") == "a|5|0"
    first("BEGIN; " + rules)
    assert second(rules) == "", "waits for nobody"
    first("COMMIT")
