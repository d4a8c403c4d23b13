"""``make models``: tiny models of many families through learner and vLLM, an hour on two cores; `docs/models.md`."""

import argparse
import json
import subprocess
import sys
import time
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
    """Measure families one after another; results are kept after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=sorted(FAMILIES), default=list(FAMILIES))
    parser.add_argument("--missing", action="store_true", help="only families without a result")
    parser.add_argument("--train", action="store_true", help="train three steps of families that are right instead")
    args = parser.parse_args()
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in args.only:
        known = results.get(name, {})
        if (args.missing and (known.get("training") if args.train else known)) or (args.train and not is_tested(known)):
            continue
        started_at = time.monotonic()
        if args.train:
            known["training"] = measure_apart("three_steps", name)
        else:
            results[name] = measure_apart("measure", name)
        print(f"{name}: {json.dumps(results[name])} ({time.monotonic() - started_at:.0f} s)", flush=True)
        RESULTS.write_text(json.dumps(dict(sorted(results.items())), indent=2) + "\n")
        PAGE.write_text(fill(PAGE.read_text("utf-8"), render(results)), "utf-8")


def measure_apart(module: str, name: str) -> dict[str, Any]:
    """Measure a family by a module of this package, in a process of its own."""
    command = [sys.executable, "-m", f"tests.families.{module}", name]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=MAX_SECONDS, check=False)
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (subprocess.TimeoutExpired, IndexError, ValueError) as error:
        raise SystemExit(f"{name} gave no result: {error}") from None
    return result


if __name__ == "__main__":
    main()
