"""Multi-hop retrieval with the OpenAI Agents SDK: any endpoint will do, in its own environment; a runner records it."""

import ast
import asyncio
import json
import os
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from lightningbus.bus.client import Bus
from lightningbus.runners.protocol.dialects.responses import ResponsesDialect
from lightningbus.schemas.semconv.span_kinds import kind_of
from lightningbus.schemas.spans import Span
from lightningbus.tasks.task_publisher import TaskPublisher
from tests.examples.endpoint import Answer, Endpoint, ProgramError, talk
from tests.examples.math_cases import NAMES_US, OURS, calls, imports_of, text
from tests.examples.musique import RETRIEVAL, lines, make, policies, searching
from tests.runners.conftest import calls_of, ended, running, task

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
        dialect = ResponsesDialect(await request.json(), {})
        self.requests.append(dialect.call.body)
        message = self.answer(dialect.call.body["messages"])
        if isinstance(message, int):
            return web.json_response({"error": {"message": "refused as scripted"}}, status=message)
        finish = "length" if len(message.get("content") or "") > 1000 else "stop"
        choice = {"index": 0, "finish_reason": finish, "message": message}
        usage = {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4}
        return web.json_response(dialect.answer({"id": f"c-{len(self.requests)}", "choices": [choice], "usage": usage}))

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
    return [line["input"] for line in lines(questions / "heldout.jsonl")]


@pytest.fixture(scope="module")
def records(questions: Path) -> list[dict[str, Any]]:
    return lines(questions / "heldout_records.jsonl")


@pytest.fixture(scope="module")
def python(environment: Callable[[str], Path]) -> Path:
    return environment("retrieval_qa") / ".venv" / "bin" / "python"


@pytest.fixture(scope="module", autouse=True)
def retrieval(python: Path, questions: Path) -> Iterator[str]:
    """The address of the server that the agents of this module search by."""
    with searching(python, questions / "corpus") as url, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RETRIEVAL_URL", url)
        yield url


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
        fields = {"OPENAI_BASE_URL": f"{endpoint.url}/v1", "OPENAI_API_KEY": "any", **env}
        kept = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
        return await talk([str(python), "-c", driver], RETRIEVAL, kept | fields, tasks)


def test_the_agent_knows_nothing_of_what_trains_it() -> None:
    for name in ("agent.py", "retrieval.py", "retrieval_server.py", "scoring.py"):
        assert not NAMES_US.search((RETRIEVAL / name).read_text()), name
        assert not imports_of(RETRIEVAL / name) & OURS


async def test_a_right_policy_finds_every_passage_it_needs(
    python: Path, heldout: list[dict[str, Any]], records: list[dict[str, Any]]
) -> None:
    endpoint = AnyEndpoint(policies.Policy(records).answer)
    assert await solve(python, endpoint, heldout) == [1.0] * len(heldout)
    assert endpoint.models == ["policy"] * 3 * len(heldout)
    longest = max(len(" ".join(str(item["content"]) for item in request["messages"])) for request in endpoint.requests)
    assert longest < 400


def test_the_agent_can_be_looked_at_without_a_key(python: Path) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    subprocess.run([python, "-c", "import agent"], cwd=RETRIEVAL, env=env, check=True)


@pytest.fixture(scope="module")
def demonstrations(tmp_path_factory: pytest.TempPathFactory, python: Path, questions: Path) -> list[dict[str, Any]]:
    """What a beginner shows about the questions held out."""
    out = tmp_path_factory.mktemp("shown") / "demonstrations.jsonl"
    files = ["--records", questions / "heldout_records.jsonl", "--corpus", questions / "corpus", "--out", out]
    subprocess.run([python, RETRIEVAL / "demonstrations.py", *files], check=True)
    return lines(out)


async def test_the_demonstrations_are_asked_as_the_agent_asks(
    python: Path, heldout: list[dict[str, Any]], records: list[dict[str, Any]], demonstrations: list[dict[str, Any]]
) -> None:
    habits = literal(RETRIEVAL / "demonstrations.py", "HABITS")
    endpoint = AnyEndpoint(policies.Policy(records, habits, seed=0).answer)
    rewards = await solve(python, endpoint, heldout, ONE_BY_ONE)
    displayed = [
        {"messages": demonstration["messages"][:at], "tools": demonstration["tools"]}
        for demonstration in demonstrations
        for at, message in enumerate(demonstration["messages"])
        if message["role"] == "assistant"
    ]
    assert [{"messages": request["messages"], "tools": request["tools"]} for request in endpoint.requests] == displayed
    assert 0.15 < sum(rewards) / len(rewards) < 0.4, "the beginner's; most of them are the form's alone"


async def test_a_runner_records_calls_and_tools_in_one_tree(
    bus: Bus, python: Path, retrieval: str, heldout: list[dict[str, Any]], records: list[dict[str, Any]]
) -> None:
    async with (
        Endpoint(policies.Policy(records).answer).as_node(bus) as engine,
        running(
            bus,
            entrypoint="agent:solve",
            python_executable=python,
            working_dir=RETRIEVAL,
            env={"RETRIEVAL_URL": retrieval},
        ),  # fmt: skip
    ):
        await TaskPublisher(bus).publish_task(task(input=heldout[0]))
        (batch,) = await ended(bus)
    assert batch.end is not None and (batch.end.outcome, batch.end.reward) == ("ok", 1.0), batch.end
    assert len(calls_of(batch)) == 3 and all(call.response_ids for call in calls_of(batch))
    named = {span.span_id: span for span in batch.spans}

    def above(span: Span) -> list[str]:
        actual = named.get(span.parent_span_id)
        return [] if actual is None else [actual.name, *above(actual)]

    turn = ["turn", "solver", "Agent workflow", "Agent workflow", "invoke_agent default"]
    assert [above(span) for span in batch.spans if span.call is not None] == [["response", *turn]] * 3
    tools = [span for span in batch.spans if kind_of(span.name, span.attributes) == "tool"]
    assert [(span.name, span.status, above(span)) for span in tools] == [("search", "ok", turn)] * 2
    request, (_, supported) = engine.requests[-1], policies.Policy(records).paragraphs(heldout[0]["question"])
    assert request["messages"][-1]["content"].split("\n")[0] == supported


