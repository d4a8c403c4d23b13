"""The positions of the tensors in a safetensors file: https://huggingface.co/docs/safetensors/index#format.

Only the header is read. The library's own reader gives numpy no bf16 and returns copies; code that works on the raw
bytes of files larger than memory needs the positions.
"""

import math
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""
METADATA = "__metadata__"
PYTORCH = {"format": "pt"}
"""Metadata without which versions of transformers before 5 refuse a file."""
WORD_SIZES = (1, 2, 4, 8)
WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
"""Names that transformers reads weights by: all in one file, or a list of the files that have them."""


class InvalidSafetensorsError(ValueError):
    """The bytes are not a valid safetensors file."""


class Tensor(msgspec.Struct, frozen=True):
    """A tensor; ``data_offsets`` are its first byte and the one after its last, counted from the header's end."""

    dtype: str
    shape: tuple[Annotated[int, Meta(ge=0)], ...]
    data_offsets: tuple[Annotated[int, Meta(ge=0)], Annotated[int, Meta(ge=0)]]

    @property
    def num_elements(self) -> int:
        """Product of the lengths of ``shape``."""
        return math.prod(self.shape)

    @property
    def word_size(self) -> int:
        """Bytes per element where that is one of `WORD_SIZES`, else 1."""
        begin, end = self.data_offsets
        word_size, remainder = divmod(end - begin, self.num_elements or 1)
        return word_size if remainder == 0 and word_size in WORD_SIZES else 1


def read_header(path: Path) -> bytes:
    """Read the header of a file, including the length in front of it; raise `InvalidSafetensorsError`."""
    with path.open("rb") as file:
        length = file.read(8)
        max_length = min(path.stat().st_size - 8, MAX_HEADER_BYTES)
        if len(length) < 8 or int.from_bytes(length, "little") > max_length:
            raise InvalidSafetensorsError(f"{path.name} does not begin with the header of a safetensors file")
        return length + file.read(int.from_bytes(length, "little"))


def parse_tensors(header: bytes, size: int) -> dict[str, Tensor]:
    """Parse the tensors of a file of ``size`` bytes, in the order of their bytes; every byte belongs to exactly one.

    Raises `InvalidSafetensorsError`.
    """
    try:
        entries = msgspec.json.decode(header[8:], type=dict[str, msgspec.Raw])
        entries.pop(METADATA, None)
        tensors = {name: msgspec.json.decode(entry, type=Tensor) for name, entry in entries.items()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidSafetensorsError(f"the header of the safetensors file cannot be read: {error}") from error
    ordered = dict(sorted(tensors.items(), key=lambda item: item[1].data_offsets))
    offset = 0
    for name, tensor in ordered.items():
        begin, end = tensor.data_offsets
        if begin != offset or end < begin:
            raise InvalidSafetensorsError(f"tensor {name!r} does not start where the one before it ends")
        offset = end
    if len(header) + offset != size:
        raise InvalidSafetensorsError(
            f"the tensors of the safetensors file take {len(header) + offset} bytes, not {size}"
        )
    return ordered


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def find_weight_files(directory: Path) -> list[Path]:
    """List the safetensors files that a model is loaded from; raises OSError, `InvalidSafetensorsError` for its index.

    Others may hold the same weights again, as a consolidated file beside shards does. A directory with neither
    of transformers' names is taken whole.
    """
    if (directory / WHOLE).exists():
        return [directory / WHOLE]
    if not (directory / INDEX).exists():
        return sorted(directory.glob("*.safetensors"))
    try:
        index = msgspec.json.decode((directory / INDEX).read_bytes(), type=_Index)
    except msgspec.DecodeError as error:
        raise InvalidSafetensorsError(f"{directory / INDEX} cannot be read: {error}") from error
    return sorted({directory / name for name in index.weight_map.values()})


def read_tensors(directory: Path) -> dict[str, Tensor]:
    """Read the headers of a model's safetensors files, skipping invalid ones; raises as `find_weight_files`."""
    tensors: dict[str, Tensor] = {}
    for path in find_weight_files(directory):
        with suppress(InvalidSafetensorsError):
            tensors |= parse_tensors(read_header(path), path.stat().st_size)
    return tensors
