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
    assert [line for line in capsys.readouterr().err.splitlines() if "the last" in line] == [
        "ALERT  the last 3 groups",
        "OVER   the last 3 groups",
        "ALERT  the last 5 groups",
    ]


async def test_an_alert_is_printed_once_for_its_cause_whatever_else_it_says(
    bus: Bus, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sentence of a learner that makes no step has the learner's status, in which much changes."""
    stuck = [
        "no training step for 95 s: the learner is waiting, step 3, reward 0.5",
        "no training step for 97 s: the learner is waiting, step 3, reward 0.5, groups 2/8; no task is left",
        "no training step for 99 s: the learner is training, step 3, reward 1e-05, staleness 1",
    ]
    gone = {"runner::no_runner": "no runner is there"}
    alerts_in_turn = [
        {"learner::no_step": stuck[0]},
        {"learner::no_step": stuck[1]},
        {"learner::no_step": stuck[2]} | gone,
        gone,
    ]
    status: dict[str, Any] = {}
    moves = asyncio.Event()
    async with (
        bus.fleet("*") as fleet,
        bus.heartbeat("store", "s", lambda: {"state": "inserting", "status": {**status}}) as heartbeat,
    ):
        bar = tqdm(unit="step", file=io.StringIO())
        bar.refresh = moves.set
        async with NotebookView(fleet, "train", bar).showing(), asyncio.timeout(HANG_SECONDS):
            for alerts in alerts_in_turn:
                status |= {"alert": "; ".join(alerts.values()), "alerts": alerts}
                moves.clear()
                await heartbeat.send_now()
                await moves.wait()
                while not any(beat.status.get("alerts") == alerts for beat in fleet.members()):
                    moves.clear()
                    await moves.wait()
    assert capsys.readouterr().err.splitlines() == [
        f"ALERT  {stuck[0]}", "ALERT  no runner is there", f"OVER   {stuck[0]}",
    ]  # fmt: skip
