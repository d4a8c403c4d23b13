"""The pure state machines, with events in random order: lease, attempt selection, node, group."""

import itertools
from typing import get_args

import hypothesis.strategies as st
from hypothesis import given
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from lightningbus.bus.fleet.node_state import (
    DEAD_SECONDS,
    SUSPECT_SECONDS,
    NodeEvent,
    State,
    is_ready,
    next_state,
    observed_state,
)
from lightningbus.bus.lease import Lease
from lightningbus.learner.rollouts.assembler import Rollout
from lightningbus.learner.rollouts.groups import GroupBuffer
from lightningbus.schemas.base import Outcome
from lightningbus.schemas.spans import AttemptResult
from lightningbus.schemas.trajectory.attempt_selection import (
    INFRA_OUTCOMES,
    Resolution,
    resolution_of,
    select_attempt,
    supersedes,
)
from tests.factories import rollout

OUTCOMES = st.sampled_from(get_args(Outcome))


class Leasing(RuleBasedStateMachine):
    """A holder that renews its lease in time, a broker that waits, and a network that may be slow or broken."""

    ack_wait = 30.0

    @initialize()
    def delivered(self) -> None:
        self.now = self.last_renewal = 0.0
        self.lease = Lease(self.ack_wait, 0.0)
        self.redelivered = False

    @rule(seconds=st.floats(0.1, 40.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.redelivered |= self.now - self.last_renewal >= self.ack_wait

    @rule(
        request_seconds=st.floats(0.0, 5.0),
        reply_seconds=st.floats(0.0, 5.0),
        arrives=st.booleans(),
        replied=st.booleans(),
    )
    def renewal_when_due(self, request_seconds: float, reply_seconds: float, arrives: bool, replied: bool) -> None:
        if self.lease.seconds_until_renewal(self.now) > 0.0 or not arrives:
            return
        sent = self.now
        self.time_passes(request_seconds)
        self.last_renewal = self.now
        self.time_passes(reply_seconds)
        if replied:
            self.lease.renew(sent, self.now)

    @invariant()
    def a_held_lease_is_not_redelivered(self) -> None:
        if hasattr(self, "lease"):
            assert not (self.lease.is_held(self.now) and self.redelivered)


class Grouping(RuleBasedStateMachine):
    """Attempts of one group end in any order, any number of times, before or after its timeout."""

    samples, seconds = 3, 10.0

    @initialize()
    def begin(self) -> None:
        self.now = 0.0
        self.groups = GroupBuffer(self.seconds, lambda rollout: rollout.reward is not None)
        self.executions = itertools.count()
        self.added: list[Rollout] = []
        self.taken: list[Rollout] = []

    @rule(sample=st.integers(0, samples - 1), outcome=OUTCOMES, final=st.booleans(), twice=st.booleans())
    def an_attempt_ends(self, sample: int, outcome: Outcome, final: bool, twice: bool) -> None:
        resolution = resolution_of(
            AttemptResult(outcome=outcome, is_final=final, num_spans=1, started_ns=0, ended_ns=0)
        )
        reward = 1.0 if outcome == "ok" else None
        base = rollout("a", sample, reward, outcome=outcome, samples=self.samples)
        changed = {"resolution": resolution, "execution_id": f"e{next(self.executions)}"}
        attempt = Rollout(**{**{name: getattr(base, name) for name in Rollout.__slots__}, **changed})
        self.added.append(attempt)
        self.groups.add(attempt, self.now)
        if twice:
            self.groups.add(attempt, self.now) if attempt.task_id not in self.groups.closed else None

    @rule(seconds=st.floats(0.1, 6.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.groups.expire(self.now)

    @rule()
    def trained(self) -> None:
        for group in self.groups.pop_ready(1):
            assert sum(rollout.reward is not None for rollout in group.rollouts) >= 2, "fewer than two valid rollouts"
            self.taken += group.rollouts

    @invariant()
    def nothing_is_lost_nothing_is_twice(self) -> None:
        if not hasattr(self, "groups"):
            return
        accounted = [rollout.execution_id for rollout in (*self.taken, *self.groups.pending_rollouts())]
        assert len(accounted) == len(set(accounted)), "an attempt counts twice"
        assert set(accounted) == {
            rollout.execution_id for rollout in self.added if rollout.resolution != Resolution.RETRIED
        }, "an attempt is lost"
        assert len({rollout.id for rollout in self.taken}) == len(self.taken), "a rollout is trained on twice"

    @invariant()
    def no_group_waits_longer_than_its_deadline(self) -> None:
        if hasattr(self, "groups"):
            left = self.groups.expire(self.now)
            assert left is None or 0 < left <= self.seconds + 1e-9


class Serving(RuleBasedStateMachine):
    """The states of a node, and what other processes see of it."""

    @initialize()
    def begin(self) -> None:
        self.state: State = "starting"
        self.verified = self.stopped = False
        self.silence = 0.0

    @rule(event=st.sampled_from(get_args(NodeEvent)))
    def happens(self, event: NodeEvent) -> None:
        self.state = next_state(self.state, event)
        self.stopped |= event == "stop"
        if event == "engine_exited":
            self.verified = False
        if event == "weights_applied" and self.state == "ready":
            self.verified = True
        self.silence = 0.0

    @rule(seconds=st.floats(0.1, 20.0))
    def falls_silent(self, seconds: float) -> None:
        self.silence += seconds

    @invariant()
    def only_verified_weights_answer(self) -> None:
        if hasattr(self, "state"):
            assert not is_ready(self.state) or (self.verified and not self.stopped)

    @invariant()
    def a_silent_node_is_not_believed(self) -> None:
        if not hasattr(self, "state"):
            return
        seen_state = observed_state(self.state, self.silence)
        assert not is_ready(seen_state) or self.silence < SUSPECT_SECONDS
        assert (seen_state == "dead") == (self.silence >= DEAD_SECONDS or self.state == "dead")


TestLeasing, TestGrouping, TestServing = Leasing.TestCase, Grouping.TestCase, Serving.TestCase


@given(st.lists(st.tuples(OUTCOMES, st.booleans()), max_size=8))
def test_the_selected_attempt_is_the_first_final_one_else_the_first_abandoned_one(
    outcomes: list[tuple[Outcome, bool]],
) -> None:
    """Selecting one by one and selecting from all of them give the same attempt."""
    ends = [
        AttemptResult(outcome=outcome, is_final=final, num_spans=1, started_ns=0, ended_ns=0)
        for outcome, final in outcomes
    ]
    ranks = [(resolution_of(end), index) for index, end in enumerate(ends) if resolution_of(end) != Resolution.RETRIED]
    assert select_attempt(ends) == (min(ranks)[1] if ranks else None)
    current: int | None = None
    for index, end in enumerate(ends):
        if supersedes(resolution_of(end), resolution_of(ends[current]) if current is not None else None):
            current = index
    assert current == select_attempt(ends)
    if current is not None:
        assert ends[current].is_final
        results = [end for end in ends if resolution_of(end) == Resolution.FINAL]
        assert not results or ends[current].outcome not in INFRA_OUTCOMES, (
            "an infrastructure failure never beats a result"
        )
        assert results or resolution_of(ends[current]) == Resolution.ABANDONED
