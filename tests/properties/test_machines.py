"""The pure state machines, driven through random orders of events: lease, attempt winner, node, group, staleness."""

import itertools
from typing import get_args

import hypothesis.strategies as st
from hypothesis import given
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from bus.fleet.node_state import DEAD_SECONDS, SUSPECT_SECONDS, Happening, State, seen, serves, step
from bus.lease import Lease
from learner.rollouts.assembler import Rollout
from learner.rollouts.dispatcher import admitted_groups
from learner.rollouts.groups import Groups
from schemas.base import Outcome
from schemas.spans import AttemptResult
from schemas.trajectory.attempt_selection import (
    INFRA_OUTCOMES,
    Resolution,
    resolution_of,
    select_attempt,
    supersedes,
)
from tests.making import rollout

OUTCOMES = st.sampled_from(get_args(Outcome))


class Leasing(RuleBasedStateMachine):
    """A holder that renews when it is due, a broker that waits, and a network in between that may be slow or dead."""

    ack_wait = 30.0

    @initialize()
    def delivered(self) -> None:
        self.now = self.heard = 0.0
        self.lease = Lease(self.ack_wait, 0.0)
        self.given_away = False

    @rule(seconds=st.floats(0.1, 40.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.given_away |= self.now - self.heard >= self.ack_wait

    @rule(there=st.floats(0.0, 5.0), back=st.floats(0.0, 5.0), arrives=st.booleans(), answered=st.booleans())
    def renewal_when_due(self, there: float, back: float, arrives: bool, answered: bool) -> None:
        if self.lease.due(self.now) > 0.0 or not arrives:
            return
        sent = self.now
        self.time_passes(there)
        self.heard = self.now
        self.time_passes(back)
        if answered:
            self.lease.renew(sent, self.now)

    @invariant()
    def who_believes_to_hold_it_does(self) -> None:
        if hasattr(self, "lease"):
            assert not (self.lease.held(self.now) and self.given_away)


class Grouping(RuleBasedStateMachine):
    """Attempts of one group end in any order, any number of times, while its time runs out or not."""

    samples, seconds = 3, 10.0

    @initialize()
    def begin(self) -> None:
        self.now = 0.0
        self.groups = Groups(self.seconds, lambda one: one.reward is not None)
        self.executions = itertools.count()
        self.fed: list[Rollout] = []
        self.out: list[Rollout] = []

    @rule(sample=st.integers(0, samples - 1), outcome=OUTCOMES, final=st.booleans(), again=st.booleans())
    def an_attempt_ends(self, sample: int, outcome: Outcome, final: bool, again: bool) -> None:
        resolution = resolution_of(
            AttemptResult(outcome=outcome, is_final=final, num_spans=1, started_ns=0, ended_ns=0)
        )
        reward = 1.0 if outcome == "ok" else None
        made = rollout("a", sample, reward, outcome=outcome, samples=self.samples)
        changed = {"resolution": resolution, "execution": f"e{next(self.executions)}"}
        one = Rollout(**{**{name: getattr(made, name) for name in Rollout.__slots__}, **changed})
        self.fed.append(one)
        self.groups.add(one, self.now)
        if again:
            self.groups.add(one, self.now) if one.task not in self.groups.closed else None

    @rule(seconds=st.floats(0.1, 6.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.groups.expire(self.now)

    @rule()
    def trained(self) -> None:
        for group in self.groups.take(1):
            assert sum(one.reward is not None for one in group.rollouts) >= 2, "fewer than two valid rollouts"
            self.out += group.rollouts

    @invariant()
    def nothing_is_lost_nothing_is_twice(self) -> None:
        if not hasattr(self, "groups"):
            return
        accounted = [one.execution for one in (*self.out, *self.groups.held())]
        assert len(accounted) == len(set(accounted)), "an attempt counts twice"
        assert set(accounted) == {one.execution for one in self.fed if one.resolution != Resolution.RETRIED}, (
            "an attempt is lost"
        )
        assert len({one.id for one in self.out}) == len(self.out), "a rollout is trained on twice"

    @invariant()
    def no_group_waits_longer_than_its_deadline(self) -> None:
        if hasattr(self, "groups"):
            left = self.groups.expire(self.now)
            assert left is None or 0 < left <= self.seconds + 1e-9


class Serving(RuleBasedStateMachine):
    """What happens to a node, and what others hear of it."""

    @initialize()
    def begin(self) -> None:
        self.state: State = "starting"
        self.verified = self.stopped = False
        self.silence = 0.0

    @rule(happening=st.sampled_from(get_args(Happening)))
    def happens(self, happening: Happening) -> None:
        self.state = step(self.state, happening)
        self.stopped |= happening == "stop"
        if happening == "engine_lost":
            self.verified = False
        if happening == "weights_applied" and self.state == "ready":
            self.verified = True
        self.silence = 0.0

    @rule(seconds=st.floats(0.1, 20.0))
    def falls_silent(self, seconds: float) -> None:
        self.silence += seconds

    @invariant()
    def only_verified_weights_answer(self) -> None:
        if hasattr(self, "state"):
            assert not serves(self.state) or (self.verified and not self.stopped)

    @invariant()
    def silence_is_believed_over_words(self) -> None:
        if not hasattr(self, "state"):
            return
        taken = seen(self.state, self.silence)
        assert not serves(taken) or self.silence < SUSPECT_SECONDS
        assert (taken == "dead") == (self.silence >= DEAD_SECONDS or self.state == "dead")


TestLeasing, TestGrouping, TestServing = Leasing.TestCase, Grouping.TestCase, Serving.TestCase


@given(st.lists(st.tuples(OUTCOMES, st.booleans()), max_size=8))
def test_the_winner_is_the_first_result_else_the_first_last_word(told: list[tuple[Outcome, bool]]) -> None:
    """Whoever hears the attempts one by one and whoever sorts them afterwards come to the same one."""
    ends = [
        AttemptResult(outcome=outcome, is_final=final, num_spans=1, started_ns=0, ended_ns=0) for outcome, final in told
    ]
    ranks = [(resolution_of(end), place) for place, end in enumerate(ends) if resolution_of(end) != Resolution.RETRIED]
    assert select_attempt(ends) == (min(ranks)[1] if ranks else None)
    current: int | None = None
    for place, end in enumerate(ends):
        if supersedes(resolution_of(end), resolution_of(ends[current]) if current is not None else None):
            current = place
    assert current == select_attempt(ends)
    if current is not None:
        assert ends[current].is_final
        results = [end for end in ends if resolution_of(end) == Resolution.FINAL]
        assert not results or ends[current].outcome not in INFRA_OUTCOMES, (
            "what failed by our doing never beats a result"
        )
        assert results or resolution_of(ends[current]) == Resolution.ABANDONED


@given(st.integers(1, 8), st.integers(0, 4), st.integers(1, 40))
def test_what_is_dispatched_is_trained_on_before_it_is_too_old(
    groups_per_step: int, max_staleness: int, steps: int
) -> None:
    """Groups are trained on in the order they were dispatched; each was sampled by the version current at the time."""
    sampled = [0] * admitted_groups(0, max_staleness, groups_per_step)
    for version in range(steps):
        batch, sampled = sampled[:groups_per_step], sampled[groups_per_step:]
        assert len(batch) == groups_per_step and all(version - old <= max_staleness for old in batch)
        dispatched = (version + 1) * groups_per_step + len(sampled)
        sampled += [version + 1] * (admitted_groups(version + 1, max_staleness, groups_per_step) - dispatched)
