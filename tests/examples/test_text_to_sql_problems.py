"""Text to SQL: its databases are only read, its problems are Spider's, and its scripted policy errs as it should."""

import json
import random
import re
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lightningbus.tasks.task_loading import load_tasks
from tests.examples.sql import databases, demonstrations, make, policies, tasks_of


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "one.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(
            "CREATE TABLE author (id INTEGER PRIMARY KEY, name TEXT);"
            'CREATE TABLE book (title TEXT, "for sale" INTEGER, writer INTEGER REFERENCES author,'
            " editor INTEGER REFERENCES author(id));"
            "INSERT INTO author VALUES (1, 'Ada'), (2, 'Ben'), (3, CAST(x'ff41' AS TEXT));"
        )
    return path


def test_a_schema_is_a_line_per_table(database: Path) -> None:
    assert databases.schema(database).splitlines() == [
        "author(id, name)",
        'book(title, "for sale", writer -> author, editor -> author.id)',
    ]


def test_text_that_is_not_unicode_is_read_all_the_same(database: Path) -> None:
    assert databases.run_query(database, "SELECT name FROM author WHERE id = 3") == [("\ufffdA",)]


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("DELETE FROM author", "not authorized"),
        ("CREATE TEMP TABLE a (b)", "not authorized"),
        ("ATTACH ':memory:' AS other", "not authorized"),
        ("PRAGMA writable_schema = 1", "not authorized"),
        ("SELECT 1; SELECT 2", "one statement"),
        ("SELECT zeroblob(100000)", "too big"),
        ("SELECT a.id FROM author a, author b, author c, author d, author e, author f, author g, author h, author i",
         "more than 10000 rows"),
        ("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n", "longer than 0.2 s"),
        ("SELECT \0", "null character"),
        ("SELECT ?", "bindings"),
        ("", "no query"),
        ("-- only a comment", "no query"),
    ],
)  # fmt: skip
def test_a_query_may_only_read_and_not_for_ever(
    database: Path, monkeypatch: pytest.MonkeyPatch, query: str, why: str
) -> None:
    monkeypatch.setattr(databases, "SECONDS", 0.2)
    with pytest.raises(databases.QueryFailedError, match=why):
        databases.run_query(database, query)


@pytest.mark.parametrize(
    ("gold", "ordered"),
    [
        ("SELECT a FROM b", False),
        ("select a from b order\n by c desc", True),
        ("SELECT a FROM b WHERE c IN (SELECT d FROM e ORDER BY (f + 1) LIMIT 1)", False),
        ("SELECT a FROM b WHERE c = 'order by (' OR c = 'it''s order by'", False),
        ('SELECT a FROM b WHERE c = "order by"', False),
        ("SELECT a FROM (SELECT b FROM c ORDER BY d) ORDER BY a", True),
    ],
)
def test_order_matters_only_where_the_gold_query_orders_its_rows(gold: str, ordered: bool) -> None:
    assert databases.same_result(gold, [(1, "x"), (2, "y")], [(2, "y"), (1, "x")]) is not ordered
    assert databases.same_result(gold, [(1, "x"), (2, "y")], [(1.0, "x"), (2.0, "y")])
    assert not databases.same_result(gold, [(1,), (1,), (2,)], [(1,), (2,), (2,)])
    assert not databases.same_result(gold, [(1,)], [("1",)])


def spider(directory: Path, database: Path, **changes: Any) -> Path:
    """Spider's files with one record, every field that its own have."""
    (directory / "database" / "books").mkdir(parents=True)
    (directory / "database" / "books" / "books.sqlite").write_bytes(database.read_bytes())
    record = {
        "db_id": "books",
        "query": "SELECT count(*) FROM author",
        "query_toks": ["SELECT", "count", "(", "*", ")", "FROM", "author"],
        "query_toks_no_value": ["select", "count", "(", "*", ")", "from", "author"],
        "question": "How many authors do we have? ",
        "question_toks": ["How", "many", "authors", "do", "we", "have", "?"],
        "sql": {
            "from": {"table_units": [["table_unit", 0]], "conds": []},
            "select": [False, [[3, [0, [0, 0, False], None]]]],
            "where": [], "groupBy": [], "having": [], "orderBy": [],
            "limit": None, "intersect": None, "union": None, "except": None,
        },
    }  # fmt: skip
    broken = {**record, "query": "SELECT missing FROM author"}
    changed = {key: value for key, value in {**record, **changes}.items() if value is not None}
    (directory / "train_spider.json").write_text(json.dumps([record, broken, record]))
    (directory / "dev.json").write_text(json.dumps([changed]))
    return directory


