"""Text to SQL in LangGraph: databases are only read, problems are Spider's, and any endpoint will do."""

import ast
import hashlib
import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bus import Bus
from bus.tasks import read_problems
from tests.examples.endpoint import EXAMPLES, Endpoint, module, talk
from tests.runners.conftest import calls_of, ended, running, task

TEXT_TO_SQL = EXAMPLES / "text_to_sql"
OURS = {"bus", "inference", "learner", "lightningbus", "runners", "schemas", "store", "tests"}
DRIVER = "import agent, json, sys; print(json.dumps([agent.solve(task) for task in json.load(sys.stdin)]))"

policies = module("text_to_sql", "policy")
databases = module("text_to_sql", "database")

WRITER, CHECKER, REWRITER = "policy:writer", "policy:checker", "policy:rewriter"
BOTH_WRITE_WRONG = {"writer": 1.0, "rewriter": 1.0}


def make(out: Path, *options: str) -> subprocess.CompletedProcess:
    script = [sys.executable, str(TEXT_TO_SQL / "data.py"), "--out", str(out), *options]
    return subprocess.run(script, capture_output=True, text=True)


def tasks_of(path: Path) -> list[dict[str, Any]]:
    return [problem.input for problem in read_problems(path)]


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the stand-in's problems, as its reader makes them."""
    out = tmp_path_factory.mktemp("sql")
    assert make(out).returncode == 0
    return out


@pytest.fixture(scope="module")
def heldout(stand_in: Path) -> list[dict[str, Any]]:
    return tasks_of(stand_in / "heldout.jsonl")


@pytest.fixture(scope="module")
def python(environment: Callable[[str], Path]) -> Path:
    return environment("text_to_sql") / ".venv" / "bin" / "python"


def scripted(tasks: list[dict[str, Any]], flaws: dict[str, float] | None = None) -> Endpoint:
    return Endpoint(policies.Policy(tasks, flaws).answer)


async def solve(python: Path, endpoint: Endpoint, tasks: list[dict[str, Any]], **env: str) -> list[float]:
    """The agent's rewards, in its own interpreter."""
    async with endpoint.serving():
        said = {"OPENAI_BASE_URL": f"{endpoint.url}/v1", "OPENAI_API_KEY": "any", **env}
        return await talk([str(python), "-c", DRIVER], TEXT_TO_SQL, os.environ | said, tasks)


# --- the agent


def test_the_agent_knows_nothing_of_what_trains_it() -> None:
    for name in ("agent.py", "database.py", "prompts.py"):
        text = (TEXT_TO_SQL / name).read_text()
        assert not re.search(r"lightningbus|\bLB\b", text, re.IGNORECASE), name
        for node in ast.walk(ast.parse(text)):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {name.split(".")[0] for name in names} & OURS


async def test_a_right_policy_is_asked_twice_and_rewarded(python: Path, heldout: list[dict[str, Any]]) -> None:
    endpoint = scripted(heldout)
    assert await solve(python, endpoint, heldout) == [1.0] * len(heldout)
    assert endpoint.models == [WRITER, CHECKER] * len(heldout)
    longest = max(len(message["content"]) for request in endpoint.requests for message in request["messages"])
    assert longest < 400 and all(len(request["messages"]) == 1 for request in endpoint.requests)


@pytest.mark.parametrize(
    ("flaws", "reward", "models"),
    [
        ({"writer": 1.0}, 1.0, [WRITER, CHECKER, REWRITER, CHECKER]),
        (BOTH_WRITE_WRONG, 0.0, [WRITER, CHECKER, REWRITER, CHECKER, REWRITER]),
        ({"writer": 1.0, "checker": 1.0}, 0.0, [WRITER, CHECKER]),
        ({"checker": 1.0}, 1.0, [WRITER, CHECKER, REWRITER, CHECKER, REWRITER]),
    ],
    ids=["corrected", "never-right", "wrong-and-believed", "right-and-doubted"],
)
async def test_flaws_take_the_graphs_other_ways(
    python: Path, heldout: list[dict[str, Any]], flaws: dict[str, float], reward: float, models: list[str]
) -> None:
    endpoint = scripted(heldout, flaws)
    assert await solve(python, endpoint, heldout[:12]) == [reward] * 12
    assert endpoint.models == models * 12


NONSENSE: list[dict[str, Any]] = [
    {"content": ""},
    {"content": None},
    {"content": "yes"},
    {"content": "no idea, but ```sql\n``` is a fence and {question} a brace"},
    {"content": "DROP TABLE book; DELETE FROM singer"},
    {"content": "SELECT 'no \\0 \x00 end"},
    {"content": "SELECT " + "(" * 5000},
    {"content": "🙃 " * 400},
    {"content": None, "tool_calls": [{"id": "a", "type": "function", "function": {"name": "x", "arguments": "{no"}}]},
    {"content": None, "tool_calls": [{"id": "b", "type": "function", "function": {"name": "", "arguments": "[1]"}}]},
]


async def test_nonsense_is_rewarded_with_nothing_and_harms_nothing(python: Path, heldout: list[dict[str, Any]]) -> None:
    said = {task["question"]: nonsense for task, nonsense in zip(heldout, NONSENSE, strict=False)}

    def answer(messages: list[dict[str, Any]]) -> dict[str, Any]:
        (nonsense,) = [said[question] for question in said if question in messages[0]["content"]]
        return {"role": "assistant", **nonsense}

    tasks = heldout[: len(NONSENSE)]
    files = {task["database"]: hashlib.sha256(Path(task["database"]).read_bytes()).digest() for task in tasks}
    assert await solve(python, Endpoint(answer), tasks) == [0.0] * len(NONSENSE)
    assert {path: hashlib.sha256(Path(path).read_bytes()).digest() for path in files} == files


