"""Pacing of dispatch, in simulated runs: groups of any duration, nodes that swap late, training that takes its time."""

from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis import example, given

from lightningbus.learner.dispatch.pacing import (
    DispatchedGroup,
    Pace,
    find_awaited,
    num_admitted_groups,
    oldest_first,
    order_by_deadline,
)
from lightningbus.learner.rollouts.groups import RolloutGroup, in_dispatch_order

MAX_TICKS = 100_000


@dataclass
class Run:
    """A run in ticks; a group is sampled by the version that is served when it is dispatched."""

    durations: list[int]
    max_staleness: int
    groups_per_step: int
    slots: int
    training_ticks: int
    swap_ticks: int
    max_steps: int
    max_wait_ticks: int | None = None
    version: int = 0
    groups: dict[str, DispatchedGroup] = field(default_factory=dict)
    ends_at: dict[str, int] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)
    trained: dict[str, int] = field(default_factory=dict)
    """Staleness of each group when it was trained."""
    late: set[str] = field(default_factory=set)
    num_dispatched: int = 0
    versions: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    """When each version is served."""

    def run(self) -> int:
        """Run to the last step; returns the ticks it took."""
        in_training: list[str] = []
        ready_at, waits_since = 0, 0
        for now in range(MAX_TICKS):
            self.closed |= {task for task, end in self.ends_at.items() if end <= now and task in self.groups}
            if in_training and now >= ready_at:
                self._commit(in_training, now)
                in_training = []
                if self.version == self.max_steps:
                    return now
            batch = self._ready(now)[: self.groups_per_step]
            if not in_training and len(batch) == self.groups_per_step:
                awaited = find_awaited(batch, self.groups, self.closed, self._pace(now))
                waits_since = waits_since if awaited else now
                if awaited and self.max_wait_ticks is not None and now - waits_since >= self.max_wait_ticks:
                    self._give_up(awaited)
                    awaited = []
                if not awaited:
                    in_training, ready_at = batch, now + self.training_ticks
            self._dispatch(now)
        raise AssertionError(f"the run stands still at step {self.version}")

    def _pace(self, now: int) -> Pace:
        served = max(version for served_at, version in self.versions if served_at <= now)
        return Pace(self.version, served, self.max_staleness, self.groups_per_step)

    def _ready(self, now: int) -> list[str]:
        ended = sorted((task for task in self.groups if task in self.closed), key=lambda task: self.ends_at[task])
        ready = [RolloutGroup(task, 2, 0.0) for task in ended]
        return [group.task_id for group in order_by_deadline(ready, self.groups, self._pace(now))]

    def _commit(self, tasks: list[str], now: int) -> None:
        for task in tasks:
            version = self.groups.pop(task).served_version
            assert version is not None and task not in self.trained
            self.trained[task] = self.version - version
        self.version += 1
        self.versions.append((now + self.swap_ticks, self.version))

    def _give_up(self, tasks: list[str]) -> None:
        for task in tasks:
            self.groups[task].is_late = True
        self.late |= set(tasks)

    def _dispatch(self, now: int) -> None:
        pace = self._pace(now)
        while len(self.groups) < num_admitted_groups(pace) and len(self.groups.keys() - self.closed) < self.slots:
            task = str(self.num_dispatched)
            self.groups[task] = DispatchedGroup(number=self.num_dispatched, served_version=pace.served)
            self.ends_at[task] = now + self.durations[self.num_dispatched % len(self.durations)]
            self.num_dispatched += 1


RUNS = st.builds(
    Run,
    durations=st.lists(st.one_of(st.integers(1, 5), st.integers(1, 60)), min_size=1, max_size=30),
    max_staleness=st.integers(0, 5),
    groups_per_step=st.integers(1, 6),
    slots=st.integers(1, 40),
    training_ticks=st.integers(1, 8),
    swap_ticks=st.integers(0, 8),
    max_steps=st.integers(1, 12),
)


@given(RUNS)
def test_every_group_is_within_the_bound_when_it_is_trained(run: Run) -> None:
    run.run()
    assert max(run.trained.values()) <= run.max_staleness


@given(RUNS)
def test_no_more_groups_are_left_at_the_end_than_the_bound_admits(run: Run) -> None:
    """Quick and slow ones alike: what was dispatched is trained, but for what is under way at the last step."""
    run.run()
    assert len(run.trained) == run.max_steps * run.groups_per_step
    assert len(run.groups) <= (run.max_staleness + 1) * run.groups_per_step


@example(Run([1, 14, 1, 6], 2, 1, 3, 4, 0, 9), 0)
@given(RUNS, st.integers(0, 5))
def test_with_a_limit_to_waiting_only_the_groups_given_up_on_are_late(run: Run, max_wait_ticks: int) -> None:
    run.max_wait_ticks = max_wait_ticks
    run.run()
    assert all(staleness <= run.max_staleness for task, staleness in run.trained.items() if task not in run.late)


def long_tail(max_staleness: int) -> Run:
    """One group in four is ten times slower."""
    return Run([2, 2, 2, 20] * 5, max_staleness, 4, 16, 2, 1, 20)


def test_a_looser_bound_lets_quick_groups_go_ahead_of_slow_ones() -> None:
    ticks = [long_tail(bound).run() for bound in (0, 1, 2, 4)]
    assert ticks == sorted(ticks, reverse=True) and ticks[0] > 2.5 * ticks[3], ticks


def test_groups_in_dispatch_order_wait_for_the_ones_before_them() -> None:
    first, two, three = (RolloutGroup(name, 2, 0.0) for name in "abc")
    ready = [three, first]
    assert in_dispatch_order(ready, ["a", "b", "c"], {"a", "c"}) == [first]
    assert in_dispatch_order([three, two, first], ["a", "b", "c"], {"a", "b", "c"}) == [first, two, three]
    assert in_dispatch_order(ready, ["a", "x", "c"], {"a", "x", "c"}) == [first, three], "x came to nothing"


def test_the_oldest_ready_group_is_first_and_foreign_ones_before_all() -> None:
    """Nobody knows when the tasks of others were dispatched: they go in the order in which they became ready."""
    ready = [RolloutGroup(name, 2, 0.0) for name in ("c", "x", "a", "y")]
    assert [group.task_id for group in oldest_first(ready, ["a", "b", "c"])] == ["x", "y", "a", "c"]
