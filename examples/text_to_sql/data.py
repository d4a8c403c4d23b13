"""Task lines from Spider's files: ``python data.py --out DIR --spider /path/to/spider``.

Without ``--spider`` a small stand-in in the same format is made first, from a seed, and read in its place. What is
trained on is Spider's ``train_spider.json``, what is held out its ``dev.json``.
"""

import argparse
import json
import random
import sys
from pathlib import Path

import stand_in
from database import QueryFailedError, run_query

TRAIN, HELDOUT = "train_spider", "dev"


class InvalidRecordError(ValueError):
    """A file is not in Spider's format; the message names the record."""


def load(spider: Path, part: str) -> list[dict]:
    """The tasks ``{"id", "input": {"question", "database", "gold"}}`` of ``part.json``.

    A record whose own query fails cannot be rewarded: it is left out, with a word on standard error.
    """
    tasks = []
    for number, record in enumerate(_records(spider / f"{part}.json")):
        where = f"{part}.json record {number}"
        try:
            db_id, question, gold = (record[field] for field in ("db_id", "question", "query"))
        except (KeyError, TypeError):
            raise InvalidRecordError(f"{where} needs db_id, question and query") from None
        database = (spider / "database" / db_id / f"{db_id}.sqlite").resolve()
        if not database.is_file():
            raise InvalidRecordError(f"{where}: there is no {database}")
        try:
            run_query(database, gold)
        except QueryFailedError as error:
            print(f"{where} is left out, its query fails: {error}: {gold}", file=sys.stderr)
            continue
        task = {"question": question.strip(), "database": str(database), "gold": gold}
        tasks.append({"id": f"{part}-{number}", "input": task})
    return tasks


def _records(path: Path) -> list:
    try:
        records = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InvalidRecordError(f"{path} is not JSON: {error}") from error
    if not isinstance(records, list):
        raise InvalidRecordError(f"{path} is not a list of records")
    return records


def some(tasks: list[dict], count: int | None, rng: random.Random) -> list[dict]:
    """So many of them, by chance; all without a count."""
    if count is not None and count > len(tasks):
        raise SystemExit(f"there are {len(tasks)} problems; asked for {count}")
    return tasks if count is None else rng.sample(tasks, count)


def write(path: Path, tasks: list[dict]) -> None:
    path.write_text("".join(json.dumps(task) + "\n" for task in tasks), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--spider", type=Path, help="Spider's own directory, with train_spider.json, dev.json, database/"
    )
    parser.add_argument("--train", type=int, help="how many problems; default: all of Spider, 1200 of the stand-in")
    parser.add_argument("--heldout", type=int, help="how many problems; default: all of Spider, 100 of the stand-in")
    parser.add_argument("--databases", type=int, help="of the stand-in: how many of its eight")
    parser.add_argument(
        "--kinds", nargs="+", choices=stand_in.KINDS, default=[*stand_in.USUAL], help="of its questions"
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    spider, train, heldout = options.spider, options.train, options.heldout
    if spider is None:
        spider = options.out / "stand_in"
        train, heldout = 1200 if train is None else train, 100 if heldout is None else heldout
        stand_in.make(spider, train, heldout, options.seed, options.databases, options.kinds)
    rng = random.Random(options.seed)
    write(options.out / "train.jsonl", some(load(spider, TRAIN), train, rng))
    write(options.out / "heldout.jsonl", some(load(spider, HELDOUT), heldout, rng))


if __name__ == "__main__":
    main()
