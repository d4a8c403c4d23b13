"""All weights of an engine into one safetensors file, tensor by tensor, in the precision that nodes serve.

Every rank takes part in putting a tensor together, and the first one writes it: no rank holds more than one of them.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from lightningbus.schemas.weights.safetensors_header import METADATA, PYTORCH, read_tensors

Layout = dict[str, tuple[Any, tuple[int, ...]]]
"""Dtype and shape of each tensor by name."""
ChooseDtype = Callable[[str, Any], Any]
"""The dtype that a tensor of a name is published in."""
CODES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32"}
CODES |= {"int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL"}


class WeightWriter:
    """Writes the weights of one engine; every rank makes the same calls."""

    def __init__(self, engine: Any, choose_dtype: ChooseDtype, is_writer: bool) -> None:
        self._engine, self._choose_dtype, self._is_writer = engine, choose_dtype, is_writer
        self._layout: Layout = {}

    def write(self, path: Path) -> None:
        """Replace an older file instead of writing into it; raise OSError once all ranks have finished."""
        if not self._layout:  # in the engine's order; costs one extra pass, once
            for name, tensor in full_tensors(self._engine):
                self._layout[name] = (self._choose_dtype(name, tensor.dtype), tuple(tensor.shape))
        error: OSError | None = None
        temporary = path.with_name(f".{path.name}")
        with ExitStack() as stack:
            file = stack.enter_context(_SafetensorsFile(temporary, self._layout)) if self._is_writer else None
            for name, tensor in full_tensors(self._engine):
                try:
                    if file is not None and error is None:
                        file.write_tensor(name, tensor)
                except OSError as raised:
                    error = raised  # the other ranks still take part
        if error is not None:
            raise error
        if self._is_writer:
            temporary.replace(path)


class _SafetensorsFile:
    """A safetensors file whose tensors may be written in any order; the widest come first, so each is aligned."""

    def __init__(self, path: Path, layout: Mapping[str, tuple[Any, tuple[int, ...]]]) -> None:
        self._path, self._layout = path, layout
        self._begin: dict[str, int] = {}

    def __enter__(self) -> "_SafetensorsFile":
        header: dict[str, Any] = {METADATA: PYTORCH}
        offset = 0
        for name in sorted(self._layout, key=lambda name: (-self._layout[name][0].itemsize, name)):
            dtype, shape = self._layout[name]
            size = dtype.itemsize
            for length in shape:
                size *= length
            code = CODES[str(dtype).removeprefix("torch.")]
            header[name] = {"dtype": code, "shape": shape, "data_offsets": (offset, offset + size)}
            self._begin[name] = offset
            offset += size
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self._file = self._path.open("wb")
        self._file.write(len(text).to_bytes(8, "little") + text)
        self._data = self._file.tell()
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write_tensor(self, name: str, tensor: Any) -> None:
        import torch

        dtype, shape = self._layout[name]
        content = tensor.detach().to(dtype).cpu().contiguous()
        if tuple(content.shape) != shape:
            raise ValueError(f"tensor {name!r} has another shape than before: {tuple(content.shape)}, not {shape}")
        self._file.seek(self._data + self._begin[name])
        self._file.write(memoryview(content.reshape(-1).view(torch.uint8).numpy()))


def full_tensors(engine: Any) -> Iterator[tuple[str, Any]]:
    """Yield every tensor as the model's own files name and divide it, without adapters; tied weights once.

    Every rank must call this. A tensor must not be kept beyond the next one.
    """
    from verl.utils.device import get_device_id
    from verl.utils.fsdp_utils import normalize_peft_param_name

    model, tensors = published_model(engine), engine.module.state_dict()
    if engine.model_config.lora_rank > 0:
        tensors = normalize_peft_param_name(tensors)
    tied = getattr(model, "all_tied_weights_keys", {})
    device = get_device_id()
    for group in _group_by_origin(model, [name for name in tensors if name not in tied]):
        whole = {
            name: tensors[name].to(device).full_tensor() if hasattr(tensors[name], "full_tensor") else tensors[name]
            for name in group
        }
        yield from _revert(model, whole)


def published_model(engine: Any) -> Any:
    """Return transformers' model below FSDP and PEFT."""
    module = getattr(engine.module, "_fsdp_wrapped_module", engine.module)
    return module.get_base_model() if hasattr(module, "peft_config") else module


def _group_by_origin(model: Any, names: Iterable[str]) -> Iterator[list[str]]:
    """Yield names by the tensors of the model's files that they were made of, in order of their first."""
    from transformers.core_model_loading import WeightConverter, rename_source_key

    inverted = [item.reverse_transform() for item in reversed(getattr(model, "_weight_conversions", None) or [])]
    converters = [item for item in inverted if isinstance(item, WeightConverter)]
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(rename_source_key(name, [], converters)[0], []).append(name)
    yield from groups.values()


def _revert(model: Any, tensors: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    if not getattr(model, "_weight_conversions", None):
        return tensors.items()
    from transformers.core_model_loading import revert_weight_conversion

    reverted: dict[str, Any] = revert_weight_conversion(model, tensors)
    return reverted.items()


def served_dtype(model_path: Path, dtype: str) -> ChooseDtype:
    """Choose the dtype of published tensors: ``dtype`` by torch's name, or with ``auto`` that of the model's files.

    With ``auto`` tensors that the files keep in float32 beside others in the model's dtype stay as they are. Numbers
    that are not floating-point are published as they are.
    """
    import torch

    wide: set[str] = set()
    if dtype == "auto":
        config = json.loads((model_path / "config.json").read_text("utf-8"))
        text = config.get("text_config") or {}
        names = (part.get(key) for part in (config, text) for key in ("dtype", "torch_dtype"))
        dtype = next((str(name).removeprefix("torch.") for name in names if name), "float32")
        stored = {name: tensor.dtype for name, tensor in read_tensors(model_path).items()}
        if CODES.get(dtype) in stored.values():
            wide = {name for name, code in stored.items() if code == "F32"}
    chosen = getattr(torch, dtype)

    def choose(name: str, trained: Any) -> Any:
        if not trained.is_floating_point:
            return trained
        return torch.float32 if name in wide else chosen

    return choose


def keeps_numbers(model_path: Path, dtype: str, *, has_adapters: bool) -> bool:
    """Return whether version 0 has the very numbers that the learner starts from; ``dtype`` as in `served_dtype`.

    With ``has_adapters``, whether they are float32, so that adapters can be merged without rounding.
    """
    import torch

    choose, stored = served_dtype(model_path, dtype), read_tensors(model_path)
    published = {name: CODES[str(choose(name, torch.float32)).removeprefix("torch.")] for name in stored}
    if has_adapters:
        return set(published.values()) == {CODES["float32"]}
    return all(published[name] in (tensor.dtype, CODES["float32"]) for name, tensor in stored.items())