async def test_a_fenced_query_is_a_query(python: Path, heldout: list[dict[str, Any]]) -> None:
    right = policies.Policy(heldout)

    def fenced(messages: list[dict[str, Any]]) -> dict[str, Any]:
        said = right.answer(messages)["content"]
        return {"role": "assistant", "content": said if said == "yes" else f"Here it is:\n```sql\n{said};\n```\nBye."}

    assert await solve(python, Endpoint(fenced), heldout[:3]) == [1.0] * 3


async def test_one_model_can_be_named_for_all_roles_and_one_turn_for_all_tries(
    python: Path, heldout: list[dict[str, Any]]
) -> None:
    endpoint = scripted(heldout, BOTH_WRITE_WRONG)
    assert await solve(python, endpoint, heldout[:1], MODEL="qwen:7b", TURNS="2") == [0.0]
    assert endpoint.models == ["qwen:7b"] * 3


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"gold": "SELECT missing FROM nowhere"}, "the gold query fails on .*no such table: nowhere"),
        ({"database": "/no/where.sqlite"}, "there is no database /no/where.sqlite"),
    ],
)
async def test_a_task_that_cannot_be_rewarded_is_an_error_that_says_so(
    python: Path, heldout: list[dict[str, Any]], changed: dict[str, str], sentence: str
) -> None:
    endpoint = scripted(heldout)
    with pytest.raises(AssertionError, match=sentence):
        await solve(python, endpoint, [{**heldout[0], **changed}])
    assert endpoint.requests == []


async def test_only_an_endpoint_that_fails_is_an_error(python: Path, heldout: list[dict[str, Any]]) -> None:
    with pytest.raises(AssertionError, match="BadRequestError"):
        await solve(python, Endpoint(lambda messages: 400), heldout[:1])


@pytest.mark.parametrize(
    ("flaws", "reward", "roles"),
    [
        ({"writer": 1.0}, 1.0, ["writer", "checker", "rewriter", "checker"]),
        ({"writer": 1.0, "checker": 1.0}, 0.0, ["writer", "checker"]),
    ],
    ids=["corrected", "wrong"],
)
async def test_a_runner_records_every_role(
    bus: Bus, python: Path, heldout: list[dict[str, Any]], flaws: dict[str, float], reward: float, roles: list[str]
) -> None:
    async with (
        scripted(heldout, flaws).as_node(bus) as engine,
        running(bus, agent="agent:solve", python=python, path=TEXT_TO_SQL),
    ):
        await bus.publish_task(task(input=heldout[0], deadline=60.0))
        (batch,) = await ended(bus)
    assert batch.end is not None and (batch.end.outcome, batch.end.reward) == ("ok", reward), batch.end
    calls = calls_of(batch)
    assert [call.role for call in calls] == roles and {call.model for call in calls} == {"policy"}
    assert engine.models == ["policy"] * len(roles), "the engine knows no roles"


# --- its databases


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
    with pytest.raises(databases.QueryFailed, match=why):
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


# --- its problems


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
    train, heldout = (read_problems(tmp_path / "out" / f"{part}.jsonl") for part in ("train", "heldout"))
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
    assert (len(train), len(heldout)) == (800, 100)
    for field in ("question", "gold"):
        asked, kept = ({(one["database"], one[field]) for one in part} for part in (train, heldout))
        assert len(asked | kept) == 900 and not asked & kept
    assert len({one["database"] for one in heldout}) == 8
    for kind in ("^SELECT [a-z]+ ", " WHERE ", "count", "max|min|avg", "ORDER BY .* LIMIT", "GROUP BY", "JOIN"):
        assert sum(bool(re.search(kind, one["gold"])) for one in heldout) >= 5, kind


def test_a_seed_makes_the_same_problems_and_another_makes_others(tmp_path: Path, stand_in: Path) -> None:
    again, other = tmp_path / "again", tmp_path / "other"
    assert make(again).returncode == make(other, "--seed", "1").returncode == 0

    def made(out: Path) -> list[Any]:
        tasks = [*tasks_of(out / "train.jsonl"), *tasks_of(out / "heldout.jsonl")]
        return [(one["question"], databases.run_query(one["database"], one["gold"])) for one in tasks]

    assert made(again) == made(stand_in) != made(other)


# --- its scripted policy


def test_flawed_queries_are_wrong_in_many_ways(stand_in: Path) -> None:
    tasks = tasks_of(stand_in / "train.jsonl")[:100]
    policy = policies.Policy(tasks, {"writer": 0.5})
    asked = [policies.prompts.WRITER.format(schema=databases.schema(one["database"]), **one) for one in tasks]
    said = [policy.answer([{"role": "user", "content": one}])["content"] for one in asked]
    right = [policies.is_right(one, query) for one, query in zip(tasks, said, strict=True)]
    assert [query == one["gold"] for one, query in zip(tasks, said, strict=True)] == right
    assert 30 <= sum(right) <= 70
    assert len({query for query, is_right in zip(said, right, strict=True) if not is_right}) >= 25
