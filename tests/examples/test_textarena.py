"""The agent of TextArena's games: any game for one player by name, scored by the game itself."""

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.examples.endpoint import EXAMPLES, Endpoint, talk
from tests.examples.math_cases import DRIVER, NAMES_US, OURS, imports_of

ARENA = EXAMPLES / "textarena"
NUMBERS = range(1, 21)


def test_the_agent_imports_nothing_of_ours_and_does_not_name_us() -> None:
    assert imports_of(ARENA / "agent.py") == {"os", "openai", "game"}
    assert imports_of(ARENA / "game.py") == {"typing", "textarena"}
    assert not imports_of(ARENA / "data.py") & OURS
    assert not any(NAMES_US.search((ARENA / name).read_text()) for name in ("agent.py", "game.py"))


def run_data(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(folder / ".venv/bin/python"), "data.py", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def make_tasks(folder: Path, out: Path, *arguments: str) -> list[list[dict[str, Any]]]:
    """Lines to train on and held-out lines."""
    done = run_data(folder, *arguments, "--train", "20", "--heldout", "8", "--out", str(out))
    assert done.returncode == 0, done.stderr
    return [[json.loads(line) for line in (out / f"{name}.jsonl").open()] for name in ("train", "heldout")]


async def play(folder: Path, answer: Callable[[list[dict[str, Any]]], str], tasks: list[Any], **env: str) -> Any:
    """Rewards of tasks, played by a policy that is given the messages."""
    async with Endpoint(lambda messages: {"role": "assistant", "content": answer(messages)}).serving() as endpoint:
        env = {**os.environ, "OPENAI_BASE_URL": f"{endpoint.url}/v1", "OPENAI_API_KEY": "any", **env}
        return await talk([str(folder / ".venv/bin/python"), "-c", DRIVER], folder, env, tasks)


def halve(messages: list[dict[str, Any]]) -> str:
    """A guess by the hints of the last game in a conversation; each hint is a message of its own."""
    game = max(place for place, message in enumerate(messages) if "Enter your guess" in message["content"])
    low, high = NUMBERS[0], NUMBERS[-1]
    for move, hint in zip(messages[game + 1 :: 2], messages[game + 2 :: 2], strict=True):
        guess = int(move["content"][1:-1])
        assert re.fullmatch("The target number is (higher|lower).", hint["content"])
        low, high = (guess + 1, high) if "higher" in hint["content"] else (low, guess - 1)
    return f"[{(low + high) // 2}]"


@pytest.mark.long
async def test_moves_are_scored_by_the_game(environment: Callable[[str], Path], tmp_path: Path) -> None:
    folder = environment("textarena")
    settings = ["--settings", '{"max_turns": 6}', "--example-moves", '["[10]", "[15]", "[13]"]']
    train, heldout = make_tasks(folder, tmp_path, "GuessTheNumber-v0", *settings)
    assert (
        len({line["input"]["seed"] for line in train + heldout}) == len({line["id"] for line in train + heldout}) == 28
    )
    tasks = [line["input"] for line in heldout]
    hints = [message["content"] for message in tasks[0]["examples"]]
    assert hints[2::2] == ["The target number is higher.", "The target number is lower."], "moves of the example fit it"

    assert await play(folder, halve, tasks) == [1.0] * 8
    same = await play(folder, lambda messages: f"[{len(messages)}]", tasks[:3] * 2)
    assert same[:3] == same[3:] and all(0 <= reward < 1 for reward in same), "a seed is a game"
    assert await play(folder, lambda messages: "I do not know", tasks[:2]) == [0.0] * 2
    assert await play(folder, lambda messages: "[1]", tasks[:2], MAX_CALLS="1") == [0.0] * 2, "it is not over"


@pytest.mark.long
def test_a_game_that_does_not_work_is_refused_in_a_sentence(environment: Callable[[str], Path], tmp_path: Path) -> None:
    folder = environment("textarena")
    for name, reason in (
        ("Hangman-v0", "needs a download: Resource 'words' not found."),
        ("Nim-v0", "cannot be played by one player here: The number of players has to be 2, received 1"),
        ("GuessWho-v0", "cannot be played by one player here: OpenRouter API key not found."),
    ):
        done = run_data(folder, name, "--out", str(tmp_path / name))
        assert done.returncode == 1 and done.stderr.splitlines()[-1].startswith(f"{name} {reason}"), done.stderr
        assert not (tmp_path / name).exists()
    unknown = run_data(folder, "Guess", "--out", str(tmp_path))
    assert unknown.returncode == 2 and "--list names the games" in unknown.stderr


@pytest.mark.long
async def test_other_games_are_played_to_their_end(environment: Callable[[str], Path], tmp_path: Path) -> None:
    folder = environment("textarena")
    for name, move in (("Crosswords-v0", "[4 8 D a]"), ("TowerOfHanoi-v0", "[A B]"), ("2048-v0-ultra-easy", "[up]")):
        train, _ = make_tasks(folder, tmp_path / name, name)
        (reward,) = await play(folder, lambda messages, move=move: move, [train[0]["input"]], MAX_CALLS="60")
        assert -1 <= reward < 1, name
