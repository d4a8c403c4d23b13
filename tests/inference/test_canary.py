"""Versions tried on a real vLLM, with a real learner's log-probabilities: broken weights are revoked by themselves."""

import asyncio
import json
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen2Config, Qwen2ForCausalLM

from lightningbus.bus.client import Bus
from lightningbus.bus.weights.registry import WeightRegistry
from lightningbus.common.aio import cancel_and_wait
from lightningbus.inference import node
from lightningbus.inference.settings import InferenceSettings
from lightningbus.inference.weights.canary import NOT_FINITE
from lightningbus.learner.checkpointing.checkpoint import Checkpoints, LearnerState
from lightningbus.learner.checkpointing.step_committer import StepCommitter
from lightningbus.learner.publishing.canary_prompts import read_prompts
from lightningbus.learner.publishing.publisher import WeightPublisher
from lightningbus.learner.training.verl_trainer import VerlTrainer
from lightningbus.schemas import subjects
from lightningbus.schemas.fleet import Heartbeat
from lightningbus.schemas.weights.events import CanarySpec, ReleaseDecision, WeightManifest
from lightningbus.schemas.weights.release_policy import latest_verdict
from tests.learner.conftest import settings_for, tiny_tokenizer
from tests.listening import child, ports_and_sockets
from tests.polling import HANG_SECONDS

pytestmark = pytest.mark.e2e

PROMPTS = ["compute 12 plus 30", [{"role": "user", "content": "what is the capital of nowhere?"}]]
LOUD = 12.0
"""Makes weights that say something else, with all the numbers finite."""


def tiny_model(path: Path) -> Path:
    """A model of as many tokens as its tokenizer has."""
    tokenizer = tiny_tokenizer(path)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=128, tie_word_embeddings=True, dtype="float32",
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(path)
    return path


async def seen(bus: Bus, state: str, version: int | None = None, problem: str = "") -> Heartbeat:
    """Wait until the node says that it is in a state, at a version if one is given, and what is wrong."""
    async with bus.fleet("inference") as fleet, asyncio.timeout(HANG_SECONDS):
        while True:
            await fleet.wait_for_change()
            for beat in fleet.members():
                text = str(beat.status["problem"])
                if beat.state == state and version in (None, beat.version) and text.startswith(problem):
                    return beat


async def decided(bus: Bus, version: int) -> ReleaseDecision:
    """Wait for a verdict."""
    releases = WeightRegistry(bus, "policy")
    async with asyncio.timeout(HANG_SECONDS):
        while (verdict := latest_verdict(await releases.refresh(), version)) is None:
            await asyncio.sleep(0.05)
    return verdict


async def test_broken_weights_are_revoked_and_the_version_before_goes_on_serving(bus: Bus, tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "model")
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(prompt) + "\n" for prompt in PROMPTS))
    canary = {"prompts": tmp_path / "prompts.jsonl", "max_entropy": 7.0}
    learner = settings_for(model, checkpoint_dir=tmp_path / "checkpoints", weights={"canary": canary})
    trainer, publisher = VerlTrainer(learner), WeightPublisher(bus, learner)
    saver = StepCommitter(learner, trainer, publisher, Checkpoints(learner.checkpoint_dir), asyncio.to_thread)
    await publisher.refresh()
    state = LearnerState(run_id="run", model="policy")
    await saver.claim_epoch(await saver.write_initial_checkpoint(state), None, state)
    trainer.write_weights(tmp_path / "weights")
    weights = load_file(tmp_path / "weights")
    trial = publisher.last.canary if publisher.last is not None else None
    assert trial is not None
    assert [len(case.ids) // 4 for case in trial.prompts] == [len(ids) for ids in read_prompts_of(tmp_path)]

    async def publish(version: int, tensors: dict[str, Any], trial: CanarySpec | None) -> None:
        path = tmp_path / f"{version}.safetensors"
        save_file(tensors, path)
        blob = await bus.object_store.put(subjects.WEIGHT_BUCKET, f"policy-{version}", path)
        fields = {"blobs": (blob,), "epoch": 1, "step": version, "created_at_ns": 1, "canary": trial}
        manifest = WeightManifest(run_id="r", model="policy", version=version, **fields)
        await bus.publish(subjects.weights("policy"), manifest, msg_id=f"w{version}")

    settings = InferenceSettings(
        model_path=model,
        id="n",
        dtype="float32",
        max_model_len=96,
        max_num_seqs=8,
        cpu_threads=1,
        work_dir=tmp_path / "work",
    )
    stop = asyncio.Event()
    running = asyncio.create_task(node.run(bus, settings, stop))
    try:
        first = asyncio.create_task(seen(bus, "ready", 0))
        await asyncio.wait({first, running}, return_when=asyncio.FIRST_COMPLETED)
        await (first if first.done() else running)
        ports, sockets = ports_and_sockets(child("--uds"))
        assert ports <= {"127.0.0.1"}, "gloo, for each its own"
        (directory,) = {path.parent for path in sockets}
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700, "its control routes ask nobody who they are"
        good = await decided(bus, 0)
        assert good.action == "approved" and 0 <= good.metrics["k3_kl"] < 1e-6, good
        assert 0 < good.metrics["entropy"] < 7 and good.metrics["length"] > 1
        await publish(1, {name: LOUD * tensor for name, tensor in weights.items()}, trial)
        bad = await decided(bus, 1)
        assert bad.action == "revoked" and "k3-KL to the learner is" in bad.reason, bad
        await seen(bus, "ready", 0, "version 1 was revoked: k3-KL")
        await publish(2, {name: tensor.clone() for name, tensor in weights.items()}, trial)
        assert (await decided(bus, 2)).action == "approved"
        await seen(bus, "ready", 2)
        broken = dict(weights)
        name = next(name for name in weights if name.endswith("mlp.up_proj.weight"))
        broken[name] = torch.full_like(weights[name], float("nan"))
        await publish(3, broken, trial)
        bad = await decided(bus, 3)
        assert (bad.action, bad.reason) == ("revoked", NOT_FINITE)
        await seen(bus, "starting")  # another engine: what was computed stays in the KV cache of this one
    finally:
        stop.set()
        await asyncio.wait({running}, timeout=HANG_SECONDS)
        await cancel_and_wait(running)


def read_prompts_of(directory: Path) -> list[list[int]]:
    return read_prompts(directory / "prompts.jsonl", directory / "model")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "has 0 prompts, not 1 to 32"),
        ("{", "line 1 is neither a JSON string nor"),
        ('"fine it is"\n7\n', "line 2 is neither"),
        ('"a"\n', "line 1 has fewer than two tokens"),
        (None, "cannot be read"),
    ],
)
def test_prompts_that_cannot_be_used_are_one_sentence(tmp_path: Path, content: str | None, words: str) -> None:
    tiny_tokenizer(tmp_path / "model")
    if content is not None:
        (tmp_path / "prompts.jsonl").write_text(content)
    with pytest.raises(ValueError, match=words):
        read_prompts_of(tmp_path)
