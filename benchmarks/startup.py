"""``python -m benchmarks.startup``: how long a command takes to begin, beside what the interpreter alone takes."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.results import Result, machine, table, write

REPEATS = 20
PROGRAM = Path(sys.executable).with_name("lightningbus")
COMPLETION = {"_LIGHTNINGBUS_COMPLETE": "complete_bash", "COMP_WORDS": "lightningbus wei", "COMP_CWORD": "1"}


def seconds(command: Sequence[str], variables: Mapping[str, str]) -> float:
    """The shortest of several runs, after one that fills the caches: other programs of the machine only add to it."""
    taken = []
    for _ in range(REPEATS + 1):
        started = time.perf_counter()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True, env=os.environ | variables)
        taken.append(time.perf_counter() - started)
    return min(taken[1:])


def measure() -> list[Result]:
    """What a person waits for before anything is asked of a bus or a store."""
    interpreter = round(1e3 * seconds([sys.executable, "-c", "pass"], {}), 1)
    commands: tuple[tuple[str, Sequence[str], Mapping[str, str]], ...] = (
        ("lightningbus --help", ["--help"], {}),
        ("lightningbus report --help", ["report", "--help"], {}),
        ("lightningbus train --help", ["train", "--help"], {}),
        ("completion of a command", [], COMPLETION),
    )
    return [
        Result(
            case,
            round(1e3 * seconds([str(PROGRAM), *arguments], variables), 1),
            "ms",
            note=f"the interpreter alone {interpreter}",
        )
        for case, arguments, variables in commands
    ]


def main() -> list[Result]:
    """Measure and write."""
    results = measure()
    write("startup", results)
    print(table(result.as_json() for result in results))
    return results


if __name__ == "__main__":
    print(machine())
    main()
