"""Environments of verifiers, unmodified: turns and tools by their own rollout, rewards by their own functions."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightningbus.bus.client import Bus
from lightningbus.tasks.task_loading import load_tasks
from tests.environments.conftest import PACKAGES, play, run_tasks, write_environment
from tests.lightningbus.test_cli import run, says


def call(name: str, **arguments: Any) -> dict[str, Any]:
    """The assistant's message that calls a tool."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call-1", "type": "function", "function": function}],
    }


def use_the_tool(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Calls the environment's tool once, then says what it answered."""
    question = next(str(message["content"]) for message in messages if message["role"] == "user")
    if messages[-1]["role"] == "tool":
        return {"role": "assistant", "content": f"It is {messages[-1]['content']}."}
    if word := re.search(r"Reverse (\w+)", question):
        return call("words_reverse", word=word[1])
    left, right = re.findall(r"\d+", question)
    return call("multiply", left=int(left), right=int(right))


async def test_a_taskset_with_tools_is_played_by_its_own_harness(
    bus: Bus, foreign_python: Callable[[str], Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    options = ["--arg", "taskset.num_tasks=3", "--env", "SSL_CERT_FILE"]  # uv installs what the harness declares
    written = write_environment("verifiers:reverse-words", foreign_python("verifiers"), out, *options)
    assert written.startswith("2 tasks and 1 held-out ones in ")
    assert [entry.input["prompt"] for entry in load_tasks(out / "heldout.jsonl")] == ["Reverse gamma"]
    results = await play(bus, out, use_the_tool)
    assert [(result["reward"], result["num_calls"]) for result in results] == [(2.0, 2)] * 2
    assert [result["metrics"] for result in results] == [
        {"correct": 2.0, "length": float(len("It is ") + len(word) + 1)} for word in ("alpha", "beta")
    ]
    assert [result["rewards"].keys() for result in results] == [{"correct"}] * 2, "a metric is no reward"


async def test_an_environment_with_tools_is_scored_by_its_rubric(
    bus: Bus, foreign_python: Callable[[str], Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    python = foreign_python("verifiers_0_1")
    written = write_environment("verifiers:arithmetic-tools", python, out, "--arg", "num_tasks=4")
    assert written.startswith("3 tasks and 1 held-out ones in ")
    results = await play(bus, out, use_the_tool)
    assert [(result["reward"], result["num_calls"]) for result in results] == [(1.0, 2)] * 3
    assert all(result["metrics"]["correct"] == 1.0 for result in results)
    assert all(result["metrics"]["num_messages"] == 3.0 for result in results)
    assert all(result["rewards"] == {"correct": 1.0} for result in results), "what has no weight is no reward"
    assert all("num_steps" not in result["metrics"] for result in results), "a metric that fails is none, and not 0"


async def test_a_wrong_answer_has_its_rubrics_reward(
    bus: Bus, foreign_python: Callable[[str], Path], tmp_path: Path
) -> None:
    write_environment("verifiers:arithmetic-tools", foreign_python("verifiers_0_1"), tmp_path / "out")
    results = await play(bus, tmp_path / "out", lambda messages: {"role": "assistant", "content": "I do not know."})
    assert [(result["reward"], result["num_calls"]) for result in results] == [(0.0, 1)] * 3


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("I do not know.", "KeyError: 'grade'"),
        ("nothing", "TypeError: float() argument must be a string or a real number, not 'NoneType'"),
    ],
)
async def test_a_reward_function_that_fails_is_no_reward_of_zero(
    bus: Bus, foreign_python: Callable[[str], Path], tmp_path: Path, answer: str, reason: str
) -> None:
    out = tmp_path / "out"
    options = ["--arg", "has_faults=true", "--arg", "num_tasks=2"]
    write_environment("verifiers:arithmetic-tools", foreign_python("verifiers_0_1"), out, *options)
    (batch,), _ = await run_tasks(bus, out, lambda messages: {"role": "assistant", "content": answer})
    assert batch.end is not None and (batch.end.outcome, batch.end.reward) == ("agent_error", None)
    assert batch.end.error == f"RuntimeError: the reward function graded failed: {reason}"


@pytest.mark.parametrize(
    ("packages", "name", "argument", "sentence"),
    [
        (
            "verifiers",
            "reverse-words",
            "taskset.num_tsks=3",
            "taskset.num_tsks: there is no such argument; did you mean 'num_tasks'?",
        ),
        ("verifiers", "reverse-words", "taskset.num_tasks=many", "parse string as an integer, not 'many'"),
        (
            "verifiers_0_1",
            "arithmetic-tools",
            "num_tsks=3",
            "num_tsks: there is no such argument; did you mean 'num_tasks'?",
        ),
        (
            "verifiers_0_1",
            "passed-options",
            "rewards=group",
            "the reward function briefest scores the rollouts of a group together, and here each rollout is "
            "scored alone: it must take `completion`, not lists such as `completions`, and return a number",
        ),
        (
            "verifiers_0_1",
            "passed-options",
            "rewards=none",
            "the environment has a rubric without a reward function, so no rollout has a reward",
        ),
    ],
)
def test_a_wrong_argument_is_named(
    foreign_python: Callable[[str], Path], tmp_path: Path, packages: str, name: str, argument: str, sentence: str
) -> None:
    python = foreign_python(packages)
    options = ("--python", python, "--out", tmp_path / "out", "--path", PACKAGES, "--arg", argument)
    assert says(run("env", f"verifiers:{name}", *options, timeout=600)).endswith(sentence)


def test_an_argument_that_is_only_passed_on_is_a_warning(foreign_python: Callable[[str], Path], tmp_path: Path) -> None:
    options = ("--out", tmp_path / "out", "--path", PACKAGES, "--arg", "num_trian=5", "--arg", "system_prompt=Hi")
    done = run("env", "verifiers:passed-options", "--python", foreign_python("verifiers_0_1"), *options, timeout=600)
    assert done.returncode == 0, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.endswith(
        "num_trian: load_environment has no parameter of this name, and takes it all the same; "
        "did you mean 'num_train'?"
    )


async def test_the_tokens_of_an_answer_are_bounded_by_the_sampling_of_its_task(
    bus: Bus, foreign_python: Callable[[str], Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    options = ["--arg", 'sampling_args={"max_tokens": 99, "top_p": 0.5}']
    write_environment("verifiers:passed-options", foreign_python("verifiers_0_1"), out, *options)
    _, requests = await run_tasks(bus, out, lambda messages: {"role": "assistant", "content": "I."}, max_tokens=7)
    limits = [{name: request.get(name) for name in ("max_tokens", "max_completion_tokens")} for request in requests]
    assert limits == [{"max_tokens": 7, "max_completion_tokens": None}] * 2
    assert [request["top_p"] for request in requests] == [0.5] * 2, "other settings stay"
