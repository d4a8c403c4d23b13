"""The first version is tried on an engine: a learner whose engine disagrees ends with what differs."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from lightningbus.bus.client import Bus
from lightningbus.bus.weights.registry import WeightRegistry
from lightningbus.inference.engine.base import EngineCapabilities
from lightningbus.inference.engine.vllm_engine import VllmEngine
from lightningbus.inference.settings import InferenceSettings
from lightningbus.inference.weights.canary import evaluate, fit_to_engine
from lightningbus.learner.checkpointing.checkpoint import Checkpoints, LearnerState
from lightningbus.learner.checkpointing.step_committer import StepCommitter
from lightningbus.learner.errors import LearnerError
from lightningbus.learner.publishing.canary_prompts import build_engine_check
from lightningbus.learner.publishing.engine_checks import NUM_CHECKS, EngineChecks
from lightningbus.learner.publishing.publisher import WeightPublisher
from lightningbus.learner.training.verl_trainer import VerlTrainer
from lightningbus.schemas.weights.events import CanarySpec
from tests.learner.conftest import settings_for, tiny_model
from tests.polling import HANG_SECONDS


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> tuple[VerlTrainer, CanarySpec]:
    """A trainer, and what an engine has to agree with."""
    directory = tmp_path_factory.mktemp("checked")
    model = tiny_model(directory / "model")
    trainer = VerlTrainer(settings_for(model, checkpoint_dir=directory, engine={"check_model": True}))
    probe = trainer.check_model()
    assert probe is not None
    return trainer, build_engine_check(trainer, probe)


def logprobs_of(spec: CanarySpec) -> list[list[float]]:
    return [np.frombuffer(prompt.logprobs, "<f4").tolist() for prompt in spec.prompts]


def test_an_engine_that_agrees_is_approved_without_sampling(checked: tuple[VerlTrainer, CanarySpec]) -> None:
    _, spec = checked
    result = evaluate(spec, logprobs_of(spec), [], previous_length=400.0)
    assert result.reason == "" and result.metrics["difference"] < 1e-6
    assert result.metrics.keys() == {"k3_kl", "difference", "tokens"}, "no length that later versions are held to"


def test_an_engine_that_disagrees_is_named_with_the_distance(checked: tuple[VerlTrainer, CanarySpec]) -> None:
    _, spec = checked
    off = [[value - 0.3 for value in values] for values in logprobs_of(spec)]
    assert spec.max_difference is not None and spec.max_difference < 0.1
    result = evaluate(spec, off, [], None)
    assert result.reason.startswith("engine and learner differ by 0.3 nats per token, where rounding explains 0.0")


def test_an_engine_in_float32_has_a_bound_of_its_own(checked: tuple[VerlTrainer, CanarySpec]) -> None:
    _, spec = checked
    assert spec.max_difference is not None
    error = spec.max_difference / 2
    off = [[value + (-1) ** place * error for place, value in enumerate(values)] for values in logprobs_of(spec)]
    assert evaluate(fit_to_engine(spec, EngineCapabilities()), off, [], None).reason == ""
    in_float32 = fit_to_engine(spec, EngineCapabilities(is_float32=True))
    assert evaluate(in_float32, off, [], None).reason.startswith("engine and learner differ by")
    assert evaluate(in_float32, logprobs_of(spec), [], None).reason == ""


@pytest.mark.parametrize(
    ("arguments", "dtype", "is_float32"),
    [
        ([], "float32", True),
        ([], "auto", False),
        ([], "bfloat16", False),
        (["--dtype", "float32"], "auto", True),
        (["--dtype=bfloat16"], "float32", False),
        (["--dtype", "half", "--dtype", "float"], "auto", True),
    ],
)
def test_the_number_format_of_an_engine_is_that_of_its_command(
    tmp_path: Path, arguments: list[str], dtype: str, is_float32: bool
) -> None:
    settings = InferenceSettings(model_path=tmp_path, dtype=dtype, vllm_args=arguments)
    assert VllmEngine(settings).capabilities.is_float32 == is_float32


@pytest.mark.integration
@pytest.mark.parametrize("rank", [0, 4])
async def test_the_first_versions_are_tried(bus: Bus, tmp_path: Path, rank: int) -> None:
    """At any bound of staleness: an engine and a learner that drift apart are found before the fourth step."""
    model = tiny_model(tmp_path / "model")
    settings = settings_for(
        model,
        checkpoint_dir=tmp_path,
        engine={"check_model": True},
        lora={"lora_rank": rank, "lora_alpha": max(rank, 1)},
    )
    trainer, publisher = VerlTrainer(settings), WeightPublisher(bus, settings)
    probe = trainer.check_model()
    engine_checks, releases = EngineChecks(), WeightRegistry(bus, "policy")
    committer = StepCommitter(
        settings, trainer, publisher, Checkpoints(tmp_path), asyncio.to_thread, probe, engine_checks
    )
    await publisher.refresh()
    await committer.publish_base()
    checks = []
    for version in range(NUM_CHECKS + 2):
        state = LearnerState(run_id="run", model="policy", version=version, step=version)
        path = await committer.write_initial_checkpoint(state)
        await committer._publish(path, state)
        assert publisher.last is not None
        checks.append(publisher.last.canary is not None and publisher.last.canary.is_engine_check)
        if checks[-1] and version != 2:  # no node tried version 2 before version 3 was there
            await releases.append_decision("approved", version, actor="node-7", reason="", first_only=True)
            await engine_checks._look(releases)
    assert checks == [True, True, True, True, True, False]
    assert not EngineChecks().is_due(7), "a learner that goes on from a checkpoint"


@pytest.mark.integration
async def test_a_learner_ends_when_an_engine_disagrees(
    bus: Bus, tmp_path: Path, checked: tuple[VerlTrainer, CanarySpec]
) -> None:
    trainer, spec = checked
    settings = settings_for(trainer._settings.model_path, checkpoint_dir=tmp_path)
    publisher = WeightPublisher(bus, settings)
    await publisher.refresh()
    await asyncio.to_thread(trainer.write_weights, tmp_path / "weights")
    await publisher.publish(tmp_path / "weights", version=0, epoch=1, step=0, canary=spec)
    checks = EngineChecks()
    checks.add(0)
    checks.add(1)
    now = {"state": "canary", "model": "policy", "version": None, "address": "", "status": {}}
    async with bus.fleet("inference") as nodes, bus.heartbeat("inference", "n", lambda: now) as heartbeat:
        watching = asyncio.create_task(checks.watch(bus, "policy", nodes))
        while not nodes.members():
            await nodes.wait_for_change()
        assert not watching.done()
        releases = WeightRegistry(bus, "policy")
        reason = "engine and learner differ by 3.1 nats per token"
        await releases.append_decision("revoked", 0, actor="node-7", reason=reason, first_only=True)
        now["state"] = "awaiting_weights"
        await heartbeat.send_now()
        with pytest.raises(LearnerError, match=f"node-7 cannot serve version 0 as the learner computes it: {reason}"):
            async with asyncio.timeout(HANG_SECONDS):
                await watching
