"""``make bench-pretrained``: the examples that train a pretrained model, over seeds of the learner.

Each run is written into its example's results at once, so that a benchmark that was stopped goes on. The picture of an
example is of seed 0.
"""

import argparse
import itertools
import json
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
    """An example's folder, the target of its Makefile, and the files of its run, of its figures and of its curve."""

    name: str
    target: str
    config: str
    results: str
    picture: str

    @property
    def directory(self) -> Path:
        """The example's folder."""
        return ROOT / "examples" / self.name


def _train(name: str) -> Example:
    return Example(name, "train", "small.yaml", "results.json", "reward.png")


def _smollm2(name: str) -> Example:
    return Example(name, "smollm2", "smollm2.yaml", "smollm2.json", "smollm2.png")


EXAMPLES = {
    each.name: each
    for each in (
        _train("reasoning_gym"),
        _smollm2("math_tools"),
        _smollm2("text_to_sql"),
        _smollm2("retrieval_qa"),
        _train("textarena"),
        _train("coding_agent"),
    )
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


def train(example: Example, seed: int) -> dict[str, Any]:
    """Train an example with a seed by its own Makefile; return the figures of the run."""
    picture = example.directory / example.picture
    earlier = picture.read_bytes() if picture.exists() else b""
    config = yaml.safe_load((example.directory / example.config).read_text())
    config["learner"]["seed"] = seed
    path = example.directory / CONFIG
    path.write_text(yaml.safe_dump(config))
    try:
        command = ["make", "-C", str(example.directory), example.target, f"CONFIG={CONFIG}"]
        subprocess.run(command, check=True, stdout=sys.stderr)
        return dict(json.loads((example.directory / example.results).read_text()))
    finally:
        path.unlink()
        if seed and earlier:
            picture.write_bytes(earlier)


def read(example: Example) -> list[dict[str, Any]]:
    """Read the figures of earlier runs; one that was made without this benchmark names no seed, and does not count."""
    path = example.directory / example.results
    known = json.loads(path.read_text()) if path.exists() else []
    return known if isinstance(known, list) else []


def write(example: Example, results: Iterable[dict[str, Any]]) -> None:
    """Write the figures of all seeds."""
    text = json.dumps(sorted(results, key=lambda each: each["seed"]), indent=1)
    (example.directory / example.results).write_text(text + "\n")


def describe(results: Sequence[dict[str, Any]]) -> str:
    """Describe held-out rewards before and after training, sampled, by seed, as the README's table does."""
    return ", ".join(f"{each['sampled_before']:.2f} to {each['sampled_after']:.2f}" for each in results)


if __name__ == "__main__":
    main()
