"""Calc-X problems as task lines: ``python data.py --out DIR [--real FOLDER [--parts gsm8k svamp]]``.

Calc-X is MU-NLPC/Calc-X on Hugging Face: seven parts (`PARTS`) in one format, each also a set of its own
(MU-NLPC/Calc-gsm8k, ...). ``--real`` names a folder with one of them or several, as the Hub or ``save_to_disk`` lays
them out. Without it, a small stand-in is generated in that format and read back.
"""

import argparse
import json
import random
from collections import Counter
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
PARTS = ("gsm8k", "ape210k", "aqua_rat", "math_qa", "svamp", "asdiv_a", "mawps")
"""Of Calc-X. svamp and asdiv_a are for tests only, math_qa for training only: their own splits leak into others."""
SUFFIXES = (".jsonl", ".parquet", ".arrow")
COLUMNS = ("id", "question", "chain", "result", "source_ds")
ORIGINAL = "original-splits"


def read_records(folder: Path, split: str) -> Iterator[dict]:
    """All records of a split, of whatever set a folder holds: JSONL, Parquet or Arrow.

    A file is of a split whose name begins its own (``data/train-00000-of-00002-1a2b.parquet``) or is its directory's
    (``train/data-00000-of-00001.arrow``, ``default/train/0000.parquet``). The sets' original splits leak into one
    another; they are read only where a folder has no others.
    """
    files = sorted(file for file in folder.rglob("*") if file.suffix in SUFFIXES)
    default = [file for file in files if ORIGINAL not in file.relative_to(folder).parts]
    for file in default or files:
        name, directory = file.name.split("-")[0].split(".")[0], file.relative_to(folder).parent.name
        if split in (name, directory):
            yield from _records(file)


def _records(file: Path) -> Iterator[dict]:
    if file.suffix == ".jsonl":
        with file.open(encoding="utf-8") as lines:
            yield from (json.loads(line) for line in lines if line.strip())
        return
    import pyarrow  # only where there is such a file
    from pyarrow import ipc, parquet

    with pyarrow.memory_map(str(file)) as source:
        batches = parquet.ParquetFile(source).iter_batches() if file.suffix == ".parquet" else ipc.open_stream(source)
        for batch in batches:
            yield from batch.select([name for name in COLUMNS if name in batch.schema.names]).to_pylist()


def part_of(record: dict) -> str:
    """The set that a record comes from: Calc-X says it; elsewhere an id begins with it."""
    return record.get("source_ds") or record["id"].partition("__")[0]


def tasks(records: Iterable[dict], parts: Iterable[str] = ()) -> Iterator[dict]:
    """Task lines ``{"id", "input": {"question", "result"}, "labels": {"part"}}`` of these parts; none: of all.

    A record without a result is none, and one that stands twice (in Calc-X and in a part) is one.
    """
    seen, parts = set(), set(parts)
    for record in records:
        part = part_of(record)
        if record.get("result") and record["id"] not in seen and (not parts or part in parts):
            seen.add(record["id"])
            request = {"question": record["question"], "result": record["result"]}
            yield {"id": record["id"], "input": request, "labels": {"part": part}}


def make_records(count: int, seed: int, max_operations: int = 2) -> list[dict]:
    """A stand-in: word problems of one or two operations; no numbers occur twice, in any order or problem."""
    rng = random.Random(seed)
    problems = [(text, formula) for text, formula in PROBLEMS if len(formula.split()) <= 2 * max_operations + 1]
    records, seen = [], set()
    while len(records) < count:
        text, formula = rng.choice(problems)
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


def choose(problems: list[dict], count: int | None, rng: random.Random, where: str) -> list[dict]:
    """So many of them, by chance; all, in another order, without a count."""
    if not problems or len(problems) < (count or 0):
        raise SystemExit(f"{where} has {len(problems)} problems; asked for {'some' if count is None else count}")
    return rng.sample(problems, len(problems) if count is None else count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=int, help="how many problems; default: all real ones, 4000 of the stand-in")
    parser.add_argument("--heldout", type=int, help="how many of the test split; default: all, 100 of the stand-in")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--real", type=Path, help="folder with Calc-X or parts of it; default: a stand-in is made")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=[], help="of the real ones; default: all")
    parser.add_argument("--max-operations", type=int, choices=(1, 2), default=2, help="of a problem of the stand-in")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    folder, train, heldout = options.real, options.train, options.heldout
    if folder is None:
        folder = options.out / "standin"
        train, heldout = 4000 if train is None else train, 100 if heldout is None else heldout
        records = make_records(train + heldout, options.seed, options.max_operations)
        write(folder / "data" / "train-00000-of-00001.jsonl", records[:train])
        write(folder / "data" / "test-00000-of-00001.jsonl", records[train:])
    rng = random.Random(options.seed)
    for split, count, name in (("train", train, "train"), ("test", heldout, "heldout")):
        problems = list(tasks(read_records(folder, split), options.parts))
        chosen = choose(problems, count, rng, f"{folder}, {split} split,")
        write(options.out / f"{name}.jsonl", chosen)
        parts = Counter(line["labels"]["part"] for line in chosen)
        print(f"{name}: {', '.join(f'{number:,} of {part}' for part, number in sorted(parts.items()))}")


if __name__ == "__main__":
    main()
