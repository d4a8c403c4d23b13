"""Tasks of a family of Reasoning Gym: ``python data.py chain_sum --settings '{"max_terms": 2}' --out DIR``.

Every family with a data set of its own works by its name; ``--list`` names them. Settings are the family's. No question
of the held-out tasks occurs among those to train on.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import reasoning_gym
from reasoning_gym.factory import DATASETS

MAX_REPEATS = 1000
"""Questions in a row that have all occurred before: the family has no more."""


def draw_entries(family: str, settings: dict[str, Any], seed: int) -> Iterator[dict[str, Any]]:
    """Entries of a family, each question once."""
    seen: set[str] = set()
    repeats = 0
    for entry in reasoning_gym.create_dataset(family, seed=seed, size=10**6, **settings):
        if entry["question"] not in seen:
            seen.add(entry["question"])
            repeats = 0
            yield entry
        elif (repeats := repeats + 1) == MAX_REPEATS:
            return


def to_messages(entry: dict[str, Any]) -> list[dict[str, str]]:
    """A question and its answer, as messages."""
    return [{"role": "user", "content": entry["question"]}, {"role": "assistant", "content": entry["answer"]}]


def write(path: Path, entries: list[dict[str, Any]], examples: list[dict[str, str]]) -> None:
    family = entries[0]["metadata"]["source_dataset"]
    with path.open("w", encoding="utf-8") as file:
        for entry in entries:
            line = {
                "id": f"{family}-{entry['metadata']['source_index']}",
                "input": {"entry": entry, "examples": examples},
                "labels": {"family": family},
            }
            file.write(json.dumps(line) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("family", nargs="?", help="name of a family, such as chain_sum")
    parser.add_argument("--list", action="store_true", help="name the families and end")
    parser.add_argument("--settings", type=json.loads, default={}, help="the family's own settings, as JSON")
    parser.add_argument("--examples", type=int, default=1, help="solved tasks before each question")
    parser.add_argument("--train", type=int, default=512)
    parser.add_argument("--heldout", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.list:
        print("\n".join(sorted(DATASETS)))
        return
    if options.family not in DATASETS or options.out is None:
        parser.error("name a family and --out; --list names the families")
    drawn = draw_entries(options.family, options.settings, options.seed)
    needed = options.examples + options.heldout + options.train
    entries = [entry for entry, _ in zip(drawn, range(needed), strict=False)]
    if len(entries) < needed:
        raise SystemExit(f"{options.family} has {len(entries)} questions with these settings; asked for {needed}")
    examples = [message for entry in entries[: options.examples] for message in to_messages(entry)]
    options.out.mkdir(parents=True, exist_ok=True)
    rest = entries[options.examples :]
    write(options.out / "heldout.jsonl", rest[: options.heldout], examples)
    write(options.out / "train.jsonl", rest[options.heldout :], examples)


if __name__ == "__main__":
    main()
