"""The math agent in CrewAI: the problems and the reward of `math_tools`, another framework's calls."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from lightningbus.bus.client import Bus
from lightningbus.tasks.task_publisher import TaskPublisher
from tests.examples.endpoint import EXAMPLES, Endpoint, ProgramError, talk
from tests.examples.math_cases import CASES, DRIVER, NAMES_US, OURS, imports_of, problem, scripted
from tests.runners.conftest import calls_of, ended, running, task

CREW = EXAMPLES / "math_crewai"


def test_the_agent_imports_nothing_of_ours_and_does_not_name_us() -> None:
    assert imports_of(CREW / "agent.py") == {"os", "crewai", "openai", "arithmetic"}
    assert not imports_of(CREW / "arithmetic.py") & OURS
    assert not NAMES_US.search((CREW / "agent.py").read_text())


async def test_the_agent_runs_unchanged_against_any_openai_endpoint(environment: Callable[[str], Path]) -> None:
    folder = environment("math_crewai")
    async with Endpoint(scripted).serving() as endpoint:
        env = {**os.environ, "OPENAI_BASE_URL": f"{endpoint.url}/v1", "OPENAI_API_KEY": "any", "MODEL": "some-model"}
        command = [str(folder / ".venv/bin/python"), "-c", DRIVER]
        rewards = await talk(command, folder, env, [problem(case) for case in CASES])
    assert dict(zip(CASES, rewards, strict=True)) == {case: reward for case, (_, reward) in CASES.items()}
    assert {request["model"] for request in endpoint.requests} == {"some-model"}


async def test_an_endpoint_that_refuses_is_an_error_of_the_agent(environment: Callable[[str], Path]) -> None:
    folder = environment("math_crewai")
    async with Endpoint(scripted).serving() as endpoint:
        env = {**os.environ, "OPENAI_BASE_URL": f"{endpoint.url}/nowhere", "OPENAI_API_KEY": "any"}
        with pytest.raises(ProgramError) as failed:
            await talk([str(folder / ".venv/bin/python"), "-c", DRIVER], folder, env, [problem("right")])
    assert "NotFoundError" in failed.value.stderr


async def test_a_rollout_is_recorded_call_by_call(bus: Bus, environment: Callable[[str], Path]) -> None:
    folder = environment("math_crewai")
    agent = {
        "python_executable": folder / ".venv/bin/python",
        "entrypoint": "agent:solve",
        "working_dir": folder,
        "env": {"MODEL": "policy:solver"},
    }
    async with Endpoint(scripted).as_node(bus) as node, running(bus, **agent):
        await TaskPublisher(bus).publish_task(task(input=problem("right")))
        (batch,) = await ended(bus)
    assert batch.end is not None and (batch.end.outcome, batch.end.reward) == ("ok", 1.0), batch.end
    calls = calls_of(batch)
    assert len(calls) == len(node.requests) > 1 and {call.role for call in calls} == {"solver"}
