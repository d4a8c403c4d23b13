"""``make history``: judge the histories of small systems under the faults of seeds, seen from outside alone.

Exits with 1 if a history has a breach of a guarantee.
"""

import argparse
import asyncio
import json
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.history.judge import judge
from tests.history.plan import draw
from tests.history.play import make_model, play


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="*", default=list(range(20)))
    parser.add_argument("--keep", type=Path, help="directory for logs and data; default: a temporary one")
    args = parser.parse_args()
    num_bad = 0
    with tempfile.TemporaryDirectory(prefix="history-") as directory:
        place = args.keep or Path(directory)
        place.mkdir(parents=True, exist_ok=True)
        model = make_model(place)
        for seed in args.seeds:
            plan, started = draw(seed), time.monotonic()
            history = asyncio.run(play(plan, model, place / f"seed-{seed}"))
            findings = judge(history)
            num_bad += bool(findings)
            done = Counter(f"{fault.action} {fault.target}".strip() for fault in plan.faults)
            print(f"seed {seed}: {plan.settings}; {', '.join(f'{num} x {name}' for name, num in done.items())}")
            print(f"  {time.monotonic() - started:.0f} s, {json.dumps(history.counts())}: {len(findings)} findings")
            for finding in findings:
                print(f"  {finding}", flush=True)
    print(f"{len(args.seeds) - num_bad} of {len(args.seeds)} histories are as promised", flush=True)
    raise SystemExit(bool(num_bad))


if __name__ == "__main__":
    main()
