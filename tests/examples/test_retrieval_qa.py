"""Multi-hop retrieval with the OpenAI Agents SDK: any endpoint will do, in its own environment; a runner records it."""

import ast
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from bus import Bus
from runners.dialects.responses import Responses
from tests.examples.endpoint import Endpoint, talk
from tests.examples.math_cases import NAMES_US, OURS, imports_of
from tests.examples.musique import RETRIEVAL, lines, make, policies
from tests.runners.conftest import ended, running, task

DRIVER = """
import agent, asyncio, json, sys
tasks = json.load(sys.stdin)

async def solve():
    return await asyncio.gather(*map(agent.solve, tasks))

print(json.dumps(asyncio.run(solve())))
"""
"""Solves tasks side by side."""
ONE_BY_ONE = DRIVER.replace("asyncio.gather(*map(agent.solve, tasks))", "one_by_one()").replace(
    "async def solve",
    "async def one_by_one():\n    return [await agent.solve(task) for task in tasks]\n\nasync def solve",
)


class AnyEndpoint(Endpoint):
    """OpenAI's own API for agents, beside chats; what it is asked is kept as the chat that it stands for."""

    async def _response(self, request: web.Request) -> web.Response:
        asked = Responses(await request.json(), {})
        self.requests.append(asked.call.body)
        message = self.answer(asked.call.body["messages"])
        if isinstance(message, int):
            return web.json_response({"error": {"message": "refused as scripted"}}, status=message)
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        usage = {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4}
        return web.json_response(asked.answer({"id": f"c-{len(self.requests)}", "choices": [choice], "usage": usage}))

    def _routes(self, app: web.Application) -> None:
        super()._routes(app)
        app.router.add_post("/v1/responses", self._response)


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the stand-in's questions."""
    out = tmp_path_factory.mktemp("musique")
    done = make(out)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def heldout(questions: Path) -> list[dict[str, Any]]:
    return [one["input"] for one in lines(questions / "heldout.jsonl")]


@pytest.fixture(scope="module")
def records(questions: Path) -> list[dict[str, Any]]:
    return lines(questions / "heldout_records.jsonl")


@pytest.fixture(scope="module")
def python(environment: Callable[[str], Path]) -> Path:
    return environment("retrieval_qa") / ".venv" / "bin" / "python"


def literal(path: Path, name: str) -> Any:
    """What a file that cannot be imported here gives a name."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == name:
            return ast.literal_eval(node.value)
    raise LookupError(name)


async def solve(
    python: Path, endpoint: Endpoint, tasks: list[dict[str, Any]], driver: str = DRIVER, **env: str
) -> list[float]:
    """The agent's rewards, in its own interpreter."""
    async with endpoint.serving():
        said = {"OPENAI_BASE_URL": f"{endpoint.url}/v1", "OPENAI_API_KEY": "any", **env}
        kept = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
        return await talk([str(python), "-c", driver], RETRIEVAL, kept | said, tasks)


def test_the_agent_knows_nothing_of_what_trains_it() -> None:
    for name in ("agent.py", "retrieval.py", "scoring.py"):
        assert not NAMES_US.search((RETRIEVAL / name).read_text()), name
        assert not imports_of(RETRIEVAL / name) & OURS


async def test_a_right_policy_finds_every_passage_it_needs(
    python: Path, heldout: list[dict[str, Any]], records: list[dict[str, Any]]
) -> None:
    endpoint = AnyEndpoint(policies.Policy(records).answer)
    assert await solve(python, endpoint, heldout) == [1.0] * len(heldout)
    assert endpoint.models == ["policy"] * 3 * len(heldout)
    longest = max(len(" ".join(str(one["content"]) for one in asked["messages"])) for asked in endpoint.requests)
    assert longest < 400


async def test_the_demonstrations_are_asked_as_the_agent_asks(
    tmp_path: Path, python: Path, questions: Path, heldout: list[dict[str, Any]], records: list[dict[str, Any]]
) -> None:
    out = tmp_path / "demonstrations.jsonl"
    files = ["--records", questions / "heldout_records.jsonl", "--corpus", questions / "corpus", "--out", out]
    subprocess.run([python, RETRIEVAL / "demonstrations.py", *files, "--times", "1"], check=True)
    shown = lines(out)
    habits = literal(RETRIEVAL / "demonstrations.py", "HABITS")
    endpoint = AnyEndpoint(policies.Policy(records, habits, seed=0).answer)
    await solve(python, endpoint, heldout, ONE_BY_ONE)
    assert [asked["messages"] for asked in endpoint.requests] == [one["messages"][:-1] for one in shown]
    assert all(asked["tools"] == one["tools"] for asked, one in zip(endpoint.requests, shown, strict=True))
    answers = [one["messages"][-1] for one in shown if one["messages"][-1]["content"]]
    assert len(answers) == 100
    first = [one["question_decomposition"][0]["answer"] for one in records]
    soon = sum(step in said["content"] for step, said in zip(first, answers, strict=True))
    assert 55 <= soon <= 85 and 15 <= sum("<answer>" not in said["content"] for said in answers) <= 45


async def test_a_runner_records_calls_and_tools_in_one_tree(
    bus: Bus, python: Path, heldout: list[dict[str, Any]], records: list[dict[str, Any]]
) -> None:
    async with (
        Endpoint(policies.Policy(records).answer).as_node(bus) as engine,
        running(bus, agent="agent:solve", python=python, path=RETRIEVAL),
    ):
        await bus.publish_task(task(input=heldout[0], deadline=60.0))
        (batch,) = await ended(bus)
    assert batch.end is not None and (batch.end.outcome, batch.end.reward) == ("ok", 1.0), batch.end
