"""Faults put into what a real vLLM serves: the first node revokes the version, before an agent gets a token of it."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from lightningbus.bus.client import Bus
from lightningbus.common.aio import cancel_and_wait
from lightningbus.inference import node
from lightningbus.inference.settings import AdapterSettings, InferenceSettings
from lightningbus.learner.publishing.canary_prompts import build_engine_check
from lightningbus.learner.publishing.weight_files import write_full, write_weights
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.training.verl_trainer import VerlTrainer
from lightningbus.run.errors import UserError
from lightningbus.run.preflight.computation_check import check_computation
from lightningbus.run.preflight.memory_check import Target
from lightningbus.schemas import subjects
from lightningbus.schemas.weights.events import CanarySpec, ReleaseDecision, WeightManifest
from tests.families.families import FAMILIES, save_tiny_model
from tests.families.three_steps import TEXT_ALONE
from tests.inference.test_canary import decided
from tests.learner.conftest import settings_for, tiny_tokenizer
from tests.polling import HANG_SECONDS

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]
Tensors = dict[str, torch.Tensor]


def make_check(directory: Path, family: str) -> tuple[Path, CanarySpec, Tensors]:
    """A family's tiny model, what its learner computes, and the weights that the learner publishes."""
    model = save_tiny_model(FAMILIES[family], directory / family)
    tiny_tokenizer(model)
    settings = settings_for(model, checkpoint_dir=directory / "checkpoints", engine={"check_model": True})
    trainer = VerlTrainer(settings)
    probe = trainer.check_model()
    assert probe is not None
    trainer.write_weights(directory / "weights")
    return model, build_engine_check(trainer, probe), load_file(directory / "weights")


@asynccontextmanager
async def serving(bus: Bus, model: Path, work: Path, *arguments: str, **changes: Any) -> AsyncIterator[None]:
    """A real node, with further arguments for vLLM."""
    settings = InferenceSettings(
        model_path=model, id="n", dtype="float32", max_model_len=192, max_num_seqs=8, cpu_threads=1, work_dir=work,
        vllm_args=list(arguments), **changes,
    )  # fmt: skip
    stop = asyncio.Event()
    running = asyncio.create_task(node.run(bus, settings, stop))
    try:
        yield
    finally:
        stop.set()
        await asyncio.wait({running}, timeout=HANG_SECONDS)
        await cancel_and_wait(running)


async def try_version(bus: Bus, version: int, tensors: Tensors, check: CanarySpec, place: Path) -> ReleaseDecision:
    """Publish weights that have to be checked, and wait for the verdict."""
    path = place / f"{version}.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    return await try_files(bus, version, [path], check)


async def try_files(bus: Bus, version: int, files: list[Path], check: CanarySpec) -> ReleaseDecision:
    """Publish a version's files, adapters behind their base, and wait for the verdict."""
    blobs = [
        await bus.object_store.put(subjects.WEIGHT_BUCKET, f"policy-{version}-{number}", path)
        for number, path in enumerate(files)
    ]
    fields: dict[str, Any] = {"epoch": 1, "step": version, "created_at_ns": 1, "canary": check}
    fields |= {"kind": "lora" if len(files) > 1 else "full", "blobs": tuple(blobs)}
    await bus.publish(
        subjects.weights("policy"),
        WeightManifest(run_id="r", model="policy", version=version, **fields),
        msg_id=f"w{version}",
    )
    return await decided(bus, version)


def _head_of_another_version(tensors: Tensors) -> None:
    tensors["lm_head.weight"] = 0.08 * torch.randn_like(tensors["lm_head.weight"])


def _layer_left_out(tensors: Tensors) -> None:
    for name in [name for name in tensors if ".layers.1.mlp." in name]:
        del tensors[name]


def _names_of_another_model(tensors: Tensors) -> None:
    for name in [name for name in tensors if ".layers.1.self_attn.q_proj" in name]:
        tensors[name.replace("q_proj", "query")] = tensors.pop(name)


