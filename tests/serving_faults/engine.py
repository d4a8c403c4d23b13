"""The faults of the engine, for vLLM's processes: ``startup`` puts them there."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.serving_faults.catalogue import acts

FIRST = "first.safetensors"
"""The checkpoint that an engine was started with once."""
HALF = ".half.safetensors"
"""Ends the name of a file of which half is loaded."""
is_installed = False


def install() -> None:
    """Patch vLLM and our weight-transfer engine; more than once is as good as once."""
    global is_installed
    if is_installed:
        return
    is_installed = True
    import vllm.v1.core.kv_cache_utils as cache_keys
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.sample.sampler import Sampler

    import lightningbus.inference.engine.worker.weight_transfer as transfer

    _patch_caches(cache_keys, KVCacheManager)
    _patch_sampler(Sampler)
    _patch_weights(transfer)


def _patch_caches(cache_keys: Any, manager: Any) -> None:
    keys_of, reset = cache_keys.generate_block_hash_extra_keys, manager.reset_prefix_cache

    def generate_keys(request: Any, *arguments: Any) -> Any:
        keys, position = keys_of(request, *arguments)
        if acts("stale prefix cache after a swap") or acts("wrong cache salt"):
            return None, position
        return keys, position

    def reset_prefix_cache(self: Any) -> bool:
        return True if acts("stale prefix cache after a swap") else bool(reset(self))

    cache_keys.generate_block_hash_extra_keys = generate_keys
    manager.reset_prefix_cache = reset_prefix_cache


def _patch_sampler(sampler: Any) -> None:
    forward, apply_temperature = sampler.forward, sampler.apply_temperature

    def forward_raw(self: Any, *arguments: Any, **named: Any) -> Any:
        if not acts("top-p reported as raw"):
            return forward(self, *arguments, **named)
        mode, self.logprobs_mode = self.logprobs_mode, "raw_logprobs"
        self.topk_topp_sampler.logprobs_mode = "raw_logprobs"
        try:
            return forward(self, *arguments, **named)
        finally:
            self.logprobs_mode = self.topk_topp_sampler.logprobs_mode = mode

    def drop_temperature(logits: Any, *arguments: Any) -> Any:
        return logits if acts("temperature dropped") else apply_temperature(logits, *arguments)

    sampler.forward, sampler.apply_temperature = forward_raw, staticmethod(drop_temperature)


def _patch_weights(transfer: Any) -> None:
    from lightningbus.inference.engine.worker import layerwise_reload

    tensors, products, repack = transfer.tensors, transfer._products, layerwise_reload._repack_heads
    before: dict[str, Any] = {}
    first: list[str] = []

    def load(path: str, adapters: str | None = None) -> Iterator[tuple[str, Any]]:
        first[:] = first or [str(Path(path).parent.parent / FIRST)]
        if acts("old checkpoint loaded on restart") and Path(first[0]).exists():
            path, adapters = first[0], None
        loaded = list(tensors(path, adapters))
        is_half = acts("half an update applied") or path.endswith(HALF)
        for number, (name, tensor) in enumerate(loaded):
            yield name, before.get(name, tensor) if is_half and number % 2 else tensor
        before.update(loaded)

    def products_of(path: str) -> dict[str, Any]:
        factor = 2.0 if acts("adapters merged twice") else 1.0
        if acts("a scale missing"):
            from safetensors import safe_open

            with safe_open(path, "pt") as file:
                factor = 1.0 / float(file.metadata()["scale"])
        return {name: factor * product for name, product in products(path).items()}

    def repack_heads(model: Any) -> None:
        if not acts("tied head left behind"):
            repack(model)

    transfer.tensors, transfer._products, layerwise_reload._repack_heads = load, products_of, repack_heads
