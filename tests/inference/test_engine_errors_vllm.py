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

from lightningbus.bus.client import Bus
from lightningbus.bus.fleet.heartbeats import Fleet
from lightningbus.runners.gateway.server import Gateway
from lightningbus.runners.gateway.slot import Slot
from lightningbus.runners.recording.attempt import AttemptRecorder
from tests.inference.test_lora import PROMPT, VOCABULARY, make_model
from tests.inference.test_node_models_vllm import ready
from tests.runners.conftest import task
from tests.runners.test_admission import nothing, post

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

TEMPLATE = "w2"  # the tokenizer takes a whole text for one word
SECONDS = 600.0


@asynccontextmanager
async def served(bus: Bus, directory: Path) -> AsyncIterator[tuple[Slot, AttemptRecorder, Fleet]]:
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
        yield slot, recorder, fleet


async def ask(slot: Slot, path: str, **fields: Any) -> tuple[int, str]:
    body = {"model": "policy", "max_tokens": 8, **fields}
    waiting = aiohttp.ClientTimeout(total=SECONDS)
    async with aiohttp.ClientSession(timeout=waiting) as http:
        status, _, answer = await post(http, slot, path, json.dumps(body).encode())
    return status, answer.decode()


CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "w2 w3"}]}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(["}}, "required": ["a"]}
FAR = {str(VOCABULARY + 5): 1.0}
FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 25}, "logprobs"),
    ("v1/chat/completions", {**CHAT, "logit_bias": FAR}, "logit_bias"),
    ("v1/chat/completions", {**CHAT, "response_format": FORMAT}, ""),
    ("v1/completions", {"prompt": PROMPT, "echo": True}, "echo is not served"),
    ("v1/completions", {"prompt": PROMPT, "echo": True, "logprobs": 1}, "echo is not served"),
    ("v1/completions", {"prompt": PROMPT, "logit_bias": FAR}, "logit_bias"),
    ("v1/completions", {"prompt": PROMPT, "response_format": FORMAT}, ""),
    ("v1/messages", {**CHAT, "logit_bias": FAR}, "logit_bias"),
]
"""Requests, and a word of the sentence that the agent reads."""
LONG: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 1000, "ignore_eos": True}


async def test_errors_after_the_head_reach_the_agent_and_a_core_that_dies_does_not(bus: Bus, tmp_path: Path) -> None:
    async with served(bus, tmp_path) as (slot, recorder, fleet):
        for path, fields, word in REFUSED:
            for stream in (False, True):
                status, answer = await ask(slot, path, stream=stream, **fields)
                sentence = json.loads(answer)["error"]["message"]
                assert status == 400 and word in sentence and "prompt cannot be empty" not in sentence, answer
        assert not recorder.infra_error and recorder.calls == 0
        calls = [asyncio.create_task(ask(slot, "v1/completions", **LONG, n=n)) for n in (1, 2)]
        while fleet.members()[0].status.get("inflight") != len(calls):
            await fleet.wait_for_change()
            assert not any(call.done() for call in calls)
        os.kill(core_of(os.getpid()), signal.SIGKILL)
        answers = await asyncio.gather(*calls)
        assert [status for status, _ in answers] == [200, 200], answers
        assert not recorder.infra_error, "the engine that came after it has answered"
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
