"""Weights of a forward pass, rounded as inference engines hold them.

The optimiser moves float32 weights by steps far smaller than the spacing of 16-bit numbers. An engine serves the
rounded weights. Gradients at the rounded weights train the policy that samples, as in mixed-precision training
(Micikevicius et al., arXiv:1710.03740, section 3.1).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from lightningbus.learner.engine.adapters import name_in_base
from lightningbus.learner.engine.weight_writer import ChooseDtype, make_file_naming, published_model


class RoundedWeights:
    """Rounds the weights of one engine for as long as it computes. Every rank makes the same calls."""

    def __init__(
        self, engine: Any, choose_dtype: ChooseDtype, *, is_rounded_by_engine: bool, merges_adapters: bool
    ) -> None:
        """``choose_dtype``: formats of the versions. ``is_rounded_by_engine``: verl's engine computes in that format,
        and rounds all that it reads. ``merges_adapters``: nodes add LoRA adapters to the weights before they round.
        """
        name_in_files = make_file_naming(published_model(engine))
        self._merged: list[_MergedWeight] = []
        if engine.model_config.lora_rank > 0 and merges_adapters:
            self._merged = [each for each in _find_merged(engine.module, choose_dtype) if each.is_rounded]
        self._trained: list[tuple[Any, Any]] = []
        for name, parameter in engine.module.named_parameters():
            dtype = choose_dtype(name_in_files(name_in_base(name)), parameter.dtype)
            if dtype.itemsize >= parameter.dtype.itemsize:
                continue
            if not parameter.requires_grad:
                with torch.no_grad():
                    _round(parameter, dtype)
            elif not is_rounded_by_engine and not self._merged:
                self._trained.append((parameter, dtype))

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Keep the weights rounded within the block; the optimiser's own are back after it."""
        kept: list[tuple[Any, Any]] = []
        with torch.no_grad():
            for parameter, dtype in self._trained:
                kept.append((parameter, _local(parameter).clone()))
                _round(parameter, dtype)
            for merged in self._merged:
                if not merged.is_disabled:
                    kept.append((merged.weight, _local(merged.weight).clone()))
                    merged.merge()
        try:
            yield
        finally:
            with torch.no_grad():
                for parameter, values in kept:
                    _local(parameter).copy_(values)


class _MergedWeight:
    """Weight of a LoRA layer, merged with its adapter; the adapter then adds a gradient, and no value of its own."""

    def __init__(self, layer: Any, choose_dtype: ChooseDtype) -> None:
        self._layer = layer
        (self._adapter,) = layer.active_adapters
        self.weight = layer.get_base_layer().weight
        self._dtype = choose_dtype("", self.weight.dtype)
        self.is_rounded = self._dtype.itemsize < self.weight.dtype.itemsize
        if not self.is_rounded:
            return
        layer.lora_B[self._adapter].register_forward_hook(lambda module, inputs, output: output - output.detach())

    @property
    def is_disabled(self) -> bool:
        """Whether the adapter is off, as for the reference policy."""
        return bool(self._layer.disable_adapters)

    def merge(self) -> None:
        """Add the product of the adapter to the weight in float32, and round the sum, as nodes do."""
        first, second = (each[self._adapter].weight for each in (self._layer.lora_A, self._layer.lora_B))
        whole = first.full_tensor() if hasattr(first, "full_tensor") else first
        product = self._layer.scaling[self._adapter] * (_local(second).float() @ whole.float())
        local = _local(self.weight)
        local.copy_((local.float() + product).to(self._dtype))


def _find_merged(module: Any, choose_dtype: ChooseDtype) -> Iterator[_MergedWeight]:
    from peft.tuners.lora import LoraLayer

    for each in module.modules():
        if isinstance(each, LoraLayer) and isinstance(each.get_base_layer(), torch.nn.Linear):
            yield _MergedWeight(each, choose_dtype)


def _local(parameter: Any) -> Any:
    """Return this rank's part of a parameter, as a tensor that shares its memory."""
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter.data


def _round(parameter: Any, dtype: Any) -> None:
    local = _local(parameter)
    local.copy_(local.to(dtype))
