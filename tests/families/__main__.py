"""``make models``: tiny models of many families through learner and vLLM, an hour on two cores; `docs/models.md`."""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.families.families import FAMILIES
from tests.families.page import fill, is_tested, render

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "models.json"
PAGE = ROOT / "docs" / "models.md"
MAX_SECONDS = 900.0
"""Longest measurement of a family: vLLM's CPU build compiles kernels of some."""


def main() -> None:
    """Measure families one after another, or train them; results are kept after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=sorted(FAMILIES), default=list(FAMILIES))
    parser.add_argument("--missing", action="store_true", help="only families without a result")
    parser.add_argument("--train", action="store_true", help="train three steps of families that are right instead")
    args = parser.parse_args()
    results = read_results()
    if args.train:
        from tests.families.three_steps import train_families

        names = [name for name in args.only if is_tested(results.get(name, {}))]
        names = [name for name in names if not (args.missing and results[name].get("training"))]
        for name, training in train_families(names):
            print(f"{name}: {json.dumps(training)}", flush=True)
            write_results(name, {**results[name], "training": training})
        return
    for name in args.only:
        if not (args.missing and name in results):
            started_at = time.monotonic()
            measured = measure_apart(name)
            print(f"{name}: {json.dumps(measured)} ({time.monotonic() - started_at:.0f} s)", flush=True)
            write_results(name, measured)


def read_results() -> dict[str, Any]:
    """Read what was measured of each family."""
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def write_results(name: str, result: Mapping[str, Any]) -> None:
    """Keep a family's result, and render the page anew."""
    results = dict(sorted({**read_results(), name: result}.items()))
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    PAGE.write_text(fill(PAGE.read_text("utf-8"), render(results)), "utf-8")


def measure_apart(name: str) -> dict[str, Any]:
    """Measure a family in a process of its own."""
    command = [sys.executable, "-m", "tests.families.measure", name]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=MAX_SECONDS, check=False)
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (subprocess.TimeoutExpired, IndexError, ValueError) as error:
        raise SystemExit(f"{name} gave no result: {error}") from None
    return result


if __name__ == "__main__":
    main()
