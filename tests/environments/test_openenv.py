"""Servers of OpenEnv, unmodified: actions as text, and tools."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightningbus.bus.client import Bus
from tests.environments.conftest import play, write_environment
from tests.environments.test_verifiers import call


async def test_an_action_of_one_field_is_the_models_answer(
    bus: Bus, foreign_python: Callable[[str], Path], tmp_path: Path
) -> None:
    def answer(messages: list[dict[str, Any]]) -> dict[str, Any]:
        seed = re.search(r"Say (\d+)", messages[0]["content"])
        assert seed is not None
        is_first = len(messages) == 1
        return {"role": "assistant", "content": "What?" if is_first else f'{{"message": "{seed[1]}"}}'}

    out = tmp_path / "out"
    write_environment("openenv:echo_server:app", foreign_python("openenv"), out, "--limit", 3, "--heldout", 1)
    results = await play(bus, out, answer)
    assert [(result["reward"], result["num_calls"]) for result in results] == [(0.5, 2)] * 3
    assert results[0]["metrics"] == {"steps": 2, "invalid_actions": 0, "ended": 1.0}


async def test_tools_are_offered_and_called(bus: Bus, foreign_python: Callable[[str], Path], tmp_path: Path) -> None:
    def answer(messages: list[dict[str, Any]]) -> dict[str, Any]:
        if messages[-1]["role"] == "tool":
            return {"role": "assistant", "content": "Done."}
        return call("add", left=1, right=2)

    out = tmp_path / "out"
    write_environment("openenv:echo_server:tools", foreign_python("openenv"), out, "--limit", 2, "--heldout", 1)
    results = await play(bus, out, answer)
    assert [(result["reward"], result["num_calls"]) for result in results] == [(0.25, 2)] * 2
