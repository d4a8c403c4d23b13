"""A policy that is frozen is the environment of the other, to the bit."""

import asyncio
import hashlib
import json
import shutil
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from lightningbus.bus.client import Bus
from lightningbus.bus.embedded.nats_server import nats_server
from lightningbus.bus.streams.specs import STORE_EVENTS, STORE_TRAIN
from lightningbus.common.aio import cancel_and_wait
from lightningbus.inference import node
from lightningbus.inference.settings import InferenceSettings
from lightningbus.learner import learner
from lightningbus.schemas.spans import ModelCall
from lightningbus.schemas.training import TrainingStep
from tests.chaos.tokens import LONGEST, ends, next_token, prompt_of
from tests.inference.test_node import STAND_IN
from tests.learner.conftest import settings_for
from tests.polling import HANG_SECONDS
from tests.runners.conftest import calls_of, ended, running

STEPS, GROUPS, SAMPLES, CONTEXT = 3, 2, 2, 64
PLAYERS = ("alice", "bob")

pytestmark = pytest.mark.integration


@dataclass(frozen=True)
class Run:
    """What a run left on the bus."""

    digests: list[str]
    """Of the batch of each step."""
    calls: list[ModelCall]


async def train_alice(directory: Path, models: Mapping[str, Path], endpoint: str | None = None) -> Run:
    """Train `alice` for a few steps, one rollout at a time; `bob` is a frozen node, or an endpoint."""
    tasks = directory / "tasks.jsonl"
    directory.mkdir()
    tasks.write_text("".join(json.dumps({"id": f"t{at}", "input": {"question": f"q{at}"}}) + "\n" for at in range(4)))
    trained = settings_for(
        models["alice"], run="r", model="alice", reward="alice", role_models={player: player for player in PLAYERS},
        tasks=tasks, group_size=SAMPLES, groups_per_step=GROUPS, max_steps=STEPS, max_staleness=0,
        staleness={"order": "dispatch"}, checkpoint_dir=directory / "checkpoints",
    )  # fmt: skip
    async with AsyncExitStack() as exits:
        server = await exits.enter_async_context(nats_server(directory / "nats"))
        bus = await exits.enter_async_context(Bus.connect(server.url, name="test"))
        await bus.provision(policies=["alice"])
        served = PLAYERS if endpoint is None else ("alice",)
        nodes = [
            await exits.enter_async_context(serving(bus, directory, player, models[player], frozen=player == "bob"))
            for player in served
        ]
        endpoints = {} if endpoint is None else {"bob": {"url": endpoint}}
        await exits.enter_async_context(running(bus, entrypoint="duel:solve", endpoints=endpoints))
        training = asyncio.create_task(learner.run(bus, trained, asyncio.Event()))
        exits.push_async_callback(cancel_and_wait, training)
        await asyncio.wait({training, *nodes}, return_when=asyncio.FIRST_COMPLETED)
        await training
        attempts = await ended(bus, STEPS * GROUPS * SAMPLES, consumer=STORE_TRAIN)
        return Run(
            [step.batch_sha256 for step in await steps_of(bus)],
            [call for attempt in attempts for call in calls_of(attempt)],
        )


@asynccontextmanager
async def serving(
    bus: Bus, directory: Path, player: str, model: Path, frozen: bool
) -> AsyncIterator["asyncio.Task[None]"]:
    """A node of a player, with the stand-in for vLLM's server, while the block runs."""
    command = [sys.executable, STAND_IN, "--token-seconds", "0"]
    settings = InferenceSettings(
        model=player, model_path=model, frozen=frozen, id=player, vllm_command=command, max_model_len=CONTEXT,
        work_dir=directory / player,
    )  # fmt: skip
    stop = asyncio.Event()
    task = asyncio.create_task(node.run(bus, settings, stop))
    try:
        yield task
    finally:
        stop.set()
        await asyncio.wait({task}, timeout=HANG_SECONDS)
        await cancel_and_wait(task)


async def steps_of(bus: Bus) -> list[TrainingStep]:
    """All steps, in order."""
    steps: list[TrainingStep] = []
    async with asyncio.timeout(HANG_SECONDS), bus.pull(STORE_EVENTS, slots=8) as puller:
        async for message in puller:
            event = message.event()
            await message.ack()
            if isinstance(event, TrainingStep):
                steps.append(event)
            if len(steps) == STEPS:
                return steps
    raise AssertionError("the pull loop ended")


@asynccontextmanager
async def endpoint_of(vocabulary: int) -> AsyncIterator[str]:
    """An OpenAI-compatible endpoint that says what the stand-in engine samples."""

    async def answer(request: web.Request) -> web.Response:
        body: dict[str, Any] = await request.json()
        context = prompt_of(json.dumps(body["messages"]), vocabulary)
        text = ""
        for _ in range(body.get("max_tokens") or LONGEST):
            context.append(next_token(context, vocabulary))
            text += f"{context[-1]} "
            if ends(context[-1]):
                break
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
        usage = {"prompt_tokens": 6, "completion_tokens": len(context) - 6, "total_tokens": len(context)}
        return web.json_response({"id": "c", "created": 1, "model": "bob", "choices": [choice], "usage": usage})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    async with TestServer(app) as server:
        yield str(server.make_url("/v1"))


def digest_of(directory: Path) -> str:
    """SHA-256 of every file in a directory."""
    digest = hashlib.sha256()
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


@pytest.mark.long
async def test_batches_against_a_frozen_policy_are_those_against_a_fixed_endpoint(
    tmp_path: Path, model_path: Path
) -> None:
    models = {player: Path(shutil.copytree(model_path, tmp_path / f"model-{player}")) for player in PLAYERS}
    vocabulary = int(json.loads((model_path / "config.json").read_text())["vocab_size"])
    before = digest_of(models["bob"])
    frozen = await train_alice(tmp_path / "frozen", models)
    async with endpoint_of(vocabulary) as url:
        fixed = await train_alice(tmp_path / "fixed", models, url)

    assert len(set(frozen.digests)) == STEPS and frozen.digests == fixed.digests
    assert digest_of(models["bob"]) == before
    versions = {
        player: {span.version for call in frozen.calls if call.model == player for span in call.weight_versions}
        for player in PLAYERS
    }
    assert versions == {"alice": set(range(STEPS)), "bob": {0}}
    assert {call.model for call in fixed.calls} == set(PLAYERS)
