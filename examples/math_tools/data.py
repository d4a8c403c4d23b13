"""Calc-X problems as task lines: ``python data.py --out DIR --train 4000 --heldout 100 --seed 0 [--real FOLDER]``.

The real sets are MU-NLPC/Calc-gsm8k, Calc-ape210k, Calc-svamp, ... on Hugging Face, which have one format; ``--real``
names a downloaded folder of one. Without it, a small stand-in is generated in that format and read back.
"""

import argparse
import json
import random
from collections.abc import Iterable, Iterator
from pathlib import Path

NAMES = ("Tom", "Ana", "Max", "Eva")
THINGS = ("apples", "books", "coins", "cards")
PROBLEMS = (
    ("{name} has {a} {things} and gets {b} more. How many now?", "a + b"),
    ("{name} has {a} {things} and loses {b}. How many are left?", "a - b"),
    ("{name} has {a} boxes of {b} {things}. How many in all?", "a * b"),
    ("{name} has {a} {things}, gets {b} and loses {c}. How many now?", "a + b - c"),
    ("{name} has {a} boxes of {b} {things} and gets {c} more. How many now?", "a * b + c"),
    ("{name} has {a} boxes of {b} {things} and loses {c}. How many are left?", "a * b - c"),
)
LOW, HIGH = 10, 99


def read_records(folder: Path, split: str) -> list[dict]:
    """All records of a split: JSONL or parquet files whose names begin with it, as the real sets have them."""
    files = sorted(file for file in folder.rglob(f"{split}*") if file.suffix in (".jsonl", ".parquet"))
    default = [file for file in files if "original-splits" not in file.parts]  # those leak into one another
    return [record for file in default or files for record in _records(file)]


def _records(file: Path) -> Iterable[dict]:
    if file.suffix == ".parquet":
        from pyarrow import parquet  # only where there is such a file

        return parquet.read_table(file).to_pylist()
    with file.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.strip()]


def tasks(records: Iterable[dict]) -> Iterator[dict]:
    """Task lines ``{"id", "input": {"question", "result"}}``; a record without a result is none."""
    for record in records:
        if record.get("result"):
            yield {"id": record["id"], "input": {"question": record["question"], "result": record["result"]}}


def make_records(count: int, seed: int) -> list[dict]:
    """A stand-in: word problems of one or two operations; no numbers occur twice, in any order or problem."""
    rng = random.Random(seed)
    records, seen = [], set()
    while len(records) < count:
        text, formula = rng.choice(PROBLEMS)
        letters = sorted(set("abc") & set(formula))
        numbers = {letter: rng.randint(LOW, HIGH) for letter in letters}
        key = tuple(sorted(numbers.values()))
        chain, result = _chain(formula, numbers)
        if key in seen or result < 0:
            continue
        seen.add(key)
        question = text.format(name=rng.choice(NAMES), things=rng.choice(THINGS), **numbers)
        id = f"standin__{len(records):08}"
        records.append({"id": id, "question": question, "chain": chain, "result": str(result)})
        records[-1]["result_float"] = float(result)
    return records


def _chain(formula: str, numbers: dict[str, int]) -> tuple[str, int]:
    """The elementary steps from left to right in Calc-X's markup, and what they come to."""
    words = formula.split()
    value, chain = numbers[words[0]], ""
    for sign, letter in zip(words[1::2], words[2::2], strict=True):
        right = numbers[letter]
        built = {"+": value + right, "-": value - right, "*": value * right}[sign]
        chain += f'<gadget id="calculator">{value} {sign} {right}</gadget>\n<output>{built}</output>\n\n'
        value = built
    return f"{chain}<result>{value}</result>", value


def write(path: Path, lines: Iterable[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", type=int, default=4000)
    parser.add_argument("--heldout", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--real", type=Path, help="folder with the files of a real set; default: a stand-in is made")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    folder = options.real
    if folder is None:
        folder = options.out / "standin"
        records = make_records(options.train + options.heldout, options.seed)
        write(folder / "data" / "train-00000-of-00001.jsonl", records[: options.train])
        write(folder / "data" / "test-00000-of-00001.jsonl", records[options.train :])
    rng = random.Random(options.seed)
    for split, count, name in (("train", options.train, "train"), ("test", options.heldout, "heldout")):
        problems = list(tasks(read_records(folder, split)))
        if len(problems) < count:
            raise SystemExit(f"{folder} has {len(problems)} problems in its {split} split; asked for {count}")
        write(options.out / f"{name}.jsonl", rng.sample(problems, count))


if __name__ == "__main__":
    main()