async def test_weights_that_are_not_the_learners_are_revoked(bus: Bus, tmp_path: Path) -> None:
    model, check, tensors = make_check(tmp_path, "llama")
    faults: list[tuple[Callable[[Tensors], None], str]] = [
        (_head_of_another_version, "engine and learner differ by"),
        (_layer_left_out, "model.layers.1.mlp.down_proj.weight, model.layers.1.mlp.gate_up_proj.weight"),
        (_names_of_another_model, "query|did not arrive"),
    ]
    async with serving(bus, model, tmp_path / "work"):
        right = await try_version(bus, 0, tensors, check, tmp_path)
        assert right.action == "approved" and right.metrics["difference"] < 1e-4, right
        for version, (fault, reason) in enumerate(faults, 1):
            broken = dict(tensors)
            fault(broken)
            verdict = await try_version(bus, version, broken, check, tmp_path)
            assert verdict.action == "revoked", (fault, verdict)
            assert any(part in verdict.reason for part in reason.split("|")), verdict


@pytest.mark.parametrize(
    "override",
    [
        '{"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}',
        '{"attention_bias": false, "rms_norm_eps": 0.3}',
    ],
    ids=["RoPE of another base", "another norm"],
)
async def test_an_engine_of_another_configuration_is_revoked(bus: Bus, tmp_path: Path, override: str) -> None:
    model, check, tensors = make_check(tmp_path, "llama")
    async with serving(bus, model, tmp_path / "work", "--hf-overrides", override):
        verdict = await try_version(bus, 0, tensors, check, tmp_path)
    assert verdict.action == "revoked" and "engine and learner differ by" in verdict.reason, verdict


@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral"])
async def test_experts_are_the_learners_after_each_swap(bus: Bus, tmp_path: Path, family: str) -> None:
    model, check, tensors = make_check(tmp_path, family)
    other = {name: tensor + 0.05 * torch.randn_like(tensor) for name, tensor in tensors.items()}
    async with serving(bus, model, tmp_path / "work"):
        actions: list[Any] = [
            (await try_version(bus, version, weights, check, tmp_path)).action
            for version, weights in enumerate([tensors, other, tensors])
        ]
    assert actions == ["approved", "revoked", "approved"], "the second version is not what the check is of"


async def test_a_family_whose_weights_cannot_be_replaced_is_refused(bus: Bus, tmp_path: Path) -> None:
    model, check, tensors = make_check(tmp_path, "gpt_oss")
    async with serving(bus, model, tmp_path / "work"):
        verdict = await try_version(bus, 0, tensors, check, tmp_path)
    assert verdict.action == "revoked" and "of GptOssForCausalLM did not arrive" in verdict.reason, verdict


@pytest.mark.parametrize(
    ("family", "serving_lora"),
    [
        ("llama", None),
        pytest.param(  # its files name modules otherwise than its class
            "gemma3",
            {"rank": 4},
            marks=[pytest.mark.long, pytest.mark.skipif(find_spec("torchvision") is None, reason="vLLM needs it")],
        ),
    ],
    ids=["merged", "served as adapters"],
)
async def test_adapters_that_are_not_the_learners_are_revoked(
    bus: Bus, tmp_path: Path, family: str, serving_lora: dict[str, Any] | None
) -> None:
    model = save_tiny_model(FAMILIES[family], tmp_path / family)
    tiny_tokenizer(model)
    lora = {"lora_rank": 4, "lora_alpha": 8}
    settings = settings_for(model, checkpoint_dir=tmp_path / "checkpoints", engine={"check_model": True}, lora=lora)
    trainer = VerlTrainer(settings)
    probe = trainer.check_model()
    assert probe is not None
    base, new, trained = (tmp_path / name for name in ("base", "new", "trained"))
    write_full(trainer, base)
    write_weights(trainer, new)
    with torch.no_grad():
        for parameter in trainer._engine.module.parameters():
            if parameter.requires_grad:
                whole: Any = parameter
                whole.to_local().normal_(0, 0.1)
    write_weights(trainer, trained)
    check = build_engine_check(trainer, probe)
    text_alone = TEXT_ALONE if FAMILIES[family].vision else []
    async with serving(bus, model, tmp_path / "work", *text_alone, lora=serving_lora):
        missing = await try_files(bus, 0, [base, new], check)
        right = await try_files(bus, 1, [base, trained], check)
    assert missing.action == "revoked" and "engine and learner differ by" in missing.reason, missing
    assert right.action == "approved" and right.metrics["difference"] < 1e-4, right


