"""What an agent of the store workloads emits; standard library only, for it runs in any environment.

Per rollout R ~ U{1..rounds} rounds of three spans, an outer one and two children that each sleep U(0, sleep) and carry
random nested attributes, flattened; in half of the rounds a reward span; then one span that sleeps U(0, sleep) and a
reward in [1, 2]. Attributes come from a pool made once per process: making random text would be what is measured.
"""

import random
import string
from collections.abc import Iterator
from typing import Any

DEPTH, BREADTH, KEY_LENGTH, VALUE_LENGTH = (1, 3), (2, 6), (3, 20), (5, 300)
POOL = 64
TEXT = 1 << 20


def pool(seed: int) -> list[dict[str, str]]:
    """Flattened attributes; of 5,000 draws the mean is 28 attributes and 5.2 kB."""
    chance = random.Random(seed)
    text = "".join(chance.choices(string.ascii_letters + string.digits, k=TEXT))
    return [dict(flat(nested(chance, text))) for _ in range(POOL)]


def nested(chance: random.Random, text: str, depth: int | None = None) -> dict[str, Any]:
    """A random dictionary of dictionaries."""
    left = chance.randint(*DEPTH) if depth is None else depth
    return {
        _cut(chance, text, KEY_LENGTH): nested(chance, text, left - 1) if left > 1 else _cut(chance, text, VALUE_LENGTH)
        for _ in range(chance.randint(*BREADTH))
    }


def flat(value: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Its leaves, keyed by their path."""
    for key, item in value.items():
        if isinstance(item, dict):
            yield from flat(item, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", item


def _cut(chance: random.Random, text: str, length: tuple[int, int]) -> str:
    size = chance.randint(*length)
    start = chance.randrange(len(text) - size)
    return text[start : start + size]
