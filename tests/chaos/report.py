"""The one table: fault, times, lost, duplicated, recovery."""

import os
import platform
from collections.abc import Collection
from dataclasses import dataclass, field
from statistics import quantiles
from typing import Any

from benchmarks.results import fill_page
from tests.chaos.faults import Log
from tests.chaos.oracle import Verdict

COUNTED = ("rollouts", "attempts", "spans", "model calls")


@dataclass
class Report:
    """What all scenarios found."""

    seed: int
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    logs: dict[str, Log] = field(default_factory=dict)
    memory: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    """By scenario and process: resident MiB when work began, most, and at the end."""

    def add(self, scenario: str, log: Log, verdict: Verdict, memory: dict[str, list[float]] | None = None) -> None:
        """One scenario is over."""
        self.logs[scenario], self.verdicts[scenario] = log, verdict
        if memory:
            self.memory[scenario] = memory

    @property
    def good(self) -> bool:
        """Whether all was as promised."""
        return bool(self.verdicts) and all(self.verdicts.values())

    def rows(self) -> list[dict[str, Any]]:
        """One per kind of fault; what was lost or doubled counts for every fault of its scenario."""
        lines = []
        for scenario, log in self.logs.items():
            verdict = self.verdicts[scenario]
            for fault, seconds in sorted(log.recoveries.items()):
                cut = quantiles(seconds, n=20, method="inclusive") if len(seconds) > 1 else [seconds[0]] * 19
                lines.append(
                    {
                        "scenario": scenario,
                        "fault": fault,
                        "injected": len(seconds),
                        "lost": len(verdict.lost),
                        "duplicated": len(verdict.duplicated),
                        "recovery_p50_s": round(cut[9], 2),
                        "recovery_p95_s": round(cut[18], 2),
                    }
                )
        return lines

    def table(self) -> str:
        """For a terminal."""
        heads = ("scenario", "fault", "injected", "lost", "duplicated", "recovery_p50_s", "recovery_p95_s")
        lines = [heads, *(tuple(str(row[head]) for head in heads) for row in self.rows())]
        widths = [max(len(line[place]) for line in lines) for place in range(len(heads))]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines
        )

    def as_dict(self, command: str) -> dict[str, Any]:
        """For a file, by scenario."""
        rows = self.rows()
        return {
            name: {
                "command": command,
                "machine": f"{platform.machine()}, {platform.system()}, {os.cpu_count()} cores",
                "good": bool(verdict),
                "faults": [row for row in rows if row["scenario"] == name],
                "counts": verdict.counts,
                "wrong": [*verdict.lost, *verdict.duplicated, *verdict.wrong],
                "memory_mib_begin_most_end": self.memory.get(name, {}),
            }
            for name, verdict in self.verdicts.items()
        }


BEGIN, END = "<!-- make chaos: begin -->", "<!-- make chaos: end -->"


def markdown(actual: dict[str, Any], scenarios: Collection[str]) -> str:
    """The table of a result file, as `docs/guarantees.md` shows it: one row per fault, in the order of ``scenarios``.

    ``scenarios`` that have no result yet are named.
    """
    counts = {name: sum(item["counts"].get(name, 0) for item in actual.values()) for name in COUNTED}
    totals = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    commands = ", ".join(sorted({f"`{item['command']}`" for item in actual.values()}))
    lines = [
        f"{commands} on two cores: {totals}.",
        "",
        "| fault | times | lost | doubled | recovery p50 / p95, s |",
        "|---|---|---|---|---|",
    ]
    for row in (row for name in scenarios if name in actual for row in actual[name]["faults"]):
        recovery = f"{row['recovery_p50_s']:.1f} / {row['recovery_p95_s']:.1f}"
        lines.append(f"| {row['fault']} | {row['injected']} | {row['lost']} | {row['duplicated']} | {recovery} |")
    if unmeasured := [name for name in scenarios if name not in actual]:
        lines += ["", f"Not measured yet: {', '.join(f'`{name}`' for name in unmeasured)}."]
    return "\n".join(lines)


def filled(page: str, table: str) -> str:
    """The page with the table between its marks."""
    return fill_page(page, BEGIN, table, END)
