"""Time of a workspace: made, run in, its diff read, graded and thrown away; process and bubblewrap side by side.

``python -m benchmarks.rollouts.workspaces [--files 10000] [--rounds 10]`` prints a table of medians in milliseconds.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lightningbus.runners.agent.factory import sandbox_paths
from lightningbus.runners.agent.launcher import AgentLauncher
from lightningbus.runners.agent.limits import ResourceLimits
from lightningbus.runners.agent.process import ProcessWatchdog
from lightningbus.runners.workspaces.files.changes import make_diff
from lightningbus.runners.workspaces.files.copies import CopyMethod, choose_method
from lightningbus.runners.workspaces.grading import run_program
from lightningbus.runners.workspaces.local import BubblewrapProvider, ProcessProvider
from lightningbus.runners.workspaces.specification import WorkspaceSpec

FILE_BYTES = 2000
FILES_A_DIRECTORY = 50
PARTS = ("make", "run", "diff", "remove")
CHANGE = ["/bin/sh", "-c", "echo changed > 0/0"]


def make_repository(directory: Path, num_files: int) -> None:
    """Write a tree of small files."""
    for number in range(num_files):
        place = directory / str(number // FILES_A_DIRECTORY)
        place.mkdir(parents=True, exist_ok=True)
        (place / str(number % FILES_A_DIRECTORY)).write_text(f"{number}\n" * (FILE_BYTES // 5))


async def measure(folder: Path, provider: ProcessProvider, rounds: int) -> dict[str, float]:
    """Median milliseconds of each part."""
    times: dict[str, list[float]] = {part: [] for part in PARTS}

    @contextmanager
    def timed(part: str) -> Iterator[None]:
        started_at = time.perf_counter()
        yield
        times[part].append(1000 * (time.perf_counter() - started_at))

    launcher = AgentLauncher(
        folder, {"PATH": "/usr/bin:/bin"}, dict, ResourceLimits(), [], sandbox_paths(Path(sys.executable)),
        ProcessWatchdog(),
    )  # fmt: skip
    for number in range(rounds):
        with timed("make"):
            name = f"{type(provider).__name__}-{provider.method}-{number}"
            workspace = await provider.create(folder / name, folder / "base", WorkspaceSpec())
        with timed("run"):
            ended = await run_program(workspace, launcher, CHANGE, 60, "a program")
        assert ended.status == 0, ended.describe()
        with timed("diff"):
            changes = await workspace.copy_out()
            make_diff(workspace.folder, changes)
        assert [change.path for change in changes] == ["0/0"]
        with timed("remove"):
            await workspace.destroy()
    return {part: statistics.median(values) for part, values in times.items()}


def main() -> None:
    """Measure what this machine can do, and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        make_repository(folder / "base", arguments.files)
        best = choose_method(folder)
        methods: list[CopyMethod] = [best, "copy"] if best != "copy" else ["copy"]
        print(f"{arguments.files} files, median of {arguments.rounds}, ms")
        print("| provider | copy | make | run a program | diff | remove |\n|---|---|---|---|---|---|")
        for kind in (ProcessProvider, BubblewrapProvider):
            for method in methods:
                medians = asyncio.run(measure(folder, kind(method), arguments.rounds))
                name = kind.__name__.removesuffix("Provider").lower()
                print(f"| {name} | {method} | {' | '.join(f'{medians[part]:.0f}' for part in PARTS)} |")


if __name__ == "__main__":
    main()
