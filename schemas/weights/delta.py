"""What changed from one safetensors file to the next, to the bit: made by whoever publishes, applied by whoever serves.

At reinforcement learning's small learning rates a few per cent of the bf16 elements change per step. A file is cut
into pieces of at most `PIECE` bytes of one tensor. Of each, the words that changed are kept as XOR: either where they
are and what they are, or all of them, whichever is smaller; byte planes apart, because the high bytes are mostly zero.

A delta file is: `MAGIC`; the header of the new file with its length and digest; then per piece, in the file's order, a
`RECORD` and its payload, zstd. Digests are xxh3-128: they find a wrong base or a broken byte. Against forgery stands
the SHA-256 of the delta itself, in the manifest.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from struct import Struct
from typing import IO, Any, NamedTuple, TypeVar

import numpy as np
import zstandard
from numpy.typing import NDArray
from xxhash import xxh3_128, xxh3_128_digest

from schemas.weights.safetensors_header import LONGEST_HEADER, BadTensorFile, Tensor, read_header, tensors_of

MAGIC = b"lbdelta1"
PIECE = 4 << 20
"""Bytes; a part of the format, because deltas that follow each other are applied piece by piece."""
RECORD = Struct("<BII16s16s")
DIGEST_BYTES = 16
SAME, ALL, SOME = range(3)
RARE = 1 / 8
"""Below this share of changed words their places are always the smaller form; above, both are tried."""
LEVEL = 1
"""zstd's; higher ones took longer and gained nothing on weights."""
WORKERS = min(4, os.cpu_count() or 1)

Bytes = NDArray[np.uint8]
T = TypeVar("T")


class DeltaError(ValueError):
    """A delta cannot be applied: it is damaged, or belongs to other weights."""


class WrongBase(DeltaError):
    """The delta is whole, but was made against other weights."""


class Record(NamedTuple):
    """What precedes a piece's payload."""

    form: int
    changed: int
    """Words."""
    length: int
    """Bytes of the payload."""
    before: bytes
    after: bytes
    """Digests of the piece."""


Step = tuple[Record, bytes]


def make_delta(base: Path, new: Path, out: Path, at_most: int) -> bool:
    """Write to ``out`` what makes ``new`` of ``base``; memory is a few pieces, whatever the size of the files.

    False, and no file, where it would take more than ``at_most`` bytes or the two do not hold the same tensors.
    Raises `BadTensorFile`, `OSError`.
    """
    tensors = _tensors(new)
    if tensors != _tensors(base):
        return False
    header = read_header(new)
    olds, news = _data(base), _data(new)
    begins = MAGIC + header + xxh3_128_digest(header)

    def step(piece: tuple[int, int, int]) -> Step:
        begin, end, width = piece
        return _difference(olds[begin:end], news[begin:end], width)

    size = len(begins)
    with out.open("wb") as file:
        file.write(begins)
        for record, payload in _in_threads(step, _pieces(tensors)):
            size += RECORD.size + len(payload)
            if size > at_most:
                break
            file.write(RECORD.pack(*record))
            file.write(payload)
    if size > at_most:
        out.unlink()
    return size <= at_most


def apply_deltas(base: Path, deltas: Sequence[Path], out: Path) -> str:
    """Write to ``out`` what ``deltas``, one after the other, make of ``base``; returns its `fingerprint`.

    Raises `WrongBase`, `DeltaError` or `OSError`; what was written until then is worth nothing.
    """
    try:
        tensors, header = _tensors(base), read_header(base)
    except BadTensorFile as error:
        raise WrongBase(f"{base.name}: {error}") from error
    olds = _data(base)
    whole = xxh3_128()
    with ExitStack() as open_files, out.open("wb") as written:
        files = [open_files.enter_context(path.open("rb")) for path in deltas]
        for file in files:
            header = _read_header(file, tensors, len(olds))

        def steps() -> Iterator[tuple[Bytes, int, list[Step]]]:
            for begin, end, width in _pieces(tensors):
                yield olds[begin:end], width, [_read_step(file, end - begin) for file in files]

        written.write(header)
        whole.update(header)
        for piece in _in_threads(_applied, steps()):
            written.write(piece)
            whole.update(piece)
        if any(file.read(1) for file in files):
            raise DeltaError("the delta goes on after its last piece")
    return whole.hexdigest()


def fingerprint(path: Path) -> str:
    """xxh3-128 of a file, 32 hexadecimal digits: which weights these are, whole or put together."""
    digest = xxh3_128()
    with path.open("rb") as file:
        while chunk := file.read(PIECE):
            digest.update(chunk)
    return digest.hexdigest()


def _tensors(path: Path) -> dict[str, Tensor]:
    return tensors_of(read_header(path), path.stat().st_size)


def _data(path: Path) -> Bytes:
    return np.memmap(path, np.uint8, mode="r")[len(read_header(path)) :]


def _pieces(tensors: dict[str, Tensor]) -> Iterator[tuple[int, int, int]]:
    """(begin, end, width of a word) of each, in the file's order."""
    for tensor in tensors.values():
        first, last = tensor.data_offsets
        for begin in range(first, last, PIECE):
            yield begin, min(begin + PIECE, last), tensor.width


