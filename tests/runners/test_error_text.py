"""The text of an agent's error: always its type, and the task's fields where the agent reads one that is not there."""

import asyncio
import os
from typing import Any

import pytest

from lightningbus.runners.agent.worker.worker_script import run, run_one


def read_question(task: dict[str, Any]) -> Any:
    return task["question"]


def read_variable(task: dict[str, Any]) -> Any:
    return os.environ["NO_SUCH_VARIABLE"]


def read_answer_of_another(task: dict[str, Any]) -> Any:
    other = {"text": "a"}
    return other["answer"] + task["answer"]


def fail_silently(task: dict[str, Any]) -> Any:
    raise RuntimeError


@pytest.mark.parametrize(
    ("function", "task", "text"),
    [
        (read_question, {"prompt": "a", "answer": 1}, "KeyError: 'question': the task has the fields prompt, answer"),
        (read_question, {}, "KeyError: 'question': the task has no fields"),
        (read_question, "a", "TypeError: string indices must be integers, not 'str'"),
        (read_variable, {"prompt": "a"}, "KeyError: 'NO_SUCH_VARIABLE'"),
        (read_answer_of_another, {"answer": 1}, "KeyError: 'answer'"),
        (fail_silently, {"prompt": "a"}, "RuntimeError"),
    ],
)
def test_an_error_has_its_type_and_says_what_the_task_has(function: Any, task: Any, text: str) -> None:
    loop = asyncio.new_event_loop()
    try:
        assert run(loop, function, [task])["error"] == text
        assert loop.run_until_complete(run_one(function, {"arguments": [task]}))["error"] == text
    finally:
        loop.close()
