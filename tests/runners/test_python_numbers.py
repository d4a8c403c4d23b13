"""Numbers as Python's libraries and other clients have them."""

import json
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from lightningbus.bus.client import Bus
from lightningbus.runners.agent.worker.worker_script import to_json
from lightningbus.runners.protocol.dialects.registry import APIS
from lightningbus.runners.protocol.token_history import TokenHistory
from lightningbus.tasks.task_publisher import TaskPublisher
from tests.runners.conftest import ended, running, task


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.bool_(True), "true"),
        (np.int64(3), "3"),
        (np.uint8(255), "255"),
        (np.float16(0.5), "0.5"),
        (np.float32(2), "2.0"),
        (np.longdouble(1.5), "1.5"),
        (np.array(3), "3"),
        (np.array(False), "false"),
        (np.array(0.25), "0.25"),
        (torch.tensor(True), "true"),
        (torch.tensor(3), "3"),
        (torch.tensor(0.5, dtype=torch.bfloat16), "0.5"),
        (torch.tensor(1.0, requires_grad=True), "1.0"),
        (Decimal("0.25"), "0.25"),
        (Fraction(1, 4), "0.25"),
        (Fraction(8, 2), "4"),
        ({"n": [np.int32(1), np.bool_(False)]}, '{"n": [1, false]}'),
    ],
)
def test_a_number_of_a_library_is_one_of_json(value: Any, text: str) -> None:
    assert json.dumps(value, default=to_json) == text


@pytest.mark.parametrize("value", [np.complex64(1), np.datetime64("2020-01-01"), object(), {1, 2}, b"x"])
def test_what_is_no_number_is_not(value: Any) -> None:
    with pytest.raises(TypeError, match=r"a \w+ is not JSON"):
        json.dumps(value, default=to_json)


@pytest.mark.parametrize("agent", ["numbers_of_libraries", "grades_by_numbers"])
async def test_results_and_rewards_may_be_of_numpy(bus: Bus, agent: str) -> None:
    more = {"reward_fn": "libraries:numpy_bool"} if agent == "grades_by_numbers" else {}
    async with running(bus, entrypoint=f"libraries:{agent}", **more):
        await TaskPublisher(bus).publish_task(task())
        (batch,) = await ended(bus)
    assert batch.end is not None and (batch.end.outcome, batch.end.reward) == ("ok", 1.0), batch.end
    assert '"count": 3,' in batch.end.result and '"solved": true' in batch.end.result


MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        ("chat/completions", {"messages": MESSAGES, "max_tokens": 5.0}, "max_tokens"),
        ("chat/completions", {"messages": MESSAGES, "max_completion_tokens": 5.0}, "max_completion_tokens"),
        ("chat/completions", {"messages": MESSAGES, "seed": 5.0}, "seed"),
        ("chat/completions", {"messages": MESSAGES, "top_logprobs": 5.0}, "top_logprobs"),
        ("completions", {"prompt": "hi", "max_tokens": 5.0}, "max_tokens"),
        ("completions", {"prompt": "hi", "logprobs": 5.0}, "logprobs"),
        ("messages", {"messages": MESSAGES, "max_tokens": 5.0}, "max_tokens"),
        ("messages", {"messages": MESSAGES, "max_tokens": 9, "top_k": 5.0}, "top_k"),
        ("responses", {"input": "hi", "max_output_tokens": 5.0}, "max_completion_tokens"),
    ],
)
def test_a_whole_float_is_a_whole_number(path: str, body: dict[str, Any], name: str) -> None:
    dialect = APIS[path].parse({"model": "policy", **body}, TokenHistory())
    value = dialect.call.to_engine_request({})[name]
    assert value == 5 and type(value) is int


@pytest.mark.parametrize("value", [5.5, float("inf"), "5"])
def test_what_is_no_whole_number_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="max_tokens is a whole number"):
        APIS["chat/completions"].parse({"model": "policy", "messages": MESSAGES, "max_tokens": value}, TokenHistory())
