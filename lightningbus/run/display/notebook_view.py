"""Progress of a run in a notebook: a bar of the training steps, with phase and reward beside it."""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator
from importlib.util import find_spec
from typing import Any

from lightningbus.bus.fleet.heartbeats import Fleet
from lightningbus.run.display.live_view import LiveView, console
from lightningbus.run.display.progress import StepProgress, format_reward, slowest_first


class NotebookView(LiveView):
    """Progress bar by tqdm: a widget where ipywidgets is installed, a line of text elsewhere."""

    def __init__(self, fleet: Fleet, title: str, bar: Any) -> None:
        super().__init__(fleet, title, console())
        self._bar = bar
        self._bar.set_description_str(self.phase)

    @contextlib.asynccontextmanager
    async def showing(self) -> AsyncIterator["LiveView"]:
        """Move the bar while the block runs, or until `hide`."""
        self._drawing = asyncio.create_task(self._move_bar())
        try:
            yield self
        finally:
            await self.hide()

    async def hide(self) -> None:
        """Move the bar no more."""
        await super().hide()
        self._bar.close()

    def set_phase(self, phase: str) -> None:
        """Change the text before the bar."""
        self.phase = phase
        self._bar.set_description_str(phase)

    def set_note(self, note: str) -> None:
        """Change the text behind the bar."""
        self.note = note
        self._show_note()

    async def _move_bar(self) -> None:
        while True:
            await self._fleet.wait_for_change()
            self._remember()
            ((_, progress),) = slowest_first(self._progress, time.monotonic())[:1] or [("", StepProgress())]
            if progress.num_steps and progress.num_steps != self._bar.total:
                self._bar.reset(total=progress.num_steps)  # the widget takes its end from this alone
            for line in self._describe_alert_changes():
                self._print(line)
            if progress.step != self._bar.n:
                self._bar.n = progress.step
                self._show_note()
            self._bar.refresh()

    def _show_note(self) -> None:
        rewards = [
            f"{self._name(model)}reward {format_reward(reward_by_step[max(reward_by_step)])}"
            for model, reward_by_step in sorted(self._rewards.items())
        ]
        self._bar.set_postfix_str(", ".join(filter(None, (*rewards, self.note))))


def choose_view(fleet: Fleet, title: str) -> LiveView:
    """Return a progress bar in a notebook that has tqdm, else the live table or its lines."""
    if not is_notebook() or find_spec("tqdm") is None:
        return LiveView(fleet, title, console())
    from tqdm.auto import tqdm

    return NotebookView(
        fleet, title, tqdm(unit="step", bar_format="{desc}: {n_fmt}/{total_fmt} {bar} {elapsed}{postfix}")
    )


def is_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"
