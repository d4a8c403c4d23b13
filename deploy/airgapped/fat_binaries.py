"""GPU code of one architecture in a CUDA shared library: ``python -m deploy.airgapped.fat_binaries IN.so OUT.so``.

A section ``.nv_fatbin`` is a row of fat binaries, each a header and a row of elements: PTX or machine code of one
architecture. `strip` writes each fat binary anew at its place with the elements of one architecture, and zeros behind
them. So the file keeps its size and layout, and zeros cost nothing once it is compressed. A fat binary without such an
element gets a small one of a newer architecture. It stays well-formed, and its kernels fail with "no kernel image" when
they are launched. CUDA loads modules lazily, so nothing fails before. Kernels that have PTX alone cannot be used.
"""

import argparse
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

MAGIC = 0xBA55ED50
SECTION = b".nv_fatbin"
PTX, MACHINE_CODE = 1, 2
"""Kinds of elements."""
HEADER_BYTES, ELEMENT_BYTES = 16, 64
"""Least sizes of the headers of a fat binary and of an element."""
ARCHITECTURE_OFFSET = 28
SYMBOLS = b".text."
"""Prefix of the section of a kernel."""


class FatBinaryError(Exception):
    """The library cannot be stripped; the text is a sentence that says why."""


class Section(NamedTuple):
    """A section of an ELF file."""

    name: bytes
    start: int
    size: int


class Element(NamedTuple):
    """Code of one architecture, with its header."""

    kind: int
    architecture: int
    content: bytes
    code: bytes

    @property
    def label(self) -> str:
        """Name as CUDA's tools print it, such as sm_90."""
        return f"{'ptx' if self.kind == PTX else 'sm'}_{self.architecture}"


class FatBinary(NamedTuple):
    """A fat binary at its place in the file."""

    start: int
    header_size: int
    body_size: int
    elements: list[Element]


@dataclass(slots=True)
class Report:
    """Counts of what `strip` kept."""

    kept: list[Element]
    dropped: list[Element]
    num_fillers: int = 0

    def __str__(self) -> str:
        sizes = [sum(len(element.content) for element in elements) for elements in (self.kept, self.dropped)]
        labels = ", ".join(sorted({element.label for element in self.dropped}))
        return (
            f"kept {len(self.kept)} elements of {sizes[0]:,} bytes, dropped {len(self.dropped)} of {sizes[1]:,} "
            f"({labels or 'none'}), filled {self.num_fillers} fat binaries"
        )


def list_sections(elf: bytes) -> list[Section]:
    """List the sections of a 64-bit little-endian ELF file. Pure."""
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    entry_size, count, names_index = struct.unpack_from("<HHH", elf, 0x3A)
    rows = [struct.unpack_from("<IIQQQQ", elf, table + number * entry_size) for number in range(count)]
    names = rows[names_index][4] if rows else 0
    return [Section(elf[names + row[0] : elf.index(b"\0", names + row[0])], start=row[4], size=row[5]) for row in rows]


def parse(library: bytes) -> Iterator[FatBinary]:
    """Yield the fat binaries of a library; raises `FatBinaryError` if it has no section for them. Pure."""
    section = next((each for each in list_sections(library) if each.name == SECTION and each.size), None)
    if section is None:
        raise FatBinaryError(f"the library has no section {SECTION.decode()}: leave it as it is")
    start, end = section.start, section.start + section.size
    while start + HEADER_BYTES <= end:
        magic, _, header_size, body_size = struct.unpack_from("<IHHQ", library, start)
        if magic != MAGIC:  # padding between them
            start += 8
            continue
        body = start + header_size
        yield FatBinary(start, header_size, body_size, list(_parse_elements(library, body, body + body_size)))
        start = body + body_size


def _parse_elements(library: bytes, start: int, end: int) -> Iterator[Element]:
    while start + ELEMENT_BYTES <= end:
        kind, _, header_size, code_size = struct.unpack_from("<HHIQ", library, start)
        (architecture,) = struct.unpack_from("<I", library, start + ARCHITECTURE_OFFSET)
        stop = start + header_size + code_size
        yield Element(kind, architecture, library[start:stop], library[start + header_size : stop])
        start = stop


def list_kernels(code: bytes) -> list[str]:
    """List the mangled names of the kernels of machine code; none if it is compressed. Pure."""
    if code[:4] != b"\x7fELF":
        return []
    names = [section.name for section in list_sections(code) if section.name.startswith(SYMBOLS)]
    return [name.removeprefix(SYMBOLS).decode("ascii", "replace") for name in names]


def is_kept(element: Element, architecture: int, dropped: Sequence[re.Pattern[str]]) -> bool:
    """Whether an element is machine code of the architecture with a kernel that no expression matches. Pure."""
    if element.kind != MACHINE_CODE or element.architecture != architecture:
        return False
    names = list_kernels(element.code) if dropped else []
    return not names or not all(any(pattern.search(name) for pattern in dropped) for name in names)


def choose_filler(library: bytes, architecture: int) -> bytes:
    """Choose the smallest machine code of a newer architecture; raises `FatBinaryError` without one. Pure."""
    newer = [
        element.content
        for binary in parse(library)
        for element in binary.elements
        if element.kind == MACHINE_CODE and element.architecture > architecture
    ]
    if not newer:
        raise FatBinaryError(f"nothing is newer than sm_{architecture} to fill with: name a library with --filler-from")
    return min(newer, key=len)


def strip(
    library: bytes, architecture: int, dropped: Sequence[re.Pattern[str]] = (), filler_from: bytes | None = None
) -> tuple[bytes, Report]:
    """Keep the machine code of one architecture, except elements whose kernels all match ``dropped``.

    ``filler_from`` is a library with a filler, if this one has none. Raises `FatBinaryError`. Pure.
    """
    result, report, filler = bytearray(library), Report([], []), b""
    for binary in parse(library):
        kept = [element for element in binary.elements if is_kept(element, architecture, dropped)]
        report.kept += kept
        report.dropped += [element for element in binary.elements if element not in kept]
        body = b"".join(element.content for element in kept)
        if not kept:
            filler = filler or choose_filler(library if filler_from is None else filler_from, architecture)
            body, report.num_fillers = filler, report.num_fillers + 1
        if len(body) > binary.body_size:
            raise FatBinaryError(f"the filler of {len(body):,} bytes is larger than what it replaces")
        struct.pack_into("<Q", result, binary.start + 8, len(body))
        start = binary.start + binary.header_size
        result[start : start + binary.body_size] = body.ljust(binary.body_size, b"\0")
    return bytes(result), report


def main() -> None:
    """Strip a library."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--architecture", type=int, default=90)
    parser.add_argument("--drop", action="append", default=[], metavar="REGEX", help="of the names of kernels")
    parser.add_argument("--filler-from", type=Path, help="a library with code of a newer architecture")
    options = parser.parse_args()
    filler_from = options.filler_from and options.filler_from.read_bytes()
    try:
        library, report = strip(
            options.source.read_bytes(), options.architecture, [re.compile(each) for each in options.drop], filler_from
        )
    except FatBinaryError as error:
        raise SystemExit(f"{options.source}: {error}") from None
    options.target.write_bytes(library)
    print(f"{options.source}: {report}")


if __name__ == "__main__":
    main()
