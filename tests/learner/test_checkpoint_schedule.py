"""How often checkpoints are written: as often as their cost allows, and not less than a restart may repeat."""

import math

from hypothesis import given
from hypothesis import strategies as st

from lightningbus.learner.checkpointing.checkpoint_schedule import CheckpointSchedule

SECONDS = st.floats(0.01, 1000.0)


@given(steps=st.lists(SECONDS, min_size=1, max_size=200), cost=SECONDS, overhead=st.floats(0.01, 0.9), limit=SECONDS)
def test_overhead_and_repeated_training_stay_below_their_bounds(
    steps: list[float], cost: float, overhead: float, limit: float
) -> None:
    schedule = CheckpointSchedule(1, None, overhead, limit)
    assert schedule.is_due(1, is_writing=False), "what it takes is not known yet"
    schedule.begin_checkpoint(cost / 4)
    schedule.end_checkpoint(cost * 3 / 4)
    since, longest = 0.0, max(steps)
    for step, seconds in enumerate(steps, 2):
        schedule.add_step(seconds)
        since += seconds
        is_due = schedule.is_due(step, is_writing=False)
        if is_due:
            share = cost / (since + cost)
            assert share <= overhead + 1e-9 or since >= limit
            schedule.begin_checkpoint(cost)
            since = 0.0
        assert since <= limit or math.isclose(since, limit)
        assert since <= cost * (1 - overhead) / overhead + longest, "not later than the overhead asks for"


def test_a_checkpoint_under_way_or_a_step_without_a_version_is_not_followed_by_another() -> None:
    schedule = CheckpointSchedule(2, None, 0.05, 1800.0)
    assert not schedule.is_due(2, is_writing=True)
    assert not schedule.is_due(3, is_writing=False)
    assert schedule.is_due(4, is_writing=False)


def test_a_fixed_interval_counts_steps_alone() -> None:
    schedule = CheckpointSchedule(1, 3, 0.05, 1.0, cost_seconds=1e6, training_seconds=1e6)
    assert [step for step in range(1, 8) if schedule.is_due(step, is_writing=True)] == [3, 6]
