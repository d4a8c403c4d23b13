"""The math agent in Node.js with the stock client: a program the runner starts for each rollout."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lightningbus.bus.client import Bus
from lightningbus.tasks.task_publisher import TaskPublisher
from tests.examples.endpoint import EXAMPLES, Endpoint, ProgramError, module, talk
from tests.examples.math_cases import CASES, NAMES_US, problem, scripted
from tests.runners.conftest import calls_of, ended, running, task

NODE = EXAMPLES / "math_node"
COMMAND = ["node", "agent.js"]

needs_node = pytest.mark.skipif(
    shutil.which("node") is None or shutil.which("npm") is None, reason="node and npm are not installed"
)


def test_the_agent_imports_nothing_of_ours_and_does_not_name_us() -> None:
    text = "".join((NODE / name).read_text() for name in ("agent.js", "arithmetic.js"))
    assert set(re.findall(r'from "(.+)"', text)) == {"openai", "node:stream/consumers", "./arithmetic.js"}
    assert not NAMES_US.search(text)


@needs_node
async def test_its_arithmetic_is_that_of_the_python_agents() -> None:
    expressions = ["12 * 3", "(1 + 2) / 4", "0.1 + 0.2", "2 ** 10", "6/3", "1/3", "", "12 *", "x", "1/0", "9**9**9"]
    answers = [("answer: 42.", "42"), ("answer: 18,000", "18_000"), ("answer: c", "C"), ("answer: 4/6", "2/3")]
    answers += [("answer: 6*7", "42"), ("answer: 43", "42"), ("42", "42"), ("answer: 1 answer: 2", "1")]
    arithmetic = module("math_tools", "arithmetic")

    def calculated(expression: str) -> str | None:
        try:
            return arithmetic.calculate(expression)
        except ValueError:
            return None

    script = """
        import { json } from "node:stream/consumers";
        import { calculate, score } from "./arithmetic.js";
        const [expressions, answers] = await json(process.stdin);
        const calculated = (one) => { try { return calculate(one) } catch { return null } };
        console.log(JSON.stringify([expressions.map(calculated), answers.map((one) => score(...one))]));
    """
    command = ["node", "--input-type=module", "-e", script]
    assert await talk(command, NODE, dict(os.environ), [expressions, answers]) == [
        [calculated(item) for item in expressions],
        [arithmetic.score(*answer) for answer in answers],
    ]


@needs_node
async def test_the_agent_runs_unchanged_against_any_openai_endpoint(environment: Callable[[str], Path]) -> None:
    folder = environment("math_node")
    async with Endpoint(scripted).serving() as endpoint:
        env = {**os.environ, "OPENAI_BASE_URL": f"{endpoint.url}/v1", "OPENAI_API_KEY": "any", "MODEL": "some-model"}
        rewards = {case: (await talk(COMMAND, folder, env, problem(case)))["reward"] for case in CASES}
    assert rewards == {case: reward for case, (_, reward) in CASES.items()}
    assert {request["model"] for request in endpoint.requests} == {"some-model"}


@needs_node
async def test_a_rollout_is_recorded_call_by_call(bus: Bus, environment: Callable[[str], Path]) -> None:
    folder = environment("math_node")
    async with Endpoint(scripted).as_node(bus) as node, running(bus, command=COMMAND, working_dir=folder):
        await TaskPublisher(bus).publish_task(task(input=problem("right")))
        (batch,) = await ended(bus)
    assert batch.end is not None and (batch.end.outcome, batch.end.reward) == ("ok", 1.0), batch.end
    calls = calls_of(batch)
    assert len(calls) == len(node.requests) > 1 and {call.role for call in calls} == {""}
    assert json.loads(calls[0].response)["tool_calls"][0]["function"]["name"] == "calculator"


@needs_node
async def test_an_endpoint_that_refuses_is_an_error_of_the_program(environment: Callable[[str], Path]) -> None:
    folder = environment("math_node")
    async with Endpoint(scripted).serving() as endpoint:
        env = {**os.environ, "OPENAI_BASE_URL": f"{endpoint.url}/nowhere", "OPENAI_API_KEY": "any"}
        with pytest.raises(ProgramError) as failed:
            await talk(COMMAND, folder, env, problem("right"))
    assert "NotFoundError" in failed.value.stderr and failed.value.stdout == ""
