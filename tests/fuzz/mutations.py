"""Wrong inputs made of right ones: bytes flipped, cut, spliced; and where they are a structure, that changed inside."""

import copy
import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import msgpack

LENGTHS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 2**63 - 1, 2**64 - 1)
MOST_BYTES = 256 * 1024
"""Of one input; deeper faults show in small ones."""
MOST_CHANGES = 4


def _deep(levels: int, make: Callable[[Any], Any]) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = make(value)
    return value


ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 4, 2**31, 2**32, 2**53 + 1, 2**63, 2**64 - 1, -(2**63), 0.5, -0.0, 1e308, float("nan"),
    float("inf"), "", "x", "policy", "0", "-1", "é" * 5, "\x00", "\ud800", "\U0001f30d", "x" * 5000, "../../etc/passwd",
    b"", b"\xff" * 7, list, dict, lambda: [[]], lambda: [None], lambda: [1, 2, 3], lambda: {"": None},
    lambda: {"type": "text"}, lambda: {"role": "user", "content": []},
    lambda: _deep(200, lambda inner: [inner]), lambda: _deep(200, lambda inner: {"a": inner}),
)  # fmt: skip
"""Values, and what makes those that a change could change."""
ODD_IN_JSON = (10**400, -(10**400), lambda: _deep(600, lambda inner: [inner]))
DEEPEST = 12
"""Places are looked for so far down."""


def bytes_changed(random: Random, corpus: Sequence[bytes]) -> bytes:
    """An input with some of its bytes another way, whatever they mean."""
    data = bytearray(random.choice(corpus))
    for _ in range(random.randint(1, MOST_CHANGES)):
        at = random.randrange(len(data) + 1)
        match random.randrange(8):
            case 0 if data:
                data[at % len(data)] ^= 1 << random.randrange(8)
            case 1 if data:
                data[at % len(data)] = random.choice((0, 0x7F, 0x80, 0xC1, 0xFF, random.randrange(256)))
            case 2:
                del data[at:]
            case 3:
                del data[at : at + random.randint(1, 16)]
            case 4:
                data[at:at] = random.randbytes(random.randint(1, 16))
            case 5:
                width, order = random.choice((1, 2, 4, 8)), random.choice(("little", "big"))
                length = random.choice(LENGTHS) & (1 << 8 * width) - 1
                data[at : at + width] = length.to_bytes(width, order)  # type: ignore[arg-type]
            case 6:
                other = random.choice(corpus)
                begin = random.randrange(len(other) + 1)
                data[at : at + random.randint(0, 64)] = other[begin : begin + random.randint(1, 256)]
            case _:
                part = data[at : at + random.randint(1, 64)]
                data[at:at] = part * random.randint(1, 20)
    return bytes(data[:MOST_BYTES])


def _places(value: Any, actual: list[tuple[Any, Any]], depth: int = 0) -> list[tuple[Any, Any]]:
    """Every (container, key) there is."""
    if depth > DEEPEST:
        return actual
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        actual.append((value, key))
        _places(inner, actual, depth + 1)
    return actual


def structure_changed(random: Random, value: Any, odd: Sequence[Any]) -> Any:
    """A value with some of its parts replaced, left out, moved, repeated or added."""
    whole = [copy.deepcopy(value)]
    for _ in range(random.randint(1, MOST_CHANGES)):
        places = _places(whole, [])
        holder, key = random.choice(places)
        if (isinstance(holder, dict) and key not in holder) or (isinstance(holder, list) and key >= len(holder)):
            continue
        match random.randrange(6):
            case 0 | 1 | 2:
                holder[key] = _pick(random, odd)
            case 3 if holder is not whole:
                del holder[key]
            case 4:
                source, at = random.choice(places)
                holder[key] = copy.deepcopy(source[at])
            case _ if isinstance(holder, dict):
                holder[random.choice(("", "x", "type", "role", "content", "id", "index"))] = _pick(random, odd)
            case _:
                holder.append(_pick(random, odd))
    return whole[0]


def _pick(random: Random, odd: Sequence[Any]) -> Any:
    choice = random.choice(odd)
    return choice() if callable(choice) else choice


class Mutator:
    """Wrong inputs for one decoder; ``form`` is what its corpus is made of."""

    def __init__(self, corpus: Sequence[bytes], form: str, seed: str) -> None:
        self._corpus, self._form = corpus, form
        self._random = Random(seed)
        self._values = [self._read(data) for data in corpus] if form in ("json", "msgpack") else []
        self._odd = [*ODD, *ODD_IN_JSON] if form == "json" else ODD

    def next(self) -> bytes:
        """One more."""
        if self._values and self._random.random() < 0.7:
            try:
                value = self._random.choice(self._values)
                return self._written(structure_changed(self._random, value, self._odd))
            except (TypeError, ValueError, OverflowError, RecursionError):  # no form for it: then bytes
                pass
        return bytes_changed(self._random, self._corpus)

    def _read(self, data: bytes) -> Any:
        return json.loads(data) if self._form == "json" else msgpack.unpackb(data, strict_map_key=False)

    def _written(self, value: Any) -> bytes:
        if self._form == "json":
            return json.dumps(value, default=repr).encode()
        return bytes(msgpack.packb(value, unicode_errors="surrogatepass"))
