"""What `make gpu` measured so far: a file that is written after each step, and its tables."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.results import table

COMPARED = ("gpu", "num_gpus", "versions")
"""Fields of the machine: with others a figure is no continuation of the rest."""
NO_RUN = "No run has been made yet."


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a step ended, and its figures."""

    name: str
    title: str
    seconds: float
    error: str = ""
    """Why it has not all of its figures; empty: it has."""
    results: list[dict[str, Any]] = field(default_factory=list)


class Record:
    """The outcomes of one machine."""

    def __init__(self, path: Path, machine: Mapping[str, Any]) -> None:
        """Goes on with what the file has of the same machine; what it has of another is dropped."""
        self.path, self.machine = path, dict(machine)
        fields = read(path)
        self.was_of_another_machine = bool(fields) and not is_same_machine(fields["machine"], machine)
        kept = [] if self.was_of_another_machine or not fields else fields["steps"]
        self._outcomes = {each["name"]: Outcome(**each) for each in kept}

    @property
    def completed(self) -> set[str]:
        """Names of the steps that have all their figures."""
        return {name for name, outcome in self._outcomes.items() if not outcome.error}

    def add(self, outcome: Outcome) -> None:
        """Put an outcome into the file, in place of an earlier one; the file is whole at any time."""
        self._outcomes[outcome.name] = outcome
        steps = [asdict(each) for each in self._outcomes.values()]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps({"machine": self.machine, "steps": steps}, indent=1) + "\n")
        partial.replace(self.path)


def read(path: Path) -> dict[str, Any]:
    """What was written; empty if nothing was."""
    return dict(json.loads(path.read_text())) if path.exists() else {}


def is_same_machine(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Whether figures of both can stand side by side. Pure."""
    return all(first.get(name) == second.get(name) for name in COMPARED)


def render(fields: Mapping[str, Any]) -> str:
    """The machine in one line, a table for each part, then what failed. Pure."""
    if not fields:
        return NO_RUN
    outcomes = [Outcome(**each) for each in fields["steps"]]
    parts = [describe_machine(fields["machine"])]
    for title, of_title in groupby(sorted(outcomes, key=lambda each: _first_place(outcomes, each)), lambda e: e.title):
        rows = [result for outcome in of_title for result in outcome.results]
        if rows:
            parts.append(f"**{title}**\n\n{table(rows)}")
    if failed := [f"- `{each.name}`, after {each.seconds:.0f} s: {each.error}" for each in outcomes if each.error]:
        parts.append("\n".join(["Without all of their figures:\n", *failed]))
    return "\n\n".join(parts)


def describe_machine(machine: Mapping[str, Any]) -> str:
    """A sentence of hardware and versions. Pure."""
    gpu = f"{machine['gpu']}, {machine['gpu_memory']}, driver {machine['driver']}" if machine["gpu"] else "No GPU"
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    host = f"{machine['cpu']}, {machine['num_cores']} cores, {machine['memory_gib']:.0f} GiB"
    return f"{gpu}; {host}; {versions}."


def _first_place(outcomes: list[Outcome], outcome: Outcome) -> int:
    """Where the first outcome with the same title stands."""
    return next(place for place, each in enumerate(outcomes) if each.title == outcome.title)