NO_END: dict[str, Answer] = {
    "unknown tool": calls("find", '{"query": "x"}'),
    "no tool": calls("", "{}"),
    "no query": calls("search", '{"question": "x"}'),
    "no text": calls("search", '{"query": 12}'),
    "nothing to call with": calls("search", ""),
    "null": calls("search", "null"),
    "list": calls("search", "[1]"),
    "unreadable": calls("search", '{"query": "x'),
    "no character": calls("search", json.dumps({"query": "\0 \u2028"})),
    "empty query": calls("search", '{"query": ""}'),
    "long query": calls("search", json.dumps({"query": "birthplace of " * 5000})),
}
"""Calls again and again; none of them is an error of the agent."""
NO_ANSWER: dict[str, str | None] = {
    "empty": "",
    "nothing": None,
    "nonsense": "</answer> \0 <answer> }{ <tool_call>",
    "form only": "<answer> </answer>",
    "long": "🙃 " * 4000,
}


async def test_nonsense_is_rewarded_with_nothing_and_harms_nothing(python: Path, heldout: list[dict[str, Any]]) -> None:
    half_a_character = calls("search", '{"query": "\\ud83d"}')
    cases = [*NO_END.values(), *map(text, NO_ANSWER.values()), half_a_character]
    fields = {item["question"]: case for item, case in zip(heldout, cases, strict=False)}
    endpoint = AnyEndpoint(lambda messages: fields[messages[1]["content"]](messages))
    rewards = await solve(python, endpoint, heldout[: len(cases)])
    names = [*NO_END, *NO_ANSWER, "half a character"]
    assert dict(zip(names, rewards, strict=True)) == dict.fromkeys(names, 0.0)
    counts = Counter(request["messages"][1]["content"] for request in endpoint.requests)
    assert list(counts.values()).count(6) == len(NO_END), "it goes on after a call that fails, until its turns are over"
    assert max(len(item["content"]) for request in endpoint.requests for item in request["messages"][3::2]) < 400


FLAWS = {"stops": (0.1, 2), "untagged": (0.0, 3), "verbatim": (1.0, 4), "malformed": (0.0, 6), "unknown_tool": (0.1, 2)}
"""What each comes to, and after how many calls at most."""


async def test_each_flaw_costs_what_it_should(
    python: Path, heldout: list[dict[str, Any]], records: list[dict[str, Any]]
) -> None:
    flawed = {item["question"]: flaw for item, flaw in zip(heldout, cycle(FLAWS), strict=False)}
    policy = {flaw: policies.Policy(records, {flaw: 1.0}) for flaw in FLAWS}
    endpoint = AnyEndpoint(lambda messages: policy[flawed[messages[1]["content"]]].answer(messages))
    rewards = await solve(python, endpoint, heldout)
    assert rewards == pytest.approx([FLAWS[flaw][0] for flaw in flawed.values()])
    arguments = Counter(request["messages"][1]["content"] for request in endpoint.requests)
    for flaw, (_, called) in FLAWS.items():
        counts = {count for question, count in arguments.items() if flawed[question] == flaw}
        assert counts == {called} or (flaw == "verbatim" and counts <= {3, called}), flaw


async def test_only_an_endpoint_that_fails_is_an_error(python: Path, heldout: list[dict[str, Any]]) -> None:
    with pytest.raises(ProgramError, match="BadRequestError"):
        await solve(python, AnyEndpoint(lambda messages: 400), heldout[:1])


async def test_a_search_that_nobody_answers_fails_the_rollout_instead_of_ending_it_with_0(
    python: Path, heldout: list[dict[str, Any]], records: list[dict[str, Any]]
) -> None:
    with pytest.raises(ProgramError, match=r"127.0.0.1:9 does not search .*is retrieval_server.py running"):
        await solve(
            python, AnyEndpoint(policies.Policy(records).answer), heldout[:1], RETRIEVAL_URL="http://127.0.0.1:9"
        )


@pytest.mark.parametrize("traced", [True, False])
async def test_nothing_goes_to_the_vendor_of_the_sdk(
    python: Path, heldout: list[dict[str, Any]], records: list[dict[str, Any]], traced: bool
) -> None:
    reached, exported = [], []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.append(await reader.readline())
        writer.close()

    class Traced(AnyEndpoint):
        def _routes(self, app: web.Application) -> None:
            super()._routes(app)
            app.router.add_post("/v1/traces", self._traces)

        async def _traces(self, request: web.Request) -> web.Response:
            exported.append(await request.read())
            return web.Response(content_type="application/x-protobuf")

    endpoint = Traced(policies.Policy(records).answer)
    async with await asyncio.start_server(proxy, "127.0.0.1", 0) as outside, endpoint.serving():
        env = {"OPENAI_BASE_URL": f"{endpoint.url}/v1", "OPENAI_API_KEY": "any", "NO_PROXY": "127.0.0.1"}
        env["HTTPS_PROXY"] = f"http://127.0.0.1:{outside.sockets[0].getsockname()[1]}"
        if traced:
            env["OTEL_EXPORTER_OTLP_ENDPOINT"] = endpoint.url
        assert await talk([str(python), "-c", DRIVER], RETRIEVAL, os.environ | env, heldout[:1]) == [1.0]
    assert not reached and bool(exported) == traced
