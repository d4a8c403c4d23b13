"""Task lines from MuSiQue's files: ``python data.py --out DIR --musique /path/to/musique``.

Without ``--musique`` a small stand-in in the same format is made first, from a seed, and read in its place. What is
trained on is MuSiQue's train set, what is held out its dev set; all their paragraphs are what is searched.
"""

import argparse
import json
import random
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

import stand_in

TRAIN, HELDOUT = "musique_ans_v1.0_train.jsonl", "musique_ans_v1.0_dev.jsonl"


class InvalidRecordError(ValueError):
    """A file is not in MuSiQue's format; the message names the line."""


def read(path: Path) -> list[dict]:
    """All records that can be answered."""
    actual = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                actual.append(_checked(line, f"{path.name} line {number}"))
    return [record for record in actual if record.get("answerable", True)]


def _checked(line: str, where: str) -> dict:
    try:
        record = json.loads(line)
        needed = (record["id"], record["question"], record["answer"], record["paragraphs"])
        texts = [(item["title"], item["paragraph_text"]) for item in record["paragraphs"]]
    except ValueError:
        raise InvalidRecordError(f"{where} is not JSON") from None
    except (KeyError, TypeError):
        raise InvalidRecordError(
            f"{where} needs id, question, answer and paragraphs, each with title and paragraph_text"
        ) from None
    if not all(isinstance(text, str) for text in (*needed[:3], *(text for both in texts for text in both))):
        raise InvalidRecordError(f"{where} has something else than text for one of its texts")
    return record


def task(record: dict) -> dict:
    """The task line ``{"id", "input": {"question", "answers"}}``; every alias of the answer is as good."""
    answers = list(dict.fromkeys([record["answer"], *(record.get("answer_aliases") or [])]))
    return {"id": record["id"], "input": {"question": record["question"].strip(), "answers": answers}}


def passages(records: Iterable[dict]) -> list[str]:
    """Every paragraph once, with its title unless its text names it."""
    return list(dict.fromkeys(passage(item) for record in records for item in record["paragraphs"]))


def passage(paragraph: dict) -> str:
    """One line."""
    title, text = (" ".join(paragraph[field].split()) for field in ("title", "paragraph_text"))
    return text if title in text else f"{title}: {text}"


def some(records: list[dict], count: int | None, rng: random.Random) -> list[dict]:
    """So many of them, by chance; all without a count."""
    if count is not None and count > len(records):
        raise SystemExit(f"there are {len(records)} questions; asked for {count}")
    return records if count is None else rng.sample(records, count)


def write(path: Path, lines: Iterable[object]) -> None:
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--musique", type=Path, help=f"MuSiQue's own folder, with {TRAIN} and {HELDOUT}")
    parser.add_argument("--train", type=int, help="how many questions; default: all of MuSiQue, 1700 of the stand-in")
    parser.add_argument("--heldout", type=int, help="how many questions; default: all of MuSiQue, 100 of the stand-in")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    musique, train, heldout = options.musique, options.train, options.heldout
    if musique is None:
        musique = options.out / "stand_in"
        train, heldout = 1700 if train is None else train, 100 if heldout is None else heldout
        stand_in.make(musique, train, heldout, options.seed)
    rng = random.Random(options.seed)
    try:
        parts = {
            "train": some(read(musique / TRAIN), train, rng),
            "heldout": some(read(musique / HELDOUT), heldout, rng),
        }
    except (InvalidRecordError, OSError) as error:
        sys.exit(str(error))
    corpus = options.out / "corpus"
    if corpus.exists():
        shutil.rmtree(corpus)  # with the index of other passages
    corpus.mkdir(parents=True)
    write(corpus / "passages.jsonl", passages(record for part in parts.values() for record in part))
    for name, part in parts.items():
        write(options.out / f"{name}.jsonl", map(task, part))
        write(options.out / f"{name}_records.jsonl", part)


if __name__ == "__main__":
    main()
