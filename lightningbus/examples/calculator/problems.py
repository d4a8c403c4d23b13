"""Seeded arithmetic problems as JSONL: ``python problems.py --train 512 --heldout 100 --seed 0 --out DIR``.

No pair of operands of the held-out set occurs in the training set, in any order or operation.
"""

import argparse
import json
import random
from pathlib import Path

WORDS = {"+": "plus", "-": "minus", "*": "times"}
TEMPLATES = ("what is {a} {op} {b} ?", "compute {a} {op} {b}", "how much is {a} {op} {b} ?")
LOW, HIGH = 10, 99


def problem(rng: random.Random, pair: tuple[int, int], id: str) -> dict:
    """Make one task line: ``{"id", "input": {"question", "answer"}}``."""
    a, b = pair
    sign = rng.choice(tuple(WORDS))
    question = rng.choice(TEMPLATES).format(a=a, op=WORDS[sign], b=b)
    answer = {"+": a + b, "-": a - b, "*": a * b}[sign]
    return {"id": id, "input": {"question": question, "answer": str(answer)}}


def make(train: int, heldout: int, seed: int) -> tuple[list[dict], list[dict]]:
    """Make training and held-out problems, disjoint by their pair of operands."""
    rng = random.Random(seed)
    pairs = [(a, b) for a in range(LOW, HIGH + 1) for b in range(LOW, a + 1)]
    rng.shuffle(pairs)
    if train + heldout > len(pairs):
        raise SystemExit(f"at most {len(pairs)} problems can be disjoint; asked for {train + heldout}")
    swapped = [(b, a) if rng.random() < 0.5 else (a, b) for a, b in pairs[: train + heldout]]
    built = [problem(rng, pair, f"calc-{number}") for number, pair in enumerate(swapped)]
    return built[:train], built[train:]


def write(path: Path, problems: list[dict]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in problems), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", type=int, default=512)
    parser.add_argument("--heldout", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    train, heldout = make(options.train, options.heldout, options.seed)
    write(options.out / "train.jsonl", train)
    write(options.out / "heldout.jsonl", heldout)


if __name__ == "__main__":
    main()
