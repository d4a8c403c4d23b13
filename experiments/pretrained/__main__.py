"""``make bench-pretrained``: the demo and the examples that train a pretrained model, over seeds.

Each run is written into its example's results at once, so that a benchmark that was stopped goes on. The picture of an
example is of seed 0.
"""

import argparse
import itertools
import json
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
CONFIG = "seed.yaml"
"""Run file of one seed, beside the example's own while it runs: paths in it are relative."""


@dataclass(frozen=True, slots=True)
class Example:
    """A folder with a Makefile whose ``target`` trains by a run file, and leaves figures and a picture there."""

    name: str
    target: str
    config: str
    results: str
    picture_name: str

    @property
    def directory(self) -> Path:
        """The example's folder."""
        return ROOT / "examples" / self.name

    @property
    def figures(self) -> Path:
        """The figures of all seeds."""
        return self.directory / self.results

    @property
    def picture(self) -> Path:
        """The rewards of seed 0 over weight versions."""
        return self.directory / self.picture_name

    def train(self, seed: int) -> dict[str, Any]:
        """Train with a seed; return the figures of the run."""
        config = yaml.safe_load((self.directory / self.config).read_text())
        config["learner"]["seed"] = seed
        path = self.directory / CONFIG
        path.write_text(yaml.safe_dump(config))
        try:
            _call("make", "-C", str(self.directory), self.target, f"CONFIG={CONFIG}")
        finally:
            path.unlink()
        return dict(json.loads(self.figures.read_text()))


@dataclass(frozen=True, slots=True)
class Demo:
    """The job of ``lightningbus demo``."""

    figures: Path = ROOT / "experiments" / "results" / "demo.json"
    picture: Path = ROOT / "docs" / "reward.png"

    def train(self, seed: int) -> dict[str, Any]:
        """Train with a seed; return the figures of the run."""
        runs = ROOT / "runs" / "bench-pretrained"
        _call(sys.executable, "-m", "lightningbus", "demo", "--seed", str(seed), "--runs", str(runs))
        shutil.copy(runs / "demo" / "reward.png", self.picture)
        return dict(json.loads((runs / "demo" / "results.json").read_text()))


def _call(*command: str) -> None:
    subprocess.run(command, check=True, cwd=ROOT, stdout=sys.stderr)


_TRAIN = ("train", "small.yaml", "results.json", "reward.png")
_SMOLLM2 = ("smollm2", "smollm2.yaml", "smollm2.json", "smollm2.png")
EXAMPLES: dict[str, Demo | Example] = {
    "demo": Demo(),
    "reasoning_gym": Example("reasoning_gym", *_TRAIN),
    "math_tools": Example("math_tools", *_SMOLLM2),
    "text_to_sql": Example("text_to_sql", *_SMOLLM2),
    "retrieval_qa": Example("retrieval_qa", *_SMOLLM2),
    "textarena": Example("textarena", *_TRAIN),
    "coding_agent": Example("coding_agent", *_TRAIN),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", choices=EXAMPLES, default=[*EXAMPLES])
    parser.add_argument("--since", default="", help="make runs again that ended before this commit")
    options = parser.parse_args()
    commit = _git("rev-parse", "--short", "HEAD")
    for seed, name in itertools.product(options.seeds, options.only):
        example = EXAMPLES[name]
        known = read(example)
        if any(each["seed"] == seed and is_since(each.get("commit", ""), options.since) for each in known):
            continue
        figures = {"seed": seed, "commit": commit, **train(example, seed)}
        write(example, [*(each for each in known if each["seed"] != seed), figures])
        print(f"{name}, seed {seed}: {describe([figures])}, {figures['seconds']:.0f} s", file=sys.stderr, flush=True)
    for name in options.only:
        print(f"{name}: {describe(read(EXAMPLES[name]))}")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def is_since(commit: str, oldest: str) -> bool:
    """Return whether a run's commit is ``oldest`` or follows it; any run counts where no oldest is asked for."""
    if not oldest:
        return True
    done = subprocess.run(["git", "merge-base", "--is-ancestor", oldest, commit], cwd=ROOT, capture_output=True)
    return bool(commit) and done.returncode == 0


def train(example: Demo | Example, seed: int) -> dict[str, Any]:
    """Train an example with a seed; only seed 0 leaves its picture."""
    picture = example.picture.read_bytes() if seed and example.picture.exists() else b""
    try:
        return example.train(seed)
    finally:
        if picture:
            example.picture.write_bytes(picture)


def read(example: Demo | Example) -> list[dict[str, Any]]:
    """Read the figures of earlier runs; one that was made without this benchmark names no seed, and does not count."""
    known = json.loads(example.figures.read_text()) if example.figures.exists() else []
    return known if isinstance(known, list) else []


def write(example: Demo | Example, results: Iterable[dict[str, Any]]) -> None:
    """Write the figures of all seeds."""
    text = json.dumps(sorted(results, key=lambda each: each["seed"]), indent=1)
    example.figures.write_text(text + "\n")


def describe(results: Sequence[dict[str, Any]]) -> str:
    """Describe held-out rewards before and after training, sampled, by seed, as the README's table does."""
    return ", ".join(f"{each['sampled_before']:.2f} to {each['sampled_after']:.2f}" for each in results)


if __name__ == "__main__":
    main()
