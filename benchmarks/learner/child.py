"""A process for each contender, so that what one changes in verl or torch does not reach another.

It makes a step for each line that it reads.
"""

import argparse
import json
import pickle
import resource
import sys
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.learner.contenders import CONTENDERS, GROUP_CONTENDERS, find_contenders
from benchmarks.learner.workload import ROWS_FILE, SIZES


def main() -> None:
    """Write a line of JSON once ready, and one for each step: seconds, seconds of CPU, MiB at most, gradient norm."""
    parser = argparse.ArgumentParser()
    parser.add_argument("contender", choices=CONTENDERS | GROUP_CONTENDERS)
    parser.add_argument("size", choices=SIZES)
    parser.add_argument("place", type=Path)
    parser.add_argument("threads", type=int)
    options = parser.parse_args()
    out, sys.stdout = sys.stdout, sys.stderr  # verl prints
    torch.set_num_threads(options.threads)
    rows = pickle.loads((options.place / ROWS_FILE).read_bytes())
    size = SIZES[options.size]
    make: Any = find_contenders(size)[options.contender]
    contender = make(options.place, size, rows)
    print("{}", file=out, flush=True)
    for _ in sys.stdin:
        started, worked = time.perf_counter(), time.process_time()
        norm = contender.step()
        measured = {
            "seconds": time.perf_counter() - started,
            "cpu_seconds": time.process_time() - worked,
            "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "grad_norm": norm,
        }
        print(json.dumps(measured), file=out, flush=True)


if __name__ == "__main__":
    main()
