"""What a real vLLM refuses after it has said 200 is the agent's error, and an engine core that dies is not."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bus.client import Bus
from runners.gateway.server import Gateway
from runners.gateway.slot import Slot
from runners.recording.attempt import AttemptRecorder
from tests.inference.test_lora import VOCABULARY, make_model
from tests.inference.test_node_models_vllm import ready
from tests.runners.conftest import task
from tests.runners.test_admission import nothing, post

pytestmark = pytest.mark.e2e

TEMPLATE = "{% for message in messages %}{{ message.content }} {% endfor %}"
SECONDS = 280.0


@asynccontextmanager
async def served(bus: Bus, directory: Path) -> AsyncIterator[tuple[Slot, AttemptRecorder]]:
    """A slot of a runner's gateway, in front of a node with the weights of its directory."""
    make_model(directory / "model")
    settings = directory / "model" / "tokenizer_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "chat_template": TEMPLATE}))
    async with (
        ready(bus, directory, 1, frozen=True),
        bus.fleet("inference") as fleet,
        Gateway(fleet, nothing, 1) as gateway,
    ):
        while not fleet.members():
            await fleet.wait_for_change()
        (slot,) = gateway.slots
        slot.environment()
        recorder = AttemptRecorder(task(), 1, "runner")
        slot.begin(recorder, task(), asyncio.get_running_loop().time() + SECONDS)
        yield slot, recorder


async def ask(slot: Slot, path: str, **fields: Any) -> tuple[int, str]:
    body = {"model": "policy", "max_tokens": 8, **fields}
    async with aiohttp.ClientSession() as http, asyncio.timeout(SECONDS):
        status, _, answer = await post(http, slot, path, json.dumps(body).encode())
    return status, answer.decode()


CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "w2 w3"}]}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(["}}, "required": ["a"]}
REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 25}),
    ("v1/chat/completions", {**CHAT, "logit_bias": {str(VOCABULARY + 5): 1.0}}),
    (
        "v1/chat/completions",
        {**CHAT, "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}},
    ),
    ("v1/completions", {"prompt": "w2 w3", "echo": True}),
    ("v1/completions", {"prompt": "w2 w3", "echo": True, "logprobs": 1}),
    ("v1/completions", {"prompt": "w2 w3", "logit_bias": {str(VOCABULARY + 5): 1.0}}),
    ("v1/messages", {**CHAT, "logit_bias": {str(VOCABULARY + 5): 1.0}}),
]


async def test_errors_after_the_head_reach_the_agent_and_a_core_that_dies_does_not(bus: Bus, tmp_path: Path) -> None:
    async with served(bus, tmp_path) as (slot, recorder):
        for path, fields in REFUSED:
            for stream in (False, True):
                status, answer = await ask(slot, path, stream=stream, **fields)
                assert status == 400 and json.loads(answer)["error"]["message"], (path, fields, answer)
        assert not recorder.infra_error and recorder.calls == 0
        core = core_of(os.getpid())
        long = [
            asyncio.create_task(ask(slot, "v1/chat/completions", **CHAT, max_tokens=1500, ignore_eos=True, n=n))
            for n in (1, 2, 1, 2)
        ]
        while slot.admission.requests and not recorder.last_nodes:
            await asyncio.sleep(0.05)
        os.kill(core, signal.SIGKILL)
        answers = await asyncio.gather(*long)
        assert [status for status, _ in answers] == [200] * 4, answers
        assert not recorder.poison_reason


def core_of(ancestor: int) -> int:
    """The process of vLLM's engine core among the descendants of a process."""
    parents: dict[int, int] = {}
    names: dict[int, str] = {}
    for directory in Path("/proc").iterdir():
        if directory.name.isdecimal():
            try:
                stat = (directory / "stat").read_text()
                names[int(directory.name)] = (directory / "cmdline").read_text()
            except OSError:
                continue
            parents[int(directory.name)] = int(stat.rpartition(")")[2].split()[1])
    for process, name in names.items():
        above = process
        while above > 1 and above != ancestor:
            above = parents.get(above, 0)
        if above == ancestor and "EngineCore" in name:
            return process
    raise AssertionError(f"no engine core among {names}")
