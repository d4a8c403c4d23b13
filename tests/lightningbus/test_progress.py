"""Progress in the terminal: speed, time left, rewards of any scale, and heartbeats in words."""

import io
import time
from collections.abc import Iterable
from itertools import accumulate

import pytest

from lightningbus.bus.fleet.heartbeat_text import describe
from lightningbus.run.display.live_view import LiveView
from lightningbus.run.display.progress import StepProgress, format_duration, format_reward, sparkline
from lightningbus.run.display.terminal import Terminal
from lightningbus.schemas.fleet import Heartbeat

CALCULATOR_SECONDS = (
    *(6, 4, 4, 3, 5, 4, 3, 5, 4, 4, 4, 4, 3, 4, 3, 4, 3, 3),
    *(4, 3, 5, 4, 4, 6, 3, 5, 4, 5, 4, 3, 4, 5, 3, 5, 4, 2),
)
"""Between the ends of the 36 steps of the demo on two cores; the first is from the start of the learner."""


@pytest.mark.parametrize("slowdown", [1.0, 40.0], ids=["as recorded", "minutes a step"])
def test_the_time_left_is_right_within_a_fifth_from_step_five_on(slowdown: float) -> None:
    ends = [slowdown * end for end in accumulate(CALCULATOR_SECONDS)]
    progress = StepProgress()
    progress.record(0, len(ends), 0.0)
    assert progress.seconds_left(0.0) is None
    for step, end in enumerate(ends, 1):
        seen_at = end + 1  # a heartbeat comes each second
        progress.record(step, len(ends), seen_at)
        if step >= 5:
            one_step = ends[-1] / len(ends)  # nobody can know the last steps better
            left = progress.seconds_left(seen_at)
            assert left == pytest.approx(max(ends[-1] - seen_at, 0.0), rel=0.2, abs=one_step), step
    assert progress.seconds_left(ends[-1] + 1) == 0.0


def test_speed_and_time_left_are_of_this_start_and_not_of_steps_that_were_undone() -> None:
    progress = StepProgress()
    for step, now in ((10, 0.0), (11, 100.0), (12, 110.0), (13, 120.0)):
        progress.record(step, 20, now)
    assert (progress.steps_per_hour, progress.seconds_left(120.0)) == (360.0, 70.0)
    assert progress.describe(125.0) == "step 13 of 20, 360 steps/h, 1 min 05 s left"
    progress.record(11, 20, 200.0)
    assert progress.describe(201.0) == "step 11 of 20"


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ([], ""),
        ([0.0, 0.5, 1.0], "▁▅█"),
        ([-1200.0, -300.0, 0.0], "▁▆█"),
        ([5e6, 6e6], "▁█"),
        ([2.0, 2.0], "▅▅"),
        ([9.0] * 3 + [0.0, 1.0], "▁█"),
    ],
)
def test_rewards_of_any_scale_are_drawn_between_their_smallest_and_largest(values: list[float], line: str) -> None:
    assert sparkline(values, width=2 if len(values) == 5 else 40) == line


def test_numbers_and_durations_are_short() -> None:
    assert [format_reward(value) for value in (0.12345, -1234567.0, 12.5)] == ["0.123", "-1,234,567", "12.5"]
    assert [format_duration(seconds) for seconds in (5.4, 65.0, 7500.0)] == ["5 s", "1 min 05 s", "2 h 05 min"]


def test_a_heartbeat_is_in_words() -> None:
    status = {
        "inflight": 2,
        "engine_id": "e1",
        "problem": "",
        "versions": [3, 4],
        "broadcast": {"engine": "e1", "ranks": 1, "backends": ["gloo"]},
        "needs_full_weights": True,
        "reach": {"engine": 1.23456, "node": [1]},
    }
    text = describe(Heartbeat(role="inference", id="n", state="ready", status=status, sent_at_ns=1))
    assert text == (
        "calls in flight 2, versions 3 and 4, broadcast by gloo, needs a whole version, reach engine 1.23 node 1"
    )
    learner = {"step": 3, "steps": 9, "reward": 0.25}
    assert describe(Heartbeat(role="learner", id="l", state="waiting", status=learner, sent_at_ns=1)) == (
        "step 3 of 9, reward 0.25"
    )


