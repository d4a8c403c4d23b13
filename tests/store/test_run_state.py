"""The state of a run is decided by one function, for the list of runs and for the run's page."""

from typing import Any

import pytest

from lightningbus.schemas.fleet import Heartbeat
from lightningbus.store.ui.client import StoreState
from lightningbus.store.ui.run_list import build_runs
from lightningbus.store.ui.run_state import IDLE_SECONDS, RunState, choose_state

NOW, LONG_AGO = 1.0, IDLE_SECONDS + 1
LIVE, FILES = StoreState.LIVE, StoreState.FINISHED


def learner(state: str, run_id: str = "r", model: str = "a") -> Heartbeat:
    return Heartbeat(role="learner", id="learner-1", run_id=run_id, state=state, model=model, sent_at_ns=0)


def steps(*last: int) -> list[dict[str, Any]]:
    """The last step of each model, of ten."""
    return [
        {"model": model, "step": step, "settings": {"max_steps": 10}} for model, step in zip("ab", last, strict=False)
    ]


@pytest.mark.parametrize(
    ("num_events", "seconds", "last_steps", "learners", "store", "expected"),
    [
        (0, 0.0, [], [], LIVE, RunState.MISSING),
        (0, 0.0, [], None, FILES, RunState.MISSING),
        (0, 0.0, [], [learner("starting")], LIVE, RunState.RUNNING),
        (9, LONG_AGO, steps(5), [learner("training")], LIVE, RunState.RUNNING),
        (9, NOW, [], [], LIVE, RunState.RUNNING),
        (9, NOW, steps(10), [learner("done")], LIVE, RunState.RUNNING),  # the last evaluation goes on
        (9, NOW, steps(10), [], FILES, RunState.FINISHED),
        (9, LONG_AGO, steps(10), None, LIVE, RunState.FINISHED),
        (9, LONG_AGO, [], [learner("done")], LIVE, RunState.FINISHED),
        (9, LONG_AGO, steps(5), [], LIVE, RunState.STOPPED),
        (9, NOW, steps(5), None, FILES, RunState.STOPPED),
        (9, NOW, steps(5), [learner("training")], FILES, RunState.STOPPED),
        (9, NOW, steps(10, 5), None, FILES, RunState.STOPPED),  # one of two models
        (9, LONG_AGO, steps(10, 5), [learner("done")], LIVE, RunState.STOPPED),  # that of the other is gone
        (9, LONG_AGO, steps(10, 5), [learner("done", model="b")], LIVE, RunState.FINISHED),
        (9, LONG_AGO, steps(5), None, LIVE, RunState.IDLE),  # nobody hears heartbeats
        (9, LONG_AGO, [], [], LIVE, RunState.IDLE),
        (9, NOW, [], None, FILES, RunState.ENDED),
    ],
)
def test_the_state_of_a_run(
    num_events: int,
    seconds: float,
    last_steps: list[dict[str, Any]],
    learners: list[Heartbeat] | None,
    store: StoreState,
    expected: RunState,
) -> None:
    assert choose_state(num_events, seconds, last_steps, learners, store) == expected


def test_a_run_is_listed_from_its_first_event_on_and_the_newest_event_comes_first() -> None:
    times = [
        {"run_id": name, "events": 1, "first_ms": at, "last_ms": at} for name, at in (("old", 1_000), ("new", 900_000))
    ]
    other = [learner("training", "another")]
    runs = build_runs(times, [], [], [], other, LIVE, now_ms=900_001)
    assert [(run["run_id"], run["state"]) for run in runs] == [("new", "running"), ("old", "idle")]
    assert runs[0]["sets"] == []
