"""A swap that leaves a part of a real vLLM at the version before is refused, and a right one is not."""

import asyncio
import json
import os
import subprocess
import sys
from functools import partial
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from vllm.model_executor.model_loader.reload import record_metadata_for_reloading

from lightningbus.bus.client import Bus
from lightningbus.bus.weights.version_cache import WeightCache
from lightningbus.inference.engine.worker.layerwise_reload import start_reload
from lightningbus.inference.engine.worker.swap_proof import find_sum
from lightningbus.schemas import subjects
from lightningbus.schemas.weights.delta import fingerprint
from lightningbus.schemas.weights.events import WeightManifest
from tests.polling import HANG_SECONDS

pytestmark = pytest.mark.timeout(1200)
LAYER = "model.layers.1.input_layernorm.weight, model.layers.1.mlp.down_proj.weight, model.layers.1.mlp.gate_up_proj"
REASONS = {
    "one layer": f"{LAYER}.weight and 3 more of LlamaForCausalLM hold other values than the version's",
    "half of the layers": f"{LAYER}.weight and 9 more of LlamaForCausalLM hold other values than the version's",
    "the whole delta": "and 23 more of LlamaForCausalLM hold other values than the version's",
    "one tensor": ": model.layers.2.self_attn.qkv_proj.weight of LlamaForCausalLM",
    "one tensor of the file": "the tensors of new.safetensors are not those that were published",
    "packed copy": ": model.layers.1.mlp.down_proj.weight of LlamaForCausalLM",
    "tied head": ": lm_head.weight of LlamaForCausalLM",
    "norm": ": model.norm.weight of LlamaForCausalLM",
}


@pytest.fixture(scope="module")
def errors() -> dict[str, str]:
    """The error of each swap, by its fault."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.inference.stale_swaps"], capture_output=True, text=True, check=False,
        timeout=HANG_SECONDS * 10, env=os.environ,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    by_fault: dict[str, str] = json.loads(done.stdout)
    return by_fault


@pytest.mark.e2e
def test_right_swaps_are_proved(errors: dict[str, str]) -> None:
    assert errors.pop("none") == "" and errors.keys() == REASONS.keys()


@pytest.mark.e2e
@pytest.mark.parametrize("fault", REASONS)
def test_a_swap_that_leaves_a_part_behind_is_refused(errors: dict[str, str], fault: str) -> None:
    assert REASONS[fault] in errors[fault]


@pytest.mark.integration
async def test_a_whole_version_is_the_one_that_its_manifest_names(bus: Bus, tmp_path: Any) -> None:
    right, stale = tmp_path / "right", tmp_path / "stale"
    save_file({"a": torch.ones(8), "b": torch.ones(8)}, right)
    save_file(load_file(right) | {"b": torch.zeros(8)}, stale)
    blob = await bus.object_store.put(subjects.WEIGHT_BUCKET, "policy-1", stale)
    fields: dict[str, Any] = {"run_id": "r", "model": "policy", "epoch": 1, "step": 1, "created_at_ns": 1}
    cache = WeightCache(bus, "policy", tmp_path / "cache")
    cache.clear()
    manifest = WeightManifest(version=1, blobs=(blob,), fingerprint=fingerprint(right), **fields)
    with pytest.raises(ValueError, match="version 1 has other weights than its manifest says"):
        await cache.ensure(manifest)
    assert not list((tmp_path / "cache").iterdir()), "no later delta starts from it"
    right_blob = await bus.object_store.put(subjects.WEIGHT_BUCKET, "policy-2", right)
    manifest = WeightManifest(version=2, blobs=(right_blob,), fingerprint=fingerprint(right), **fields)
    (file,) = await cache.ensure(manifest)
    assert await asyncio.to_thread(fingerprint, file) == fingerprint(right)


@pytest.mark.unit
def test_a_loader_without_a_name_is_reloaded() -> None:
    """MiniMax-M2 has such loaders, and its first swap ended with an AttributeError."""

    def load(parameter: torch.Tensor, loaded_weight: torch.Tensor, *, factor: float) -> None:
        parameter.data.copy_(factor * loaded_weight)

    model: Any = torch.nn.Linear(4, 4, bias=False)
    model.weight.weight_loader = partial(load, factor=2.0)
    record_metadata_for_reloading(model)
    start_reload(model, torch.device("cpu"))
    assert model.weight.is_meta and model.weight.weight_loader.__name__ == "online_process_loader"


@pytest.mark.unit
def test_a_sum_is_of_the_values_and_not_of_their_order() -> None:
    random = torch.Generator().manual_seed(0)
    weights = torch.randn(64, 32, generator=random).bfloat16()
    whole = find_sum(weights)
    assert find_sum(weights.T) == find_sum(weights[:10]) ^ find_sum(weights[10:]) == whole
    assert find_sum(torch.cat([weights, torch.zeros(5, 32, dtype=torch.bfloat16)])) == whole
    assert find_sum(weights.float()) == whole and find_sum(weights[:0]) == 0


@pytest.mark.unit
def test_a_sum_misses_no_small_delta() -> None:
    """Two elements that change by their last bit, in bfloat16: the smallest delta that could cancel."""
    random = torch.Generator().manual_seed(0)
    weights = torch.rand(4096, generator=random).add(1).bfloat16()
    whole = find_sum(weights)
    for first, second in torch.randint(4096, (500, 2), generator=random).tolist():
        changed = weights.clone()
        changed[first] += 2**-7
        changed[second] -= 2**-7
        has_same_values = torch.equal(changed.sort().values, weights.sort().values)
        assert has_same_values or find_sum(changed) != whole
