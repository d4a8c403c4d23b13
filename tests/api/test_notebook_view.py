"""The progress bar of a notebook follows the learner's heartbeats."""

import asyncio
import io

from tqdm import tqdm

from lightningbus.bus.client import Bus
from lightningbus.run.display.live_view import LiveView
from lightningbus.run.display.notebook_view import NotebookView, choose_view
from tests.polling import HANG_SECONDS


async def test_the_bar_follows_the_learner(bus: Bus) -> None:
    text = io.StringIO()
    bar = tqdm(unit="step", file=text)
    status = {"step": 3, "steps": 9, "reward": 0.25}
    async with bus.fleet("*") as fleet, bus.heartbeat("learner", "l", lambda: {"state": "waiting", "status": status}):
        view = NotebookView(fleet, "train", bar)
        async with view.showing(), asyncio.timeout(HANG_SECONDS):
            view.set_phase("training")
            while bar.n != 3:
                await fleet.wait_for_change()
            view.set_note("greedy: 0.50")
        assert (bar.n, bar.total, bar.disable) == (3, 9, True), "it is closed where it stopped"
        assert isinstance(choose_view(fleet, "train"), LiveView)
        assert not isinstance(choose_view(fleet, "train"), NotebookView), "this process is no notebook"
    assert "training: " in text.getvalue() and "3/9" in text.getvalue()
    assert "reward 0.25, greedy: 0.50" in text.getvalue()
