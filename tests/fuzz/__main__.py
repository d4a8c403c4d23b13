"""``python -m tests.fuzz``: feeds every decoder, says how fast, and keeps what it could not take in ``runs/fuzz``."""

import argparse
import hashlib
import re
import resource
import sys
from pathlib import Path

from tests.fuzz.engine import Outcome, fuzz
from tests.fuzz.targets import all_targets

MOST_MEMORY = 4 * 2**30
"""Of data: an input that asks for more ends in a MemoryError, which no decoder documents."""
KEPT = Path("runs/fuzz")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="of all decoders together")
    parser.add_argument("--seed", type=int, default=20261122)
    parser.add_argument("--only", default="", help="decoders whose names hold this")
    args = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY, MOST_MEMORY))
    targets = [target for target in all_targets() if args.only in target.name]
    share = args.inputs / sum(target.weight for target in targets)
    done: list[Outcome] = []
    print(f"{'decoder':32} {'inputs':>9} {'taken':>6} {'per s':>8} {'slowest':>9} {'memory':>8}")
    for target in targets:
        outcome = fuzz(target, -int(-share * target.weight // 1), args.seed)
        done.append(outcome)
        taken = f"{100 * outcome.decoded / outcome.inputs:.0f} %"
        figures = f"{outcome.rate:8,.0f} {outcome.slowest * 1000:6.1f} ms {outcome.grown / 2**20:+5.0f} MiB"
        print(f"{outcome.target:32} {outcome.inputs:9,} {taken:>6} {figures}", flush=True)
        for fault in outcome.faults:
            KEPT.mkdir(parents=True, exist_ok=True)
            kept = KEPT / f"{re.sub('[^A-Za-z]+', '-', fault.target)}-{hashlib.sha256(fault.data).hexdigest()[:12]}"
            kept.write_bytes(fault.data)
            print(f"  {fault.why}\n  {kept}", flush=True)
    inputs, seconds = sum(entry.inputs for entry in done), sum(entry.seconds for entry in done)
    faults = sum(len(item.faults) for item in done)
    print(f"{inputs:,} inputs in {seconds:,.0f} s, {inputs / seconds:,.0f} per second: {faults} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