@pytest.mark.parametrize(
    ("serving_lora", "way"), [(None, "merged into it"), ({"rank": 8}, "beside it")], ids=["merged", "served"]
)
def test_a_dry_run_compares_adapters(tmp_path: Path, serving_lora: dict[str, Any] | None, way: str) -> None:
    learner, node = make_lora_job(tmp_path)
    lora = AdapterSettings.model_validate(serving_lora) if serving_lora else None
    sentences = list(check_computation(learner, Target(), [node.model_copy(update={"lora": lora})]))
    differences = [
        re.fullmatch(rf"policy: vLLM computes it{what} as transformers does, (\S+) nats per token apart", sentence)
        for what, sentence in zip(["", f" with adapters {way}"], sentences[1:], strict=True)
    ]
    assert all(match is not None and float(match[1]) < 1e-5 for match in differences), sentences


def make_lora_job(directory: Path) -> tuple[LearnerSettings, InferenceSettings]:
    """A learner of adapters on a tiny Llama, and a node that merges them."""
    model = save_tiny_model(FAMILIES["llama"], directory / "llama")
    tiny_tokenizer(model)
    learner = settings_for(
        model,
        checkpoint_dir=directory / "checkpoints",
        engine={"check_model": True},
        lora={"lora_rank": 4, "lora_alpha": 8},
    )
    return learner, InferenceSettings(
        model_path=model, dtype="float32", max_model_len=192, max_num_seqs=8, cpu_threads=1
    )


def test_a_dry_run_refuses_an_engine_that_leaves_out_adapters(tmp_path: Path) -> None:
    learner, node = make_lora_job(tmp_path)
    changes = {"lora": AdapterSettings(rank=4), "vllm_args": ["--lora-target-modules", "q_proj"]}
    with pytest.raises(UserError, match=r"policy: vLLM does not compute it with adapters beside it as the learner"):
        list(check_computation(learner, Target(), [node.model_copy(update=changes)]))


def test_a_dry_run_compares_the_engine_and_refuses_one_of_another_configuration(tmp_path: Path) -> None:
    model = save_tiny_model(FAMILIES["llama"], tmp_path / "llama")
    tiny_tokenizer(model)
    learner = settings_for(model, checkpoint_dir=tmp_path / "checkpoints", engine={"check_model": True})
    other = '{"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}'
    fields: dict[str, Any] = {"dtype": "float32", "max_model_len": 192, "max_num_seqs": 8, "cpu_threads": 1}
    right = InferenceSettings(model_path=model, **fields)
    wrong = InferenceSettings(model_path=model, vllm_args=["--hf-overrides", other], **fields)
    computed, engine = check_computation(learner, Target(), [right])
    assert computed.endswith("computes it as transformers does")
    match = re.fullmatch(r"policy: vLLM computes it as transformers does, (\S+) nats per token apart", engine)
    assert match is not None and float(match[1]) < 1e-5
    with pytest.raises(UserError, match=r"policy: vLLM does not compute it as the learner does: .* --no-engine leaves"):
        list(check_computation(learner, Target(), [wrong]))
    *_, left_out = check_computation(learner, Target(), None)
    assert left_out == "policy: the engine was left out (--no-engine): the first node checks it in the run"
