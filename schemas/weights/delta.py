"""Bit-exact deltas between safetensors files: encoded by the publisher, applied by the nodes that serve the weights.

At the small learning rates of reinforcement learning a few per cent of the bf16 elements change per step. A file is
split into blocks of at most `BLOCK_BYTES` of one tensor. Each block stores the XOR of its changed words: either sparse
(positions and values) or dense (all words), whichever is smaller. Bytes are shuffled before compression, because the
high bytes are mostly zero.

A delta file is: `MAGIC`; the header of the new file with its length and digest; then per block, in the file's order, a
`RECORD` and its payload, zstd. Digests are xxh3-128: they detect a wrong base or a damaged byte. The SHA-256 of the
delta itself, in the manifest, protects against forgery.
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

from lightningbus.schemas.byte_planes import Bytes, join_planes, split_planes
from lightningbus.schemas.weights.safetensors_header import (
    MAX_HEADER_BYTES,
    InvalidSafetensorsError,
    Tensor,
    parse_tensors,
    read_header,
)

MAGIC = b"lbdelta1"
BLOCK_BYTES = 4 << 20
"""Part of the format, because consecutive deltas are applied block by block."""
RECORD = Struct("<BII16s16s")
DIGEST_BYTES = 16
UNCHANGED, DENSE, SPARSE = range(3)
SPARSE_THRESHOLD = 1 / 8
"""Below this share of changed words the sparse form is always smaller; above, both are tried."""
ZSTD_LEVEL = 1
"""Higher levels took longer and gained nothing on weights."""
WORKERS = min(4, os.cpu_count() or 1)


T = TypeVar("T")


class DeltaError(ValueError):
    """A delta cannot be applied: it is damaged, or belongs to other weights."""


class WrongBaseError(DeltaError):
    """The delta is intact, but was made against other weights."""


class Record(NamedTuple):
    """The header of a block's payload."""

    form: int
    num_changed: int
    """Words."""
    payload_bytes: int
    before: bytes
    after: bytes
    """Digests of the block."""


class BlockDelta(NamedTuple):
    """The changes of one block."""

    record: Record
    payload: bytes


class Block(NamedTuple):
    """A range of the data of a file."""

    begin: int
    end: int
    word_size: int


def encode_delta(base: Path, new: Path, out: Path, max_bytes: int) -> bool:
    """Write the delta that turns ``base`` into ``new`` to ``out``; memory is a few blocks, whatever the file size.

    Returns False and leaves no file if it would exceed ``max_bytes``, or if the tensors of both files differ.
    Raises `InvalidSafetensorsError`, `OSError`.
    """
    tensors = _tensors(new)
    if tensors != _tensors(base):
        return False
    header = read_header(new)
    base_data, new_data = _data(base), _data(new)
    preamble = MAGIC + header + xxh3_128_digest(header)

    def encode(block: Block) -> BlockDelta:
        begin, end, word_size = block
        return _encode_block(base_data[begin:end], new_data[begin:end], word_size)

    size = len(preamble)
    with out.open("wb") as file:
        file.write(preamble)
        for record, payload in _ordered_map(encode, _blocks(tensors)):
            size += RECORD.size + len(payload)
            if size > max_bytes:
                break
            file.write(RECORD.pack(*record))
            file.write(payload)
    if size > max_bytes:
        out.unlink()
    return size <= max_bytes


def apply_deltas(base: Path, deltas: Sequence[Path], out: Path) -> str:
    """Write the result of applying ``deltas`` to ``base``, one after the other, to ``out``; returns its `fingerprint`.

    Raises `WrongBaseError`, `DeltaError` or `OSError`; the output file is then unusable.
    """
    try:
        tensors, header = _tensors(base), read_header(base)
    except InvalidSafetensorsError as error:
        raise WrongBaseError(f"{base.name}: {error}") from error
    data_bytes, digest = base.stat().st_size - len(header), xxh3_128()
    with ExitStack() as open_files:
        files = [open_files.enter_context(path.open("rb")) for path in deltas]
        old = open_files.enter_context(base.open("rb"))
        output = open_files.enter_context(out.open("wb"))
        data_begin, new_header = len(header), header
        for file in files:
            new_header = _read_header(file, tensors, data_bytes)
        os.pwrite(output.fileno(), new_header, 0)
        digest.update(new_header)

        def read_blocks() -> Iterator[tuple[Block, list[BlockDelta]]]:
            for block in _blocks(tensors):
                yield block, [_read_block_delta(file, block.end - block.begin) for file in files]

        def apply(work: tuple[Block, list[BlockDelta]]) -> Bytes:
            (begin, end, word_size), block_deltas = work
            content = np.empty(end - begin, np.uint8)  # read, not mapped: page faults took longer than all the rest
            _read_fully(old.fileno(), content, data_begin + begin)
            _apply_block(content, word_size, block_deltas)
            _write_fully(output.fileno(), content, len(new_header) + begin)
            return content

        for block in _ordered_map(apply, read_blocks()):
            digest.update(block.data)
        if any(file.read(1) for file in files):
            raise DeltaError("the delta continues after its last block")
    return digest.hexdigest()


