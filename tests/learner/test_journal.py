"""The journal of a learner: what survives the end of its process, and steps that are made again from it."""

from pathlib import Path

import hypothesis.strategies as st
from hypothesis import given

from lightningbus.learner.checkpointing.journal import EpochClaim, Journal, StepRecord, TrainedGroup
from lightningbus.learner.checkpointing.step_replay import StepReplay, describe_step
from lightningbus.learner.dispatch.pacing import DispatchedGroup
from lightningbus.learner.rollouts.groups import GroupBuffer
from tests.factories import rollout


def reopened(path: Path) -> Journal:
    journal = Journal(path)
    journal.load()
    return journal


def test_what_was_written_since_a_checkpoint_is_read_back_and_what_it_covers_is_forgotten(tmp_path: Path) -> None:
    journal = reopened(tmp_path)
    first = journal.add_mark()
    journal.append(EpochClaim(1))
    done, ahead = StepRecord(1, []), StepRecord(2, [TrainedGroup("a", ["a.0-1"], DispatchedGroup(number=0))])
    journal.append(done)
    second = journal.add_mark([ahead])
    journal.record_group(DispatchedGroup(number=1), 2)
    assert reopened(tmp_path).since(first) == journal.since(first) and done in journal.since(first)
    journal.trim(second)
    journal.append(EpochClaim(2))
    again = reopened(tmp_path)
    assert again.since(first) == () or again.since(first) == []
    assert again.since(second) == journal.since(second) and [ahead, EpochClaim(2)] == [
        record for record in again.since(second) if isinstance(record, StepRecord | EpochClaim)
    ]


@given(st.integers(0, 10_000))
def test_a_record_that_a_crash_cut_off_costs_nothing_before_it(size: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        journal = Journal(Path(directory))
        mark = journal.add_mark()
        for epoch in range(20):
            journal.append(EpochClaim(epoch))
        path = next(Path(directory).iterdir())
        content = path.read_bytes()[:size]
        path.write_bytes(content)
        num_whole = max(0, content.count(b"\n") - 1)
        again = reopened(Path(directory))
        assert [*again.since(mark)] == [EpochClaim(epoch) for epoch in range(num_whole)]
        again.append(EpochClaim(99))
        whole = reopened(Path(directory))
        assert whole._records == again._records


def test_a_group_that_was_trained_without_some_rollouts_is_closed_with_the_same_ones_again() -> None:
    """One sample had not ended then; by now it has, and comes later in the stream."""
    members = [rollout("a", sample, float(sample)) for sample in range(4)]
    before = GroupBuffer(60.0, lambda rollout: True)
    for member in members[:3]:
        before.add(member, 0.0)
    before.expire(60.0)
    recorded = describe_step(3, before.ready, lambda task: None)
    replay, groups = StepReplay([recorded]), GroupBuffer(60.0, lambda rollout: True)
    groups.members_at_close = replay.find_members()
    for member in members[:2]:
        groups.add(member, 0.0)
    assert not replay.is_ready(groups) and replay.take(groups) == []
    for member in members[2:]:
        groups.add(member, 0.0)
    assert replay.is_ready(groups)
    (taken,) = replay.take(groups)
    assert taken.rollouts == members[:3] and groups.late_attempts == [members[3]]
    assert not replay.complete(4) and replay.complete(3) and not replay


def test_steps_made_again_have_their_groups_in_the_order_of_the_batch() -> None:
    groups = GroupBuffer(60.0, lambda rollout: True)
    for task in ("a", "b", "c"):
        for sample in range(2):
            groups.add(rollout(task, sample, 1.0, samples=2), 0.0)
    trained = [TrainedGroup(task, [f"{task}.0-1", f"{task}.1-1"]) for task in ("c", "a")]
    replay = StepReplay([StepRecord(1, trained)])
    assert [group.task_id for group in replay.take(groups)] == ["c", "a"]
    assert [group.task_id for group in groups.ready] == ["b"]
