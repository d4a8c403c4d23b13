"""Proof that vLLM computes from the tensors of one reload: followed from the file to the product of each layer.

A parameter that was fused, sharded, cast, packed or padded has other bytes than the file. So sums are compared that
survive this: see `find_sum`. A linear layer may compute from a packed copy that nobody can read. There some columns of
its matrix are read back as the products with unit vectors, which are exact in every number format.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from inspect import signature
from typing import Any

import torch
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, UnquantizedEmbeddingMethod

NUM_COLUMNS = 8
"""Columns of a matrix that are read back. A delta of c % of the elements is missed in a layer of n rows with a
probability of (1 - c / 100) ** (8 * n): below 1e-6 for 1 % and 256 rows.
"""
FACTOR = 0.7310585786300049
"""Spreads a change of the last bit over the bits of a product, so that changes of several elements do not cancel."""
NAN = 1e30
"""Number that stands for NaN in a sum: NaN has many bit patterns, and a product has any of them."""
CHUNK = 1 << 24
"""Elements that are in memory in float32 at a time."""
EXACT_METHODS = (UnquantizedLinearMethod, UnquantizedEmbeddingMethod)
"""Methods whose product with a unit vector is a column of the matrix."""


Columns = tuple[torch.Tensor, torch.Tensor]
"""Unit vectors, a row for each, and the columns of a matrix that they choose."""


class StaleWeightsError(ValueError):
    """Parameters hold other values than those that were given to the engine."""


def find_sum(tensor: torch.Tensor) -> int:
    """Sum the values of a tensor bit by bit (XOR): the same in any order, in parts, and beside zeros.

    A tensor with other values has the same sum with a probability of about 2 ** -20.
    """
    total = 0
    values = tensor.detach().reshape(-1)
    for start in range(0, values.numel(), CHUNK):
        part = values[start : start + CHUNK]
        scaled = (part.float() * FACTOR).nan_to_num_(nan=NAN, posinf=math.inf, neginf=-math.inf)
        total ^= int(torch.hash_tensor(scaled).view(torch.int64))
    return total


class SwapProof:
    """Compares the values that a reload gave to a model's parameters with the values in them at its end."""

    def __init__(self, model: torch.nn.Module) -> None:
        """Follow the loaders of a model, once vLLM has made it ready for a reload."""
        self._paths = {layer: path for path, layer in model.named_modules()}
        self._storages: set[int] = set()
        self._sums: dict[tuple[torch.nn.Module, str], int] = {}
        self._sizes: dict[tuple[torch.nn.Module, str], int] = {}
        self._columns: dict[torch.nn.Module, Columns | None] = {}
        self._failures: set[str] = set()
        self._methods: set[Any] = set()
        self._loaders: list[tuple[Any, Callable[..., Any]]] = []
        for layer in self._paths:
            for name, tensor in (*layer._parameters.items(), *layer._buffers.items()):
                if getattr(getattr(tensor, "weight_loader", None), "__name__", "") == "online_process_loader":
                    self._loaders.append((tensor, tensor.weight_loader))
                    tensor.weight_loader = self._follow_loader(layer, name, tensor.weight_loader)
            method = getattr(layer, "quant_method", None)
            if isinstance(method, QuantizeMethodBase) and method not in self._methods:
                self._methods.add(method)
                vars(method)["process_weights_after_loading"] = self._follow_method(method)

    def follow(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors of the version, to be given to the model."""
        for name, tensor in tensors:
            self._storages.add(tensor.untyped_storage().data_ptr())
            yield name, tensor

    def finish(self) -> set[str]:
        """Stop, and return the names of parameters that do not hold what they were given."""
        self.stop()
        for layer in self._paths:
            self._compare(layer)
            self._compare_product(layer)
        return self._failures

    def stop(self) -> None:
        """Follow the loaders of the model no longer."""
        for method in self._methods:
            vars(method).pop("process_weights_after_loading", None)
        for tensor, load in self._loaders:  # vLLM makes the next reload's from them
            tensor.weight_loader = load
        self._loaders.clear()

    def _follow_loader(self, layer: torch.nn.Module, name: str, load: Callable[..., Any]) -> Callable[..., Any]:
        parameters = signature(load)

        @wraps(load)
        def follow(*arguments: Any, **named: Any) -> Any:
            parameter, loaded, *_ = parameters.bind(*arguments, **named).arguments.values()
            if loaded.untyped_storage().data_ptr() not in self._storages:
                self._fail(layer, name)
            key = layer, name
            self._sums[key] = self._sums.get(key, 0) ^ find_sum(loaded.to(parameter.dtype))
            self._sizes[key] = self._sizes.get(key, 0) + loaded.numel()
            return load(*arguments, **named)

        return follow

    def _follow_method(self, method: QuantizeMethodBase) -> Callable[[torch.nn.Module], None]:
        process = method.process_weights_after_loading

        def follow(layer: torch.nn.Module) -> None:
            self._compare(layer)
            weight = getattr(layer, "weight", None)
            if type(method) in EXACT_METHODS and weight is not None and weight.dim() == 2:
                self._columns[layer] = _read_columns(weight)
            process(layer)
            for name, parameter in layer._parameters.items():
                if parameter is not None and (layer, name) in self._sums:
                    key = layer, name
                    self._sums[key], self._sizes[key] = find_sum(parameter), parameter.numel()

        return follow

    def _compare(self, layer: torch.nn.Module) -> None:
        """Compare each parameter of a layer with the values it was given, unless the parameter is a shard of them."""
        for name, parameter in layer._parameters.items():
            key = layer, name
            if parameter is None or self._sizes.get(key, parameter.numel() + 1) > parameter.numel():
                continue
            if find_sum(parameter) != self._sums[key]:
                self._fail(layer, name)

    def _compare_product(self, layer: torch.nn.Module) -> None:
        """Compare a layer's products with columns of its matrix; a tied head has the columns of the embedding."""
        method: Any = getattr(layer, "quant_method", None)
        if layer not in self._columns and isinstance(layer, ParallelLMHead) and type(method) in EXACT_METHODS:
            self._columns[layer] = _read_columns(layer.get_parameter("weight"))
        columns = self._columns.get(layer)
        if columns is not None:
            units, expected = columns
            if not torch.equal(method.apply(layer, units).to(expected.dtype), expected):
                self._fail(layer, "weight")

    def _fail(self, layer: torch.nn.Module, name: str) -> None:
        path = self._paths[layer]
        self._failures.add(f"{path}.{name}" if path else name)


def _read_columns(weight: torch.Tensor) -> Columns | None:
    """Read columns of a matrix at random, the same in no two reloads; None: a value is not finite.

    The product of a unit vector and a row with NaN is NaN in any column.
    """
    if not math.isfinite(float(weight.sum(dtype=torch.float32))):  # without a copy of the matrix
        return None
    random = torch.Generator()
    random.seed()
    places = torch.randperm(weight.shape[1], generator=random)[:NUM_COLUMNS].to(weight.device)
    units = torch.nn.functional.one_hot(places, weight.shape[1]).to(weight.dtype)
    return units, weight[:, places].T.clone()