def _difference(old: Bytes, new: Bytes, width: int) -> Step:
    before, after = xxh3_128_digest(old.data), xxh3_128_digest(new.data)
    if before == after:
        return Record(SAME, 0, 0, before, after), b""
    words = old.view(f"<u{width}") ^ new.view(f"<u{width}")
    places = np.flatnonzero(words != 0)
    gaps = (np.diff(places, prepend=-1) - 1).astype("<u4")
    form, payload = SOME, _packed(gaps, words[places])
    if len(places) > RARE * len(words) and len(dense := _packed(words)) < len(payload):
        form, payload = ALL, dense
    return Record(form, len(places), len(payload), before, after), payload


def _applied(work: tuple[Bytes, int, list[Step]]) -> memoryview:
    old, width, steps = work
    digest = xxh3_128_digest(old.data)
    if steps and steps[0][0].before != digest:
        raise WrongBase("the delta was made against other weights than those here")
    piece = np.array(old)
    for record, payload in steps:
        if record.before != digest:
            raise DeltaError("the deltas do not follow each other")
        digest = record.after
        _change(piece.view(f"<u{width}"), record, payload)
    if xxh3_128_digest(piece.data) != digest:
        raise DeltaError("the delta is damaged: it does not make the weights it should")
    return piece.data


def _change(words: NDArray[Any], record: Record, payload: bytes) -> None:
    """Flip the bits of the words that changed."""
    width = words.itemsize
    if record.form == ALL:
        words ^= _planes_joined(_unpacked(payload, words.nbytes), width)
    elif record.form == SOME and 0 < record.changed <= len(words):
        raw = _unpacked(payload, record.changed * (4 + width))
        places = np.cumsum(_planes_joined(raw[: 4 * record.changed], 4).astype(np.int64) + 1) - 1
        if places[-1] >= len(words):
            raise DeltaError("the delta is damaged: it changes more than there is")
        words[places] ^= _planes_joined(raw[4 * record.changed :], width)
    elif record.form != SAME:
        raise DeltaError("the delta is damaged: a record is none")


def _packed(*parts: NDArray[Any]) -> bytes:
    """Each part's first bytes, then its second ones and so on, compressed."""
    planes = [np.ascontiguousarray(part.view(np.uint8).reshape(-1, part.itemsize).T).ravel() for part in parts]
    return zstandard.ZstdCompressor(level=LEVEL).compress(np.concatenate(planes).data)


def _unpacked(payload: bytes, size: int) -> Bytes:
    """Exactly ``size`` bytes; no more memory is taken, whatever the payload says."""
    try:
        if zstandard.get_frame_parameters(payload).content_size != size:
            raise DeltaError("the delta is damaged: a piece has not the size it should")
        raw = zstandard.ZstdDecompressor().decompress(payload, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise DeltaError(f"the delta is damaged: {error}") from error
    return np.frombuffer(raw, np.uint8)


def _planes_joined(planes: Bytes, width: int) -> NDArray[Any]:
    return np.ascontiguousarray(planes.reshape(width, -1).T).view(f"<u{width}").ravel()


def _read_header(file: IO[bytes], tensors: dict[str, Tensor], data_bytes: int) -> bytes:
    magic, length = file.read(len(MAGIC)), file.read(8)
    if magic != MAGIC or len(length) < 8 or int.from_bytes(length, "little") > LONGEST_HEADER:
        raise DeltaError("this is no delta")
    header = length + file.read(int.from_bytes(length, "little"))
    if file.read(DIGEST_BYTES) != xxh3_128_digest(header):
        raise DeltaError("the delta is damaged: its header has another digest")
    try:
        new = tensors_of(header, len(header) + data_bytes)
    except BadTensorFile as error:
        raise DeltaError(f"the delta is damaged: {error}") from error
    if new != tensors:
        other = next((name for name in new if new[name] != tensors.get(name)), "")
        raise WrongBase(f"the delta is of other tensors than those here: {other!r}")
    return header


def _read_step(file: IO[bytes], piece_bytes: int) -> Step:
    fields = file.read(RECORD.size)
    if len(fields) < RECORD.size:
        raise DeltaError("the delta is cut off")
    record = Record(*RECORD.unpack(fields))
    if record.length > piece_bytes + piece_bytes // 128 + 64:  # zstd's own bound, generously
        raise DeltaError("the delta is damaged: a payload is larger than its piece")
    payload = file.read(record.length)
    if len(payload) < record.length:
        raise DeltaError("the delta is cut off")
    return record, payload


def _in_threads(work: Callable[[Any], T], items: Iterable[Any]) -> Iterator[T]:
    """Results in order; only a few items are at work or wait to be taken."""
    with ThreadPoolExecutor(WORKERS, "delta") as pool:
        pending: deque[Future[T]] = deque()
        for item in items:
            pending.append(pool.submit(work, item))
            if len(pending) > 2 * WORKERS:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
