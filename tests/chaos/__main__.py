"""``make chaos``: every fault there is a promise about, in running systems; one table of the results.

Exits with 1 if anything was lost, counted twice or was otherwise not as promised. The same seed hits the same targets
after the same numbers of rollouts.
"""

import argparse
import asyncio
import json
import logging
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.report import Report, filled, markdown
from tests.chaos.running_system import CALCULATOR
from tests.chaos.scenarios import DEFAULT_KILLS, KILLS, SCENARIOS

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "chaos.json"
PAGE = ROOT / "docs" / "guarantees.md"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--kills", type=int, help=f"default: {DEFAULT_KILLS}, but {KILLS}")
    parser.add_argument("--rollouts", type=int, default=2048)
    parser.add_argument("--only", nargs="*", choices=sorted(SCENARIOS), default=list(SCENARIOS))
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--keep", type=Path, help="directory for logs and data; default: a temporary one")
    args = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    print(f"seed {args.seed}", flush=True)
    report = Report(args.seed)
    whole = args.only == list(SCENARIOS)
    command = f"make chaos SEED={args.seed}" + ("" if whole else f' ONLY="{" ".join(args.only)}"')
    command += "".join(
        f" {name.upper()}={value}"
        for name, value in (("kills", args.kills), ("rollouts", args.rollouts))
        if value != parser.get_default(name)
    )
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="chaos-") as directory:
        for name in args.only:
            place = (args.keep or Path(directory)) / name
            prepare(place)
            kills = KILLS.get(name, DEFAULT_KILLS) if args.kills is None else args.kills
            asyncio.run(SCENARIOS[name](place, report, random.Random(args.seed), kills, args.rollouts))
            print(f"[{time.monotonic() - started:.0f} s] {name}: {report.verdicts[name]}", flush=True)
            save(report, command, args.out)
    print(report.table(), flush=True)
    raise SystemExit(0 if report.good else 1)


def save(report: Report, command: str, out: Path) -> None:
    """Write the results so far; scenarios that were not run keep what was measured last."""
    known = json.loads(out.read_text()) if out.exists() else {}
    by_name = {name: item for name, item in {**known, **report.as_dict(command)}.items() if name in SCENARIOS}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(by_name, indent=2) + "\n")
    if out == RESULTS:
        PAGE.write_text(filled(PAGE.read_text(), markdown(by_name, SCENARIOS)))


def prepare(place: Path, problems: int = 64) -> None:
    """A small model and problems to solve."""
    place.mkdir(parents=True)
    make = [sys.executable, str(CALCULATOR / "model.py"), "--steps", "1", "--out", str(place / "model")]
    subprocess.run(make, check=True, capture_output=True)
    lines = [json.dumps({"id": f"q{n}", "input": {"question": f"what follows {n}?"}}) + "\n" for n in range(problems)]
    (place / "tasks.jsonl").write_text("".join(lines))


if __name__ == "__main__":
    main()
