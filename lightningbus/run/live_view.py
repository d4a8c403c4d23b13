"""What is going on, from the heartbeats: a live table, or a line every few seconds where there is no terminal."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from bus.fleet.heartbeats import Fleet
from common.aio import cancel_and_wait
from lightningbus.run.terminal import Terminal
from schemas.fleet import Heartbeat

ROLES = ("supervisor", "learner", "inference", "runner", "store", "auditor")
NON_TTY_INTERVAL_SECONDS = 10.0
"""How often a line is printed where there is no terminal to draw on."""
BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Iterable[float], width: int = 40) -> str:
    """Values from 0 to 1 as a line of small bars, the last ``width`` of them."""
    return "".join(BARS[min(int(max(value, 0.0) * len(BARS)), len(BARS) - 1)] for value in list(values)[-width:])


def describe(beat: Heartbeat) -> str:
    """What a member says of itself, in a few words."""
    parts = [
        f"{key.replace('_', ' ')} {_short(value)}"
        for key, value in beat.status.items()
        if value not in (None, "") and key != "alert"
    ]
    return ", ".join(parts)


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _line(beat: Heartbeat) -> str:
    version = "" if beat.version is None else f" v{beat.version}"
    return f" | {beat.role} {beat.state}{version} {describe(beat)}"


def members_table(members: Iterable[Heartbeat]) -> Table:
    """One row per living process."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("role", "id", "state", "version", "doing"):
        table.add_column(column, no_wrap=column != "doing")
    rank = {role: index for index, role in enumerate(ROLES)}
    for beat in sorted(members, key=lambda beat: (rank.get(beat.role, 99), beat.id)):
        version = "" if beat.version is None else str(beat.version)
        table.add_row(*map(Text, (beat.role, beat.id, beat.state, version, describe(beat))))
    return table


def firing_alerts(members: Iterable[Heartbeat]) -> list[str]:
    """What the watchdogs have found and is not over."""
    return [str(beat.status["alert"]) for beat in members if beat.status.get("alert")]


class LiveView:
    """Live picture of a run; ``phase`` is the headline."""

    def __init__(self, fleet: Fleet, title: str, console: Console | None = None) -> None:
        self.phase = "starting"
        self.note = ""
        self._fleet = fleet
        self._title = title
        self._console = console or Terminal(stderr=True)
        self._started = time.monotonic()
        self._rewards: dict[int, float] = {}

    @asynccontextmanager
    async def showing(self) -> AsyncIterator["LiveView"]:
        """Draw while the block runs."""
        drawing = asyncio.create_task(self._draw_live() if self._console.is_terminal else self._print_lines())
        try:
            yield self
        finally:
            await cancel_and_wait(drawing)

    def set_phase(self, phase: str) -> None:
        """Change the headline; without a terminal it is printed at once."""
        self.phase = phase
        if not self._console.is_terminal:
            self._console.print(self._headline(), highlight=False, soft_wrap=True)

    def _headline(self) -> str:
        seconds = time.monotonic() - self._started
        return f"[{int(seconds // 60)}:{int(seconds % 60):02d}] {self.phase}{'  ' + self.note if self.note else ''}"

    def _render(self) -> Group:
        self._remember()
        parts: list[Text | Table] = [Text(f"{self._title}  {self._headline()}", style="bold")]
        parts.append(members_table(self._fleet.members()))
        parts += [Text(f"ALERT  {alert}", style="bold red") for alert in firing_alerts(self._fleet.members())]
        if self._rewards:
            line = sparkline(self._rewards[step] for step in sorted(self._rewards))
            parts.append(Text(f"reward by step  {line}  {self._rewards[max(self._rewards)]:.2f}", style="green"))
        return Group(*parts)

    def _remember(self) -> None:
        for beat in self._fleet.members():
            step, reward = beat.status.get("step"), beat.status.get("reward")
            if beat.role == "learner" and isinstance(step, int) and isinstance(reward, int | float):
                self._rewards[step] = float(reward)

    async def _draw_live(self) -> None:
        with Live(self._render(), console=self._console, refresh_per_second=2, transient=False) as live:
            while True:
                await self._fleet.wait_for_change()
                live.update(self._render())
                await asyncio.sleep(0.3)  # a second's heartbeats come in a burst: draw once for all

    async def _print_lines(self) -> None:
        while True:
            await asyncio.sleep(NON_TTY_INTERVAL_SECONDS)
            self._remember()
            for alert in firing_alerts(self._fleet.members()):
                self._console.print(f"ALERT  {alert}", highlight=False, soft_wrap=True, markup=False)
            lines = [_line(beat) for beat in self._fleet.members() if beat.role in ("learner", "inference")]
            for line in lines or [""]:
                self._console.print(self._headline() + line, highlight=False, soft_wrap=True, markup=False)


def console() -> Console:
    """Where progress goes: standard error, so that output can be piped."""
    return Terminal(file=sys.stderr)
