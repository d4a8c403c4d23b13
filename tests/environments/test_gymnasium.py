"""Environments of Gymnasium, unmodified: text, and discrete actions by number or by name."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightningbus.bus.client import Bus
from tests.environments.conftest import play, write_environment


def say(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def bisect(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Guesses the middle of what is left."""
    low, high, guess = 1, 9, 0
    for message in messages:
        if message["role"] == "assistant":
            guess = int(message["content"])
        elif message["content"] == "Too small.":
            low = guess + 1
        elif message["content"] == "Too large.":
            high = guess - 1
    return say(str((low + high) // 2))


async def test_an_environment_of_text_is_played_to_its_end(
    bus: Bus, foreign_python: Callable[[str], Path], tmp_path: Path
) -> None:
    out, python = tmp_path / "out", foreign_python("verifiers")
    written = write_environment("gymnasium:number_guess:NumberGuess-v0", python, out, "--limit", 4, "--heldout", 2)
    assert written.startswith("4 tasks and 2 held-out ones in ")
    results = await play(bus, out, bisect)
    for result in results:
        assert result["metrics"] == {"steps": result["num_calls"], "invalid_actions": 0, "ended": 1.0}
        assert abs(result["reward"] - (1.0 - 0.1 * (result["num_calls"] - 1))) < 1e-9
    assert len({result["num_calls"] for result in results}) > 1, "seeds decide the number"


async def test_names_of_actions_move_through_a_lake_that_is_shown_as_text(
    bus: Bus, foreign_python: Callable[[str], Path], tmp_path: Path
) -> None:
    """The shortest way over the 4x4 map, after an answer that is no action."""
    way = ["Down", "down", "right", "right", "down", "right"]
    seen: list[str] = []

    def walk(messages: list[dict[str, Any]]) -> dict[str, Any]:
        seen.append(messages[1]["content"])
        turns = sum(message["role"] == "assistant" for message in messages)
        return say("Hm." if turns == 0 else f"I go {way[turns - 1]}.")

    options = ["--arg", "make.is_slippery=false", "--arg", 'actions=["left", "down", "right", "up"]']
    options += ["--arg", "prompt=Walk to G. Say left, down, right or up.", "--limit", "2", "--heldout", "1"]
    write_environment("gymnasium:FrozenLake-v1", foreign_python("verifiers"), tmp_path / "out", *options)
    results = await play(bus, tmp_path / "out", walk)
    assert [result["reward"] for result in results] == [1.0, 1.0]
    assert results[0]["metrics"] == {"steps": 6, "invalid_actions": 1, "ended": 1.0}
    assert re.search(r"FFFH", seen[0]), seen[0]
