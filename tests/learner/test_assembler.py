"""Assembly and grouping: the same result in any order, with duplicates, with several attempts."""

from dataclasses import replace

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from lightningbus.learner.rollouts.assembler import Assembler, Rollout, choose_reward, training_reward
from lightningbus.learner.rollouts.groups import GroupBuffer
from tests.factories import batches, rollout


def valid(item: Rollout) -> bool:
    return item.reward is not None


@given(st.permutations(range(6)), st.lists(st.integers(0, 4), max_size=4))
def test_any_order_and_any_duplicate_give_the_same_rollout(order: list[int], again: list[int]) -> None:
    parts = batches("a", 0, parts=6)
    assembler = Assembler()
    places = [*(order[place] for place in again), *order]  # any but the one that makes it whole, any number of times
    built = [assembler.add(parts[place], number) for number, place in enumerate(places, start=1)]
    (finished,) = [item for item in built if item is not None]
    assert [call.index for call in finished.calls] == list(range(6))
    assert finished.first_sequence == 1
    assert assembler.oldest_pending_sequence() is None


def test_rewards_by_name_are_those_that_training_can_use_in_the_order_of_names() -> None:
    first, last = batches("a", 0)
    assert last.end is not None
    last = msgspec.structs.replace(
        last, end=msgspec.structs.replace(last.end, rewards={"correct": 1.0, "brief": 0.5, "odd": float("nan")})
    )
    assembler = Assembler()
    assembler.add(first, 1)
    whole = assembler.add(last, 2)
    assert whole is not None and list(whole.named_rewards.items()) == [("brief", 0.5), ("correct", 1.0)]


def test_attempts_of_one_rollout_are_never_mixed() -> None:
    assembler = Assembler()
    first, second = batches("a", 0, reward=0.0, attempt=1), batches("a", 0, reward=1.0, attempt=2)
    assert assembler.add(first[0], 1) is None
    assert assembler.add(second[0], 2) is None
    for part, expected in ((second[1], (2, 1.0)), (first[1], (1, 0.0))):
        whole = assembler.add(part, 3)
        assert whole is not None and (whole.attempt, whole.reward) == expected


def test_the_first_result_is_the_rollout_and_whatever_else_ends_is_late() -> None:
    groups = GroupBuffer(10.0, valid)
    given_up = rollout("a", 0, None, outcome="infra_error", samples=2)
    first, second = (
        replace(rollout("a", 0, reward, samples=2), attempt=number, execution_id=f"e{number}")
        for number, reward in ((2, 1.0), (3, 0.0))
    )
    for item in (given_up, given_up, first, second):
        groups.add(item, 0.0)
    assert [late_attempt.attempt for late_attempt in groups.late_attempts] == [1, 3]
    groups.add(rollout("a", 1, 0.5, samples=2), 0.0)
    assert [entry.attempt for entry in groups.pop_ready(1)[0].rollouts] == [2, 1]


def test_an_attempt_that_is_tried_again_says_nothing_of_its_rollout() -> None:
    assembler, groups = Assembler(), GroupBuffer(10.0, valid)
    for number, part in enumerate(batches("a", 0, outcome="infra_error", final=False), start=1):
        if (ended := assembler.add(part, number)) is not None:
            groups.add(ended, 0.0)
    assert (groups.waiting, groups.late_attempts, assembler.oldest_pending_sequence()) == (0, [], None)


def test_an_unfinished_rollout_holds_the_replay_position() -> None:
    assembler = Assembler()
    assembler.add(batches("a", 0)[0], 7)
    assert assembler.oldest_pending_sequence() == 7


def test_a_group_is_ready_when_every_sample_has_ended() -> None:
    groups = GroupBuffer(10.0, valid)
    for sample in range(4):
        assert groups.pop_ready(1) == []
        groups.add(rollout("a", sample, 1.0), 0.0)
    (group,) = groups.pop_ready(1)
    assert [item.sample_index for item in group.rollouts] == [0, 1, 2, 3]
    assert list(groups.pending_rollouts()) == []


def test_a_group_whose_last_rollouts_do_not_come_is_trained_on_without_them() -> None:
    groups = GroupBuffer(10.0, valid)
    groups.add(rollout("a", 0, 1.0), 100.0)
    groups.add(rollout("a", 1, 0.0), 105.0)  # the next one has ten seconds from here
    assert groups.expire(114.0) == 1.0
    assert groups.pop_ready(1) == []
    assert groups.expire(115.0) is None
    assert len(groups.pop_ready(1)[0].rollouts) == 2
    assert groups.missing_samples == [("a", 2), ("a", 3)]
    groups.add(rollout("a", 2, 1.0), 116.0)
    assert [late_attempt.sample_index for late_attempt in groups.late_attempts] == [2]


def test_a_group_of_fewer_than_two_valid_rollouts_is_put_aside() -> None:
    groups = GroupBuffer(10.0, valid)
    groups.add(rollout("a", 0, 1.0, samples=2), 0.0)
    groups.add(rollout("a", 1, None, outcome="infra_error", samples=2), 0.0)
    assert groups.ready == []
    assert len(groups.rejected) == 1


def test_an_infrastructure_failure_is_never_a_reward() -> None:
    for outcome in ("infra_error", "poison", "preempted"):
        assert training_reward(rollout("a", 0, 0.0, outcome=outcome), "zero") is None
    assert training_reward(rollout("a", 0, None, outcome="agent_error"), "zero") == 0.0
    assert training_reward(rollout("a", 0, None, outcome="timeout"), "mask") is None


def test_a_named_reward_trains_the_policy_that_asks_for_it() -> None:
    assert choose_reward(1.0, {"checker": 0.25}, "") == 1.0
    assert choose_reward(1.0, {"checker": 0.25}, "checker") == 0.25
    assert choose_reward(1.0, {"checker": 0.25}, "writer") is None
    assert choose_reward(None, {"checker": float("nan")}, "checker") is None