class Members:
    """A fleet whose members are given."""

    def __init__(self, members: Iterable[Heartbeat]) -> None:
        self._members = list(members)

    def members(self) -> list[Heartbeat]:
        """See `lightningbus.bus.fleet.heartbeats.Fleet`."""
        return self._members


@pytest.mark.parametrize("is_terminal", [True, False])
def test_each_of_several_learners_has_a_line_and_the_slowest_is_first(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    console = Terminal(file=io.StringIO(), force_terminal=is_terminal, width=160)
    fleet = Members([])
    view = LiveView(fleet, "train", console)  # type: ignore[arg-type]
    for look in range(6):
        now += 60.0
        fleet._members = [
            Heartbeat(
                role="learner", id=model, model=model, state="waiting", version=step, sent_at_ns=1,
                status={"step": step, "steps": 8, "reward": reward},
            )
            for model, step, reward in (("writer", look, 0.5), ("checker", look // 2, 0.25))
        ]  # fmt: skip
        view._remember()
    if is_terminal:
        console.print(view._render())
    else:
        for line in view._lines():
            view._print(line)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert text.index("checker: step 2 of 8") < text.index("writer: step 5 of 8")
    assert "checker: reward by step" in text and "writer: reward by step" in text
    assert ("model" in text) if is_terminal else ("learner checker waiting v2" in text)


def test_rewards_go_on_from_the_steps_of_an_earlier_start() -> None:
    status = {"step": 4, "steps": 9, "reward": 1.0}
    fleet = Members([Heartbeat(role="learner", id="l", model="policy", state="waiting", status=status, sent_at_ns=1)])
    view = LiveView(fleet, "train", Terminal(file=io.StringIO(), width=160))  # type: ignore[arg-type]
    view._remember()
    view.add_rewards({"policy": {1: 0.0, 2: 0.5, 4: 0.75}})
    assert list(view._describe_rewards()) == ["reward by step  ▁▅█  0 to 1, now 1"], "the heartbeat of a step is newer"


def test_plain_lines_have_an_alert_once_when_it_begins_and_once_when_it_is_over() -> None:
    fleet = Members([])
    view = LiveView(fleet, "train", Terminal(file=io.StringIO(), force_terminal=False, width=160))  # type: ignore[arg-type]
    lines = []
    for alert in ("the last 3 groups", "the last 4 groups", "no rollout ended", "no rollout ended", ""):
        fleet._members = [Heartbeat(role="learner", id="l", state="waiting", sent_at_ns=1, status={"alert": alert})]
        lines.append([line for line in view._lines() if "the last" in line or "no rollout" in line])
    assert lines == [
        ["ALERT  the last 3 groups"],
        [],
        ["OVER   the last 3 groups", "ALERT  no rollout ended"],
        [],
        ["OVER   no rollout ended"],
    ]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_terminal_and_plain_lines_show_the_same(is_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    console = Terminal(file=io.StringIO(), force_terminal=is_terminal, width=160)
    members: list[Heartbeat] = []
    fleet = Members(members)
    view = LiveView(fleet, "train", console)  # type: ignore[arg-type]
    for step in range(4):
        now += 60.0
        status = {"step": step, "steps": 9, "reward": -100.0 + 10 * step}
        fleet._members = [Heartbeat(role="learner", id="l", state="waiting", version=step, status=status, sent_at_ns=1)]
        view._remember()
    fleet._members[:1] = [
        Heartbeat(role="learner", id="l", state="done", version=3, status=fleet._members[0].status, sent_at_ns=1)
    ]
    if is_terminal:
        console.print(view._render())
    else:
        for line in view._lines():
            view._print(line)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for words in ("step 3 of 9, 60 steps/h, 6 min 00 s left", "▁▃▆█", "-100 to -70, now -70", "done"):
        assert words in text
    assert "{" not in text and "suspect" not in text
    assert ("━" in text) == is_terminal, "a bar"


def test_a_learner_that_publishes_the_first_version_only_has_no_step() -> None:
    status = {"step": 0, "steps": 0, "lag": 1}
    assert describe(Heartbeat(role="learner", id="l", state="done", status=status, sent_at_ns=1)) == "lag 1"
