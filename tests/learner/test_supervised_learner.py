"""A learner without rollouts: its versions, and that a restart repeats and skips nothing."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from lightningbus.bus.client import Bus
from lightningbus.bus.streams.specs import STORE_EVENTS
from lightningbus.bus.weights.registry import WeightRegistry
from lightningbus.common.aio import first_completed
from lightningbus.learner.backend import make_builder
from lightningbus.learner.learner import run as run_learner
from lightningbus.learner.preference_files import load_preferences
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.schemas.training import TrainingStep
from tests.learner.conftest import LEARNING_RATE, tiny_model
from tests.learner.test_demonstrations import LINES, supervised, train_plainly, write_lines
from tests.learner.test_preference_weights import Plain, preferring
from tests.learner.test_preferences import PAIRS, write_pairs

STEPS = 5


async def live(url: str, settings: LearnerSettings, killed: asyncio.Event) -> None:
    """One life of a learner: to its last step, or until it is killed."""
    async with Bus.connect(url, name="learner") as bus:
        await first_completed(run_learner(bus, settings, asyncio.Event()), killed.wait())


async def train_with_a_kill(bus: Bus, url: str, settings: LearnerSettings) -> None:
    """Kill a learner at its third step, and let another go on: each version is there, each step has one batch."""
    steps: list[TrainingStep] = []
    listener = replace(STORE_EVENTS, durable="listener")
    await bus.ensure_consumer(listener)
    async with bus.pull(listener, slots=8) as puller:
        killed = asyncio.Event()
        life = asyncio.create_task(live(url, settings, killed))
        async for message in puller:
            event = message.event()
            if isinstance(event, TrainingStep):
                steps.append(event)
                if event.step == 3 and not killed.is_set():
                    killed.set()
                    await life
                    life = asyncio.create_task(live(url, settings, asyncio.Event()))
            await message.ack()
            if steps and steps[-1].step == STEPS:
                break
        await life
    versions = [manifest.version async for manifest, _ in WeightRegistry(bus, "policy").list_versions()]
    assert max(versions) == STEPS and set(range(STEPS + 1)) <= set(versions)
    for step in range(1, STEPS + 1):
        assert len({event.batch_sha256 for event in steps if event.step == step}) == 1


def check_weights(settings: LearnerSettings, expected: Mapping[str, torch.Tensor]) -> None:
    """The newest checkpoint has these weights."""
    for name, weights in load_file(settings.checkpoint_dir / "latest" / "weights.safetensors").items():
        torch.testing.assert_close(weights, expected[name], atol=0.1 * LEARNING_RATE, rtol=1e-3)


@pytest.mark.timeout(600)
async def test_a_killed_learner_goes_on_with_the_chats_that_come_next(bus: Bus, nats_url: str, tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "model", vocab_size=320)
    settings = supervised(
        model, write_lines(tmp_path / "chats.jsonl", LINES), actor={"loss_agg_mode": "token-mean"},
        checkpoint_dir=tmp_path / "checkpoints", max_steps=STEPS, checkpoint_interval=2,
    )  # fmt: skip
    await train_with_a_kill(bus, nats_url, settings)
    builder = make_builder(settings)
    batches = [builder.build([], step, step=step) for step in range(STEPS)]
    check_weights(settings, train_plainly(model, [batch.sequences for batch in batches]))


@pytest.mark.timeout(600)
async def test_a_killed_learner_compares_pairs_with_the_first_model_again(
    bus: Bus, nats_url: str, tmp_path: Path
) -> None:
    model = tiny_model(tmp_path / "model", vocab_size=320)
    settings = preferring(
        model, 2, write_pairs(tmp_path / "pairs.jsonl", PAIRS),
        checkpoint_dir=tmp_path / "checkpoints", max_steps=STEPS, checkpoint_interval=2,
    )  # fmt: skip
    await train_with_a_kill(bus, nats_url, settings)
    builder = make_builder(settings)
    batches = [builder.build([], step, step=step) for step in range(STEPS)]
    plain = Plain(model, load_preferences(tmp_path / "pairs.jsonl", model))
    check_weights(settings, plain.train([batch.pairs for batch in batches]))
