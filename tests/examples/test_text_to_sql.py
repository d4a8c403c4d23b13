"""Text to SQL in LangGraph: any endpoint will do, in its own environment, and a runner records its roles."""

import ast
import hashlib
import os
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightningbus.bus.client import Bus
from lightningbus.tasks.task_publisher import TaskPublisher
from tests.examples.endpoint import Endpoint, ProgramError, talk
from tests.examples.sql import TEXT_TO_SQL, demonstrations, policies, tasks_of
from tests.runners.conftest import calls_of, ended, running, task

OURS = {"bus", "common", "inference", "learner", "lightningbus", "runners", "schemas", "store", "tests"}
DRIVER = "import agent, json, sys; print(json.dumps([agent.solve(task) for task in json.load(sys.stdin)]))"

WRITER, CHECKER, REWRITER = "policy:writer", "policy:checker", "policy:rewriter"
BOTH_WRITE_WRONG = {"writer": 1.0, "rewriter": 1.0}


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
        fields = {"OPENAI_BASE_URL": f"{endpoint.url}/v1", "OPENAI_API_KEY": "any", **env}
        return await talk([str(python), "-c", DRIVER], TEXT_TO_SQL, os.environ | fields, tasks)


def test_the_agent_knows_nothing_of_what_trains_it() -> None:
    for name in ("agent.py", "database.py", "prompts.py"):
        text = (TEXT_TO_SQL / name).read_text()
        assert not re.search(r"lightningbus|\bLB\b", text, re.IGNORECASE), name
        for node in ast.walk(ast.parse(text)):
            names = [item.name for item in node.names] if isinstance(node, ast.Import) else []
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
    fields = {task["question"]: nonsense for task, nonsense in zip(heldout, NONSENSE, strict=False)}

    def answer(messages: list[dict[str, Any]]) -> dict[str, Any]:
        (nonsense,) = [fields[question] for question in fields if question in messages[0]["content"]]
        return {"role": "assistant", **nonsense}

    tasks = heldout[: len(NONSENSE)]
    files = {task["database"]: hashlib.sha256(Path(task["database"]).read_bytes()).digest() for task in tasks}
    assert await solve(python, Endpoint(answer, reads_tools=False), tasks) == [0.0] * len(NONSENSE)
    assert {path: hashlib.sha256(Path(path).read_bytes()).digest() for path in files} == files


async def test_a_fenced_query_is_a_query(python: Path, heldout: list[dict[str, Any]]) -> None:
    right = policies.Policy(heldout)

    def fenced(messages: list[dict[str, Any]]) -> dict[str, Any]:
        answer = right.answer(messages)["content"]
        return {
            "role": "assistant",
            "content": answer if answer == "yes" else f"Here it is:\n```sql\n{answer};\n```\nBye.",
        }

    assert await solve(python, Endpoint(fenced), heldout[:3]) == [1.0] * 3


async def test_one_model_can_be_named_for_all_roles_and_one_turn_for_all_tries(
    python: Path, heldout: list[dict[str, Any]]
) -> None:
    endpoint = scripted(heldout, BOTH_WRITE_WRONG)
    assert await solve(python, endpoint, heldout[:1], MODEL="qwen:7b", TURNS="2") == [0.0]
    assert endpoint.models == ["qwen:7b"] * 3


async def test_the_demonstrations_are_asked_as_the_agent_asks(python: Path, heldout: list[dict[str, Any]]) -> None:
    endpoint = scripted(heldout[:20], {"writer": 0.5, "rewriter": 0.5})
    await solve(python, endpoint, heldout[:20])
    sent = {request["messages"][0]["content"] for request in endpoint.requests if request["model"] == WRITER}
    rng = random.Random(0)
    displayed = [list(demonstrations.conversations(task, rng)) for task in heldout[:20]]
    assert {calls[0][0]["content"] for calls in displayed} == sent
    for problem, calls in zip(heldout[:20], displayed, strict=True):
        for question, replies in calls:
            role = next(name for name, pattern in policies.ROLES.items() if pattern.fullmatch(question["content"]))
            text = replies["content"]
            assert text in ("yes", "no") if role == "checker" else text in (problem["gold"], policies.habit(problem))
        assert not policies.is_right(problem, policies.habit(problem))


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
    with pytest.raises(ProgramError, match=sentence):
        await solve(python, endpoint, [{**heldout[0], **changed}])
    assert endpoint.requests == []


async def test_only_an_endpoint_that_fails_is_an_error(python: Path, heldout: list[dict[str, Any]]) -> None:
    with pytest.raises(ProgramError, match="BadRequestError"):
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
        running(bus, entrypoint="agent:solve", python_executable=python, working_dir=TEXT_TO_SQL),
    ):
        await TaskPublisher(bus).publish_task(task(input=heldout[0]))
        (batch,) = await ended(bus)
    assert batch.end is not None and (batch.end.outcome, batch.end.reward) == ("ok", reward), batch.end
    calls = calls_of(batch)
    assert [call.role for call in calls] == roles and {call.model for call in calls} == {"policy"}
    assert engine.models == ["policy"] * len(roles), "the engine knows no roles"
