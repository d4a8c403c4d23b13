"""Tasks of an environment whose episodes differ by their seed only."""

import itertools
from collections.abc import Iterator
from typing import Any

FIRST_HELDOUT_SEED = 1_000_000_000


def seed_tasks(split: str) -> Iterator[dict[str, Any]]:
    """Yield seeds without end; those of held-out tasks are never trained on."""
    first = 0 if split == "train" else FIRST_HELDOUT_SEED
    return ({"id": f"seed-{seed}", "input": {"seed": seed}} for seed in itertools.count(first))
