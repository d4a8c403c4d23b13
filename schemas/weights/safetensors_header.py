"""Where the tensors of a safetensors file lie: https://huggingface.co/docs/safetensors/index#format.

Only the header is read. The library's own reader gives numpy no bf16 and hands out copies; who works on the raw bytes
of files larger than memory needs their places.
"""

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

LONGEST_HEADER = 100_000_000
"""In bytes; the format's own limit."""
METADATA = "__metadata__"
WORDS = (1, 2, 4, 8)


class BadTensorFile(ValueError):
    """The bytes are no safetensors file."""


class Tensor(msgspec.Struct, frozen=True):
    """One tensor: ``data_offsets`` are its first byte and the one after its last, counted from the header's end."""

    dtype: str
    shape: tuple[Annotated[int, Meta(ge=0)], ...]
    data_offsets: tuple[Annotated[int, Meta(ge=0)], Annotated[int, Meta(ge=0)]]

    @property
    def width(self) -> int:
        """Bytes of a word: of an element where that is a whole word, else 1."""
        elements, (begin, end) = 1, self.data_offsets
        for length in self.shape:
            elements *= length
        width, left = divmod(end - begin, elements or 1)
        return width if left == 0 and width in WORDS else 1


def read_header(path: Path) -> bytes:
    """The header as it stands in the file, its length in front; raises `BadTensorFile`."""
    with path.open("rb") as file:
        length = file.read(8)
        longest = min(path.stat().st_size - 8, LONGEST_HEADER)
        if len(length) < 8 or int.from_bytes(length, "little") > longest:
            raise BadTensorFile(f"{path.name} does not begin with the header of a safetensors file")
        return length + file.read(int.from_bytes(length, "little"))


def tensors_of(header: bytes, size: int) -> dict[str, Tensor]:
    """Tensors in the order of their bytes, of a file of ``size`` bytes; every byte belongs to exactly one.

    Raises `BadTensorFile`.
    """
    try:
        entries = msgspec.json.decode(header[8:], type=dict[str, msgspec.Raw])
        entries.pop(METADATA, None)
        found = {name: msgspec.json.decode(entry, type=Tensor) for name, entry in entries.items()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadTensorFile(f"the header of the safetensors file cannot be read: {error}") from error
    ordered = dict(sorted(found.items(), key=lambda item: item[1].data_offsets))
    at = 0
    for name, tensor in ordered.items():
        begin, end = tensor.data_offsets
        if begin != at or end < begin:
            raise BadTensorFile(f"tensor {name!r} does not lie where the one before it ends")
        at = end
    if len(header) + at != size:
        raise BadTensorFile(f"the tensors of the safetensors file take {len(header) + at} bytes, not {size}")
    return ordered
