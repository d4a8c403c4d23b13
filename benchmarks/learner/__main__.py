"""``make bench-learner``: tokens a second of one training step, beside verl's engine and a plain loop, turn by turn."""

import argparse
import json
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.before_after import read_at
from benchmarks.learner.contenders import find_contenders
from benchmarks.learner.workload import ROWS_FILE, SIZES, count_tokens, draw_rows, make_model, score_rows
from benchmarks.results import RESULTS, fill_page, machine

PAGE = Path(__file__).resolve().parents[1] / "README.md"
TABLES = {"standard": ("learner", "make bench-learner"), "groups": ("learner_groups", "learner groups")}
"""File of figures of each size, and the mark of its table on the page."""
WARM_UPS = 1


class Child:
    """A contender's process."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def read(self) -> dict[str, float]:
        """Its next line. Raises RuntimeError if it has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args!r} ended with {self._process.wait()}: its error is above")
        measured: dict[str, float] = json.loads(line)
        return measured

    def step(self) -> dict[str, float]:
        """What one step took."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self.read()


@contextmanager
def start(name: str, size: str, place: Path, threads: int) -> Iterator[Child]:
    """A contender that is ready; it ends when its input does."""
    command = [sys.executable, "-m", "benchmarks.learner.child", name, size, str(place), str(threads)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        child = Child(process)
        child.read()
        yield child
        assert process.stdin is not None
        process.stdin.close()


def measure(size: str, rounds: int, threads: int, model: Path | None = None) -> list[dict[str, Any]]:
    """One row for each contender, with what each round took; all of them take turns, on a model or a small one."""
    rows = draw_rows(SIZES[size])
    names = find_contenders(SIZES[size])
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        place = Path(directory)
        if model is None:
            make_model(SIZES[size], place)
        else:
            for file in model.iterdir():
                (place / file.name).symlink_to(file.resolve())
        (place / ROWS_FILE).write_bytes(pickle.dumps(score_rows(rows, place)))
        children = {name: stack.enter_context(start(name, size, place, threads)) for name in names}
        steps: dict[str, list[dict[str, float]]] = {name: [] for name in names}
        for number in range(WARM_UPS + rounds):
            for name, child in children.items():
                measured = child.step()
                print(
                    f"round {number}: {name}: {measured['seconds']:.2f} s, {measured['cpu_seconds']:.2f} of CPU time",
                    flush=True,
                )
                if number >= WARM_UPS:
                    steps[name].append(measured)
    return [
        {
            "contender": name,
            "tokens": count_tokens(rows),
            "threads": threads,
            "seconds": [round(step["seconds"], 4) for step in measured],
            "cpu_seconds": [round(step["cpu_seconds"], 4) for step in measured],
            "grad_norm": round(measured[0]["grad_norm"], 5),
            "peak_mib": round(max(step["peak_mib"] for step in measured), 1),
        }
        for name, measured in steps.items()
    ]


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown; ratios are medians over the rounds."""
    if not rows:
        return "No run has been made yet."
    first = rows[0]
    lines = [
        f"| contender | tokens/s | of CPU time | MiB at most | {first['contender']} is … times as fast | by CPU time |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        speeds = [row["tokens"] / median(row[kind]) for kind in ("seconds", "cpu_seconds")]
        ratios = [median_ratio(row[kind], first[kind]) for kind in ("seconds", "cpu_seconds")]
        compared = ["", ""] if row is first else [f"{ratio:.2f}" for ratio in ratios]
        cells = [row["contender"], *(f"{speed:,.0f}" for speed in speeds), f"{row['peak_mib']:,.0f}", *compared]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def median_ratio(seconds: Sequence[float], others: Sequence[float]) -> float:
    """The median over rounds of what one took by what another took in the same round."""
    return median(took / other for took, other in zip(seconds, others, strict=True))


def fill(page: str, size: str, rows: Sequence[dict[str, Any]]) -> str:
    """The page with the table of a size between its marks."""
    _, mark = TABLES[size]
    return fill_page(page, f"<!-- {mark}: begin -->", table(rows), f"<!-- {mark}: end -->")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--size", choices=SIZES, default="standard", help="small: a try, which is not written")
    parser.add_argument("--model", type=Path, help="folder of a model in place of the small one")
    options = parser.parse_args()
    print(machine())
    rows = measure(options.size, options.rounds, options.threads, options.model)
    print(table(rows))
    if options.size in TABLES:
        name, _ = TABLES[options.size]
        if before := read_at("HEAD", RESULTS / f"{name}.json"):
            print(f"as of the last commit:\n{table(before)}")
        (RESULTS / f"{name}.json").write_text(json.dumps(rows, indent=1) + "\n")
        PAGE.write_text(fill(PAGE.read_text(), options.size, rows))


if __name__ == "__main__":
    main()