def fingerprint(path: Path) -> str:
    """Hash a file with xxh3-128, 32 hexadecimal digits: the same for a full file and one restored from deltas."""
    digest = xxh3_128()
    with path.open("rb") as file:
        while chunk := file.read(BLOCK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _tensors(path: Path) -> dict[str, Tensor]:
    return parse_tensors(read_header(path), path.stat().st_size)


def _data(path: Path) -> Bytes:
    return np.memmap(path, np.uint8, mode="r")[len(read_header(path)) :]


def _blocks(tensors: dict[str, Tensor]) -> Iterator[Block]:
    """Yield the blocks in the file's order."""
    for tensor in tensors.values():
        first, last = tensor.data_offsets
        for begin in range(first, last, BLOCK_BYTES):
            yield Block(begin, min(begin + BLOCK_BYTES, last), tensor.word_size)


def _encode_block(old: Bytes, new: Bytes, word_size: int) -> BlockDelta:
    before, after = xxh3_128_digest(old.data), xxh3_128_digest(new.data)
    if before == after:
        return BlockDelta(Record(UNCHANGED, 0, 0, before, after), b"")
    words = old.view(f"<u{word_size}") ^ new.view(f"<u{word_size}")
    positions = np.flatnonzero(words != 0)
    gaps = (np.diff(positions, prepend=-1) - 1).astype("<u4")
    form, payload = SPARSE, _shuffle_compress(gaps, words[positions])
    if len(positions) > SPARSE_THRESHOLD * len(words) and len(dense := _shuffle_compress(words)) < len(payload):
        form, payload = DENSE, dense
    return BlockDelta(Record(form, len(positions), len(payload), before, after), payload)


def _apply_block(content: Bytes, word_size: int, block_deltas: Sequence[BlockDelta]) -> None:
    """Change a block in place."""
    digest = xxh3_128_digest(content.data)
    if block_deltas and block_deltas[0].record.before != digest:
        raise WrongBaseError("the delta was made against other weights than those here")
    for record, payload in block_deltas:
        if record.before != digest:
            raise DeltaError("the deltas do not follow each other")
        digest = record.after
        _flip_words(content.view(f"<u{word_size}"), record, payload)
    if xxh3_128_digest(content.data) != digest:
        raise DeltaError("the delta is damaged: its result has another digest than expected")


def _read_fully(descriptor: int, content: Bytes, offset: int) -> None:
    done = 0
    while done < len(content):
        if not (count := os.preadv(descriptor, [content.data[done:]], offset + done)):
            raise WrongBaseError("the base is shorter than its header says")
        done += count


def _write_fully(descriptor: int, content: Bytes, offset: int) -> None:
    done = 0
    while done < len(content):
        done += os.pwrite(descriptor, content.data[done:], offset + done)


def _flip_words(words: NDArray[Any], record: Record, payload: bytes) -> None:
    """Flip the bits of the words that changed."""
    word_size, word = words.itemsize, words.dtype
    if record.form == DENSE:
        words ^= join_planes(_decompress(payload, words.nbytes), word)
    elif record.form == SPARSE and 0 < record.num_changed <= len(words):
        raw = _decompress(payload, record.num_changed * (4 + word_size))
        gaps, values = raw[: 4 * record.num_changed], raw[4 * record.num_changed :]
        positions = np.cumsum(join_planes(gaps, "<u4").astype(np.int64) + 1) - 1
        if positions[-1] >= len(words):
            raise DeltaError("the delta is damaged: it changes words beyond the end of its block")
        words[positions] ^= join_planes(values, word)
    elif record.form != UNCHANGED:
        raise DeltaError("the delta is damaged: a record is invalid")


def _shuffle_compress(*parts: NDArray[Any]) -> bytes:
    """Compress the byte planes of each part."""
    planes = np.concatenate([split_planes(part) for part in parts])
    return zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(planes.data)


def _decompress(payload: bytes, size: int) -> Bytes:
    """Decompress exactly ``size`` bytes; the payload cannot make it allocate more."""
    try:
        if zstandard.get_frame_parameters(payload).content_size != size:
            raise DeltaError("the delta is damaged: a block has the wrong size")
        raw = zstandard.ZstdDecompressor().decompress(payload, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise DeltaError(f"the delta is damaged: {error}") from error
    return np.frombuffer(raw, np.uint8)


def _read_header(file: IO[bytes], tensors: dict[str, Tensor], data_bytes: int) -> bytes:
    magic, length = file.read(len(MAGIC)), file.read(8)
    if magic != MAGIC or len(length) < 8 or int.from_bytes(length, "little") > MAX_HEADER_BYTES:
        raise DeltaError("this is not a delta file")
    header = length + file.read(int.from_bytes(length, "little"))
    if file.read(DIGEST_BYTES) != xxh3_128_digest(header):
        raise DeltaError("the delta is damaged: its header does not match its digest")
    try:
        new = parse_tensors(header, len(header) + data_bytes)
    except InvalidSafetensorsError as error:
        raise DeltaError(f"the delta is damaged: {error}") from error
    if new != tensors:
        name = next((name for name in new if new[name] != tensors.get(name)), "")
        raise WrongBaseError(f"the delta is of other tensors than those here: {name!r}")
    return header


def _read_block_delta(file: IO[bytes], block_bytes: int) -> BlockDelta:
    fields = file.read(RECORD.size)
    if len(fields) < RECORD.size:
        raise DeltaError("the delta is truncated")
    record = Record(*RECORD.unpack(fields))
    if record.payload_bytes > block_bytes + block_bytes // 128 + 64:  # above zstd's own bound
        raise DeltaError("the delta is damaged: a payload is larger than its block")
    payload = file.read(record.payload_bytes)
    if len(payload) < record.payload_bytes:
        raise DeltaError("the delta is truncated")
    return BlockDelta(record, payload)


def _ordered_map(function: Callable[[Any], T], items: Iterable[Any]) -> Iterator[T]:
    """Yield results in order, from threads; only a few items are in progress or waiting to be consumed."""
    with ThreadPoolExecutor(WORKERS, "delta") as pool:
        pending: deque[Future[T]] = deque()
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) > 2 * WORKERS:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
