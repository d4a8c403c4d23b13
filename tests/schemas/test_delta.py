"""Deltas of safetensors files: bit-exact for every dtype; a wrong or damaged delta never gives wrong weights."""

import tempfile
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from lightningbus.schemas.weights import delta as module
from lightningbus.schemas.weights.delta import (
    RECORD,
    DeltaError,
    WrongBaseError,
    apply_deltas,
    encode_delta,
    fingerprint,
)
from lightningbus.schemas.weights.safetensors_header import InvalidSafetensorsError, parse_tensors, read_header
from tests.tensorfiles import WIDTHS, Contents, stepped, weights, write

EVERYTHING = 1 << 40
"""Size limit of a delta in tests that do not test it."""


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that small tensors have several blocks."""
    monkeypatch.setattr(module, "BLOCK_BYTES", 64)


@st.composite
def versions(draw: st.DrawFn) -> list[Contents]:
    """Some versions of a file: tensors of any dtype, also empty and scalar, changed a little, completely, or not."""
    layout = draw(st.lists(st.tuples(st.sampled_from(sorted(WIDTHS)), st.sampled_from([(), (0, 3), (7,), (5, 40)]))))
    contents: list[dict[str, tuple[str, tuple[int, ...], bytes]]] = [{}, {}, {}]
    for number, (dtype, shape) in enumerate(layout):
        size = WIDTHS[dtype]
        for length in shape:
            size *= length
        data = draw(st.binary(min_size=size, max_size=size))
        for version in contents:
            version[f"t{number}"] = (dtype, shape, data)
            for offset in draw(st.lists(st.integers(0, size - 1), max_size=3)) if size else ():
                data = data[:offset] + bytes([data[offset] ^ draw(st.integers(0, 255))]) + data[offset + 1 :]
            if draw(st.integers(0, 5)) == 0:
                data = draw(st.binary(min_size=size, max_size=size))
    return list(contents)


@settings(max_examples=150, deadline=None)
@given(versions())
def test_versions_are_restored_bit_by_bit(contents: list[Contents]) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        files = [
            write(directory / f"{number}", version, {"step": str(number)} if number else None)
            for number, version in enumerate(contents)
        ]
        with safe_open(files[0], framework="np") as read:
            assert set(read.keys()) == set(contents[0])
        deltas = [directory / f"d{number}" for number in range(len(files) - 1)]
        for base, new, delta in zip(files, files[1:], deltas, strict=False):
            assert encode_delta(base, new, delta, EVERYTHING)
        for last in range(len(files)):
            digest = apply_deltas(files[0], deltas[:last], directory / "out")
            assert (directory / "out").read_bytes() == files[last].read_bytes() and digest == fingerprint(files[last])


@pytest.fixture
def three(tmp_path: Path) -> tuple[Path, Path, Path, Path]:
    """Two versions, the delta between them, and unrelated weights."""
    first = weights(0, 2000)
    base, new = write(tmp_path / "base", first), write(tmp_path / "new", stepped(first, 1))
    assert encode_delta(base, new, tmp_path / "delta", EVERYTHING)
    return base, new, tmp_path / "delta", write(tmp_path / "other", weights(5, 2000))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_damaged_delta_never_gives_wrong_weights(three: tuple[Path, Path, Path, Path], data: st.DataObject) -> None:
    base, new, delta, _ = three
    good = delta.read_bytes()
    offset = data.draw(st.integers(0, len(good) - 1))
    damage = data.draw(st.sampled_from(["flip", "cut", "more", "zeros"]))
    bad = {
        "flip": good[:offset] + bytes([good[offset] ^ data.draw(st.integers(1, 255))]) + good[offset + 1 :],
        "cut": good[:offset],
        "more": good + b"\0",
        "zeros": good[:offset] + bytes(len(good) - offset),
    }[damage]
    damaged, out = delta.with_name("damaged"), delta.with_name("out")
    damaged.write_bytes(bad)
    try:
        digest = apply_deltas(base, [damaged], out)
    except DeltaError as error:
        assert str(error)
    else:
        assert out.read_bytes() == new.read_bytes() and digest == fingerprint(new)


def test_a_wrong_base_is_no_damaged_delta(three: tuple[Path, Path, Path, Path], tmp_path: Path) -> None:
    base, new, delta, other = three
    with pytest.raises(WrongBaseError, match="made against other weights"):
        apply_deltas(other, [delta], tmp_path / "out")
    with pytest.raises(WrongBaseError, match="made against other weights"):
        apply_deltas(new, [delta], tmp_path / "out")
    with pytest.raises(DeltaError, match="do not follow each other"):
        apply_deltas(base, [delta, delta], tmp_path / "out")
    renamed = {f"x{name}": tensor for name, tensor in weights(0, 2000).items()}
    with pytest.raises(WrongBaseError, match="other tensors than those here: 'a'"):
        apply_deltas(write(tmp_path / "renamed", renamed), [delta], tmp_path / "out")
    typed = {name: ("F16", shape, data) for name, (_, shape, data) in weights(0, 2000).items()}
    with pytest.raises(WrongBaseError, match="other tensors than those here: 'a'"):
        apply_deltas(write(tmp_path / "typed", typed), [delta], tmp_path / "out")


def test_a_payload_takes_no_more_memory_than_its_block(three: tuple[Path, Path, Path, Path], tmp_path: Path) -> None:
    base, _, delta, _ = three
    assert encode_delta(base, write(tmp_path / "stepped", stepped(weights(0, 2000), 2, share=0.5)), delta, EVERYTHING)
    good = delta.read_bytes()
    offset = len(module.MAGIC) + len(read_header(base)) + module.DIGEST_BYTES
    form, changed, length, before, after = RECORD.unpack_from(good, offset)
    bomb = zstandard.ZstdCompressor().compress(bytes(400_000))
    assert form != module.UNCHANGED and len(bomb) < 64
    record = RECORD.pack(form, changed, len(bomb), before, after)
    (tmp_path / "bomb").write_bytes(good[:offset] + record + bomb + good[offset + RECORD.size + length :])
    with pytest.raises(DeltaError, match="a block has the wrong size"):
        apply_deltas(base, [tmp_path / "bomb"], tmp_path / "out")


def test_a_delta_that_is_too_large_is_not_written(three: tuple[Path, Path, Path, Path], tmp_path: Path) -> None:
    base, new, delta, other = three
    assert delta.stat().st_size < new.stat().st_size
    assert not encode_delta(base, other, tmp_path / "d", new.stat().st_size // 2), "all words have changed"
    assert not encode_delta(base, write(tmp_path / "larger", weights(0, 3000)), tmp_path / "d", EVERYTHING)
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,8]}}',
        b'{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}',
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}',
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
        b"[" * 100_000,
    ],
)
def test_an_invalid_header_is_refused(header: bytes) -> None:
    file_header = len(header).to_bytes(8, "little") + header
    with pytest.raises(InvalidSafetensorsError):
        parse_tensors(file_header, len(file_header) + 4)