def test_spiders_own_files_become_tasks(tmp_path: Path, database: Path) -> None:
    source = spider(tmp_path / "spider", database)
    done = make(tmp_path / "out", "--spider", str(source))
    assert done.returncode == 0, done.stderr
    assert "train_spider.json record 1 is left out, its query fails: no such column: missing" in done.stderr
    train, heldout = (load_tasks(tmp_path / "out" / f"{part}.jsonl") for part in ("train", "heldout"))
    assert [problem.id for problem in (*train, *heldout)] == ["train_spider-0", "train_spider-2", "dev-0"]
    assert heldout[0].input == {
        "question": "How many authors do we have?",
        "database": str((source / "database" / "books" / "books.sqlite").resolve()),
        "gold": "SELECT count(*) FROM author",
    }


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"question": None}, "dev.json record 0 needs db_id, question and query"),
        ({"db_id": "x"}, "there is no .*x.sqlite"),
    ],
)
def test_a_record_that_is_not_spiders_is_named(
    tmp_path: Path, database: Path, changes: dict[str, Any], sentence: str
) -> None:
    done = make(tmp_path / "out", "--spider", str(spider(tmp_path / "spider", database, **changes)))
    assert done.returncode != 0 and re.search(sentence, done.stderr)


def test_what_is_held_out_is_neither_asked_nor_answered_in_training(stand_in: Path) -> None:
    train, heldout = (tasks_of(stand_in / f"{part}.jsonl") for part in ("train", "heldout"))
    assert (len(train), len(heldout)) == (1200, 100)
    for field in ("question", "gold"):
        request, kept = ({(item["database"], item[field]) for item in part} for part in (train, heldout))
        assert len(request | kept) == 1300 and not request & kept
    assert len({item["database"] for item in heldout}) == 8
    for kind in ("^SELECT [a-z]+ ", " WHERE ", "count", "max|min|avg", "ORDER BY .* LIMIT", "GROUP BY", "JOIN"):
        assert sum(bool(re.search(kind, item["gold"])) for item in heldout) >= 5, kind


def test_a_seed_makes_the_same_problems_and_another_makes_others(tmp_path: Path, stand_in: Path) -> None:
    again, other = tmp_path / "again", tmp_path / "other"
    assert make(again).returncode == make(other, "--seed", "1").returncode == 0

    def read_tasks(out: Path) -> list[Any]:
        tasks = [*tasks_of(out / "train.jsonl"), *tasks_of(out / "heldout.jsonl")]
        return [(task["question"], databases.run_query(task["database"], task["gold"])) for task in tasks]

    assert read_tasks(again) == read_tasks(stand_in) != read_tasks(other)


def test_flawed_queries_are_wrong_in_many_ways(stand_in: Path) -> None:
    tasks = tasks_of(stand_in / "train.jsonl")[:100]
    policy = policies.Policy(tasks, {"writer": 0.5})
    requests = [policies.prompts.WRITER.format(schema=databases.schema(task["database"]), **task) for task in tasks]
    texts = [policy.answer([{"role": "user", "content": item}])["content"] for item in requests]
    right = [policies.is_right(item, query) for item, query in zip(tasks, texts, strict=True)]
    assert [query == item["gold"] for item, query in zip(tasks, texts, strict=True)] == right
    assert 30 <= sum(right) <= 70
    assert len({query for query, is_right in zip(texts, right, strict=True) if not is_right}) >= 25


def test_only_the_rows_say_which_table_answers_a_lookup(tmp_path: Path, stand_in: Path) -> None:
    sizes = ("--train", "60", "--heldout", "20")
    assert make(tmp_path, "--databases", "0", "--kinds", "lookups", *sizes).returncode == 0
    tasks = tasks_of(tmp_path / "train.jsonl")
    others = [policies.twin(task) for task in tasks]
    for task, other in zip(tasks, others, strict=True):
        assert len(databases.run_query(task["database"], task["gold"])) == 1
        assert databases.run_query(task["database"], other) == []
    assert 15 <= sum(" guest " in task["gold"] for task in tasks) <= 45
    usual = tasks_of(stand_in / "heldout.jsonl")
    assert [task for task in usual if policies.twin(task)] == []


def test_a_lenient_beginner_guesses_the_table_and_refuses_few_queries(tmp_path: Path) -> None:
    assert make(tmp_path, "--databases", "0", "--kinds", "lookups", "--train", "200", "--heldout", "20").returncode == 0
    rng, beginner = random.Random(0), demonstrations.Beginner(0.0, 1.0, 0.0, lenient=0.9)
    num_right, verdicts = 0, Counter()
    for task in tasks_of(tmp_path / "train.jsonl"):
        (_, first), (_, verdict), *rest = demonstrations.conversations(task, rng, beginner)
        is_right = policies.is_right(task, first["content"])
        num_right += is_right
        verdicts[is_right, verdict["content"]] += 1
        assert [answer["content"] for _, answer in rest[:1]] == [policies.habit(task)] * (not is_right)
    assert 70 <= num_right <= 130 and (True, "no") not in verdicts
    assert 0 < verdicts[False, "no"] < verdicts[False, "yes"] / 3
