"""Resources servers of NeMo Gym, as the package has them: tools, and answers that are verified."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightningbus.bus.client import Bus
from tests.environments.conftest import play, write_environment
from tests.environments.test_verifiers import call


async def test_a_server_with_a_tool(bus: Bus, foreign_python: Callable[[str], Path], tmp_path: Path) -> None:
    tool_answers: list[str] = []

    def answer(messages: list[dict[str, Any]]) -> dict[str, Any]:
        if messages[-1]["role"] == "tool":
            tool_answers.append(messages[-1]["content"])
            return {"role": "assistant", "content": "It is cold."}
        return call("get_weather", city="Paris")

    out, name = tmp_path / "out", "nemo-gym:example_single_tool_call"
    write_environment(name, foreign_python("nemo_gym"), out, "--limit", 3)
    results = await play(bus, out, answer)
    assert [(result["reward"], result["num_calls"]) for result in results] == [(1.0, 2)] * 2
    assert "The weather in Paris is cold." in tool_answers[0]


async def test_answers_are_verified(bus: Bus, foreign_python: Callable[[str], Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_environment("nemo-gym:mcqa", foreign_python("nemo_gym"), out, "--limit", 5)
    results = await play(bus, out, lambda messages: {"role": "assistant", "content": r"The answer is \boxed{A}."})
    rewards = [result["reward"] for result in results]
    assert set(rewards) <= {0.0, 1.0} and len(rewards) == 4
