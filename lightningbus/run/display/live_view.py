"""Progress of a run, from heartbeats: a live table, or a line every few seconds without a terminal."""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lightningbus.bus.fleet.heartbeat_text import describe, find_alerts, firing_alerts, has_several_models
from lightningbus.bus.fleet.heartbeats import Fleet
from lightningbus.common.aio import cancel_and_wait
from lightningbus.run.display.progress import StepProgress, format_reward, slowest_first, sparkline
from lightningbus.run.display.terminal import Terminal
from lightningbus.schemas.fleet import Heartbeat

ROLES = ("supervisor", "learner", "inference", "runner", "grader", "store", "auditor")
BAR_WIDTH = 40
NON_TTY_INTERVAL_SECONDS = 10.0
"""Seconds between two lines of progress where output is no terminal."""


def _line(beat: Heartbeat, is_named: bool) -> str:
    version = "" if beat.version is None else f" v{beat.version}"
    name = f" {beat.model}" if is_named and beat.model else ""
    return f"{beat.role}{name} {beat.state}{version} {describe(beat)}"


def members_table(members: Iterable[Heartbeat]) -> Table:
    """Build a table with one row per living process, and a column for models if there are several."""
    members = list(members)
    is_named = has_several_models(members)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("role", "id", *(["model"] if is_named else []), "state", "version", "doing"):
        table.add_column(column, no_wrap=column != "doing")
    rank = {role: index for index, role in enumerate(ROLES)}
    for beat in sorted(members, key=lambda beat: (rank.get(beat.role, 99), beat.id)):
        version = "" if beat.version is None else str(beat.version)
        model = [beat.model] if is_named else []
        table.add_row(*map(Text, (beat.role, beat.id, *model, beat.state, version, describe(beat))))
    return table


class LiveView:
    """Live table of a run; ``phase`` is the headline."""

    def __init__(self, fleet: Fleet, title: str, console: Console | None = None) -> None:
        self.phase = "starting"
        self.note = ""
        self._fleet = fleet
        self._title = title
        self._console = console or Terminal(stderr=True)
        self._started = time.monotonic()
        self._rewards: dict[str, dict[int, float]] = {}
        """Mean reward by model, then by step."""
        self._progress: dict[str, StepProgress] = {}
        """Progress of training by model."""
        self._alerts: dict[str, str] = {}
        """Alerts that fire now, as they were printed, by their causes; of a live table none."""

    @contextlib.asynccontextmanager
    async def showing(self) -> AsyncIterator["LiveView"]:
        """Draw while the block runs, or until `hide`."""
        self._drawing = asyncio.create_task(self._draw_live() if self._console.is_terminal else self._print_lines())
        try:
            yield self
        finally:
            await self.hide()

    async def hide(self) -> None:
        """Draw no more."""
        await cancel_and_wait(self._drawing)

    def set_phase(self, phase: str) -> None:
        """Change the headline; without a terminal it is printed at once."""
        self.phase = phase
        if not self._console.is_terminal:
            self._print(self._headline())

    def set_note(self, note: str) -> None:
        """Change the note beside the headline; without a terminal it is printed at once."""
        self.note = note
        if not self._console.is_terminal:
            self._print(self._headline())

    def add_rewards(self, rewards: Mapping[str, Mapping[int, float]]) -> None:
        """Add the mean rewards of steps that an earlier start made, by model, then by step."""
        for model, reward_by_step in rewards.items():
            self._rewards[model] = {**reward_by_step, **self._rewards.get(model, {})}

    def warn(self, sentence: str) -> None:
        """Print a warning, which stays above the live table."""
        self._print(f"warning: {sentence}")

    def _headline(self) -> str:
        seconds = time.monotonic() - self._started
        return f"[{int(seconds // 60)}:{int(seconds % 60):02d}] {self.phase}{'  ' + self.note if self.note else ''}"

    def _render(self) -> Group:
        self._remember()
        parts: list[RenderableType] = [Text(f"{self._title}  {self._headline()}", style="bold")]
        now = time.monotonic()
        for model, progress in slowest_first(self._progress, now):
            bar = ProgressBar(total=progress.num_steps, completed=progress.step, width=BAR_WIDTH)
            parts.append(Columns([bar, Text(self._name(model) + progress.describe(now))]))
        parts.append(members_table(self._fleet.members()))
        parts += [Text(f"ALERT  {alert}", style="bold red") for alert in firing_alerts(self._fleet.members())]
        parts += [Text(line, style="green") for line in self._describe_rewards()]
        return Group(*parts)

    def _describe_rewards(self) -> Iterator[str]:
        for model, reward_by_step in sorted(self._rewards.items()):
            values = [reward_by_step[step] for step in sorted(reward_by_step)]
            span = f"{format_reward(min(values))} to {format_reward(max(values))}, now {format_reward(values[-1])}"
            yield f"{self._name(model)}reward by step  {sparkline(values, BAR_WIDTH)}  {span}"

    def _name(self, model: str) -> str:
        """Return the beginning of a line about a learner: its model where there are several, else nothing."""
        return f"{model}: " if len(self._progress) > 1 else ""

    def _remember(self) -> None:
        for beat in self._fleet.members():
            step, num_steps, reward = (beat.status.get(key) for key in ("step", "steps", "reward"))
            if beat.role != "learner" or not isinstance(step, int) or not isinstance(num_steps, int) or not num_steps:
                continue  # no learner, or the one that publishes the first version only
            if beat.state != "starting":
                self._progress.setdefault(beat.model, StepProgress()).record(step, num_steps, time.monotonic())
            if isinstance(reward, int | float):
                self._rewards.setdefault(beat.model, {})[step] = float(reward)

    async def _draw_live(self) -> None:
        with Live(self._render(), console=self._console, refresh_per_second=2, transient=False) as live:
            while True:
                await self._fleet.wait_for_change()
                live.update(self._render())
                await asyncio.sleep(0.3)  # a second's heartbeats come in a burst: draw once for all

    async def _print_lines(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(NON_TTY_INTERVAL_SECONDS):
                    while True:
                        await self._fleet.wait_for_change()
                        self._remember()
            for line in self._lines():
                self._print(line)

    def _lines(self) -> Iterator[str]:
        """Yield the content of the live table as lines, for output that is no terminal, with changes of alerts."""
        members = self._fleet.members()
        yield from self._describe_alert_changes()
        now = time.monotonic()
        training = [self._name(model) + item.describe(now) for model, item in slowest_first(self._progress, now)]
        training += self._describe_rewards()
        is_named = has_several_models(members)
        lines = [_line(beat, is_named) for beat in members if beat.role in ("learner", "inference")]
        for line in [*training, *lines] or ["no learner and no inference node is there"]:
            yield f"{self._headline()} | {line}"

    def _describe_alert_changes(self) -> Iterator[str]:
        """Yield a line for each alert's cause when it begins, and another when it is over."""
        firing = find_alerts(self._fleet.members())
        for cause in [cause for cause in self._alerts if cause not in firing]:
            yield f"OVER   {self._alerts.pop(cause)}"
        for cause in [cause for cause in firing if cause not in self._alerts]:
            self._alerts[cause] = firing[cause]
            yield f"ALERT  {firing[cause]}"

    def _print(self, line: str) -> None:
        self._console.print(line, highlight=False, soft_wrap=True, markup=False)


def console() -> Console:
    """Return a console on standard error, where progress goes, so that output can be piped."""
    return Terminal(file=sys.stderr)
