"""The progress bar of a notebook follows the learner's heartbeats."""

import asyncio
import io
from typing import Any

import pytest
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


async def test_an_alert_is_printed_when_it_begins_and_again_after_it_was_over(
    bus: Bus, capsys: pytest.CaptureFixture[str]
) -> None:
    status: dict[str, Any] = {"step": 0, "steps": 9}
    moves = asyncio.Event()

    def describe() -> dict[str, Any]:
        return {"state": "waiting", "status": {**status}}

    async with bus.fleet("*") as fleet, bus.heartbeat("learner", "l", describe) as heartbeat:
        bar = tqdm(unit="step", file=io.StringIO())
        bar.refresh = moves.set
        async with NotebookView(fleet, "train", bar).showing(), asyncio.timeout(HANG_SECONDS):
            for alert in ("", "the last 3 groups", "the last 4 groups", "", "the last 5 groups"):
                status["alert"] = alert
                moves.clear()
                await heartbeat.send_now()
                await moves.wait()
                while next((beat.status["alert"] for beat in fleet.members() if "alert" in beat.status), "") != alert:
                    moves.clear()
                    await moves.wait()
    assert [line for line in capsys.readouterr().err.splitlines() if "ALERT" in line] == [
        "ALERT  the last 3 groups",
        "ALERT  the last 5 groups",
    ]
