"""The agent of Reasoning Gym's tasks: any family by name, scored by the gym itself."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.examples.endpoint import EXAMPLES, Endpoint, talk
from tests.examples.math_cases import DRIVER, NAMES_US, OURS, imports_of

GYM = EXAMPLES / "reasoning_gym"


def test_the_agent_imports_nothing_of_ours_and_does_not_name_us() -> None:
    assert imports_of(GYM / "agent.py") == {"os", "openai", "reasoning_gym"}
    assert not imports_of(GYM / "data.py") & OURS
    assert not NAMES_US.search((GYM / "agent.py").read_text())


def make_tasks(folder: Path, out: Path, *arguments: str) -> list[list[dict[str, Any]]]:
    """Lines to train on and held-out lines."""
    command = [str(folder / ".venv/bin/python"), "data.py", *arguments, "--out", str(out)]
    subprocess.run(command, check=True, cwd=folder)
    return [[json.loads(line) for line in (out / f"{name}.jsonl").open()] for name in ("train", "heldout")]


@pytest.mark.long
async def test_right_and_wrong_answers_of_families_are_scored_by_the_gym(
    environment: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = environment("reasoning_gym")
    for family in ("chain_sum", "spell_backward"):
        train, heldout = make_tasks(folder, tmp_path / family, family, "--train", "20", "--heldout", "10")
        questions = [line["input"]["entry"]["question"] for line in train + heldout]
        assert len(set(questions)) == len({line["id"] for line in train + heldout}) == 30
        tasks = [line["input"] for line in heldout]
        right = {task["entry"]["question"]: task["entry"]["answer"] for task in tasks[:5]}

        def answer(messages: list[dict[str, Any]], right: dict[str, str] = right) -> dict[str, Any]:
            assert [message["role"] for message in messages] == ["user", "assistant", "user"]
            return {"role": "assistant", "content": right.get(messages[-1]["content"], "no idea")}

        async with Endpoint(answer).serving() as endpoint:
            env = {**os.environ, "OPENAI_BASE_URL": f"{endpoint.url}/v1", "OPENAI_API_KEY": "any"}
            rewards = await talk([str(folder / ".venv/bin/python"), "-c", DRIVER], folder, env, tasks)
        assert rewards[:5] == [1.0] * 5 and max(rewards[5:]) < 0.2
