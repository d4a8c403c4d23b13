"""Where a learner begins: with which version, under which epoch, or with a sentence."""

from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from msgspec.structs import replace

from lightningbus.learner.checkpointing.checkpoint import CheckpointError, Checkpoints, LearnerState
from lightningbus.learner.checkpointing.journal import (
    CheckpointMark,
    EpochClaim,
    GroupRecord,
    JournalRecord,
    StepRecord,
    TrainedGroup,
)
from lightningbus.learner.checkpointing.resume import Resumption, count_given_up, resume, skip_versions
from lightningbus.learner.dispatch.pacing import DispatchedGroup
from lightningbus.learner.errors import LearnerError
from lightningbus.learner.rollouts.stream_position import StreamMark
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.schemas.weights.events import Blob, WeightManifest
from tests.factories import group as group_of
from tests.factories import rollout
from tests.learner.conftest import builder_for

SETTINGS = LearnerSettings(model_path=Path("model"))


def state(**changes: Any) -> LearnerState:
    return LearnerState(**{"run_id": "run", "model": "policy", "step": 5, "version": 5, "epoch": 2, **changes})


def on_the_bus(version: int, epoch: int) -> WeightManifest:
    blob = Blob(bucket="weights", name="b", size=1, sha256="0" * 64)
    return WeightManifest(
        run_id="run", model="policy", version=version, blobs=(blob,), epoch=epoch, step=version, created_at_ns=1
    )


def step(version: int, *numbers: int) -> StepRecord:
    """The record of a step that trained these groups."""
    return StepRecord(version, [TrainedGroup(f"t{number}", [f"t{number}.0-1"], group(number)) for number in numbers])


def group(number: int, served: int | None = 5, replacement: int = 0) -> DispatchedGroup:
    return DispatchedGroup(number=number, served_version=served, is_published=True, replacement=replacement)


def test_a_first_start_is_version_0_of_epoch_1() -> None:
    assert resume(None, None, SETTINGS) == Resumption(LearnerState(run_id="run", model="policy"))


def test_steps_are_made_again_by_the_settings_of_the_first_time() -> None:
    """Other settings would lead to other weights, under the numbers of versions that nodes have."""
    before = SETTINGS.step_fields
    checkpoint = Path("c"), state(step_fields=before)
    records = [step(6, 0), step(7, 1)]
    same = resume(checkpoint, on_the_bus(6, 2), SETTINGS, records)
    assert ([each.version for each in same.steps], same.state.version, same.step_fields) == ([6, 7], 5, None)
    changed = SETTINGS.model_copy(update={"overlong": "split"})
    other = resume(checkpoint, on_the_bus(6, 2), changed, records)
    assert ([each.version for each in other.steps], other.state.version) == ([6, 7], 5)
    assert other.step_fields == other.state.step_fields == before != changed.step_fields
    assert changed.with_step_fields(before) == SETTINGS
    without_steps = resume(checkpoint, on_the_bus(5, 2), changed)
    assert (without_steps.step_fields, without_steps.state.step_fields) == (None, changed.step_fields)
    more_steps = SETTINGS.model_copy(update={"max_steps": 99, "checkpoint_interval": 7})
    assert resume(checkpoint, on_the_bus(6, 2), more_steps, records).step_fields is None


def test_the_tasks_published_since_the_checkpoint_are_part_of_what_the_bus_must_have(tmp_path: Path) -> None:
    before = state(stream_mark=StreamMark(tasks="monday", last_task=40), outstanding=[replace(group(0), last_task=900)])
    records = [GroupRecord(replace(group(number), last_task=number)) for number in (47, 45)]
    resumed = resume((tmp_path, before), on_the_bus(5, 2), SETTINGS, records).state
    assert resumed.stream_mark == StreamMark(tasks="monday", last_task=47), "older groups may be of before a loss"


@pytest.mark.parametrize(
    ("version", "epoch", "records", "expected"),
    [
        (5, 2, [], (5, 3, [])),
        (4, 1, [], (5, 3, [])),
        (6, 2, [step(6, 0)], (5, 3, [6])),
        (7, 2, [step(6, 0), step(7, 1), step(8, 2)], (5, 3, [6, 7, 8])),
        (5, 2, [step(6, 0)], (5, 3, [6])),
        (7, 3, [step(6, 0), step(7, 1), EpochClaim(3)], (5, 4, [6, 7])),
        (7, 2, [CheckpointMark("a"), step(6, 0), step(7, 1), CheckpointMark("b"), step(7, 1)], (5, 3, [6, 7])),
        (7, 2, [], (9, 3, [])),
        (7, 2, [step(7, 0)], (9, 3, [])),
        (7, 2, [step(6, 0)], (9, 3, [])),
        (7, 6, [step(6, 0), step(7, 1)], (9, 7, [])),
    ],
    ids=[
        "as it was", "not published yet", "a step after", "steps after, the last not published", "none published",
        "stopped again amid them", "a checkpoint was not finished", "no record", "a record is missing",
        "the last is not recorded", "another learner was there",
    ],
)  # fmt: skip
def test_a_restart_makes_the_steps_since_its_checkpoint_again_and_gives_no_number_to_other_weights(
    version: int, epoch: int, records: list[JournalRecord], expected: tuple[int, int, list[int]]
) -> None:
    begun = resume((Path("c"), state()), on_the_bus(version, epoch), SETTINGS, records)
    steps = [record.version for record in begun.steps]
    assert (begun.state.version, begun.state.epoch, steps) == expected and begun.state.step == 5


@given(st.integers(0, 50), st.integers(1, 50), st.integers(0, 100))
def test_where_steps_are_lost_the_difference_of_versions_is_never_less_than_the_updates_between(
    kept: int, num_lost: int, sampled: int
) -> None:
    """Back from the lost version to the one they have in common, and on to the one that is trained."""
    newest = kept + num_lost
    sampled = min(sampled, newest)
    assert skip_versions(kept, newest) - sampled >= abs(sampled - kept) and skip_versions(kept, newest) > newest
    assert count_given_up(kept, skip_versions(kept, newest)) == num_lost


def test_tokens_of_versions_that_another_learner_made_are_within_the_bound_or_left_out() -> None:
    behind = resume((Path("c"), state()), on_the_bus(20, 7), SETTINGS).state
    assert behind.oldest_version == behind.version == 35
    assert resume((Path("c"), behind), on_the_bus(35, 8), SETTINGS).state.oldest_version == 35, "as long as it trains"
    builder = builder_for(SETTINGS.model_copy(update={"max_staleness": 1}))
    foreign = group_of("a", *(rollout("a", sample, float(sample), version=20) for sample in range(2)))
    late = group_of("b", *(rollout("b", sample, float(sample), version=36) for sample in range(2)))
    builder.bound_from(behind.oldest_version)
    reasons = [use.exclusion_reason for use in builder.build([foreign, late], 40).dispositions]
    assert reasons == ["stale", "stale", "", ""], "a late group of its own weights is trained, corrected"


def test_groups_dispatched_since_the_checkpoint_are_outstanding_but_those_of_steps_made_again() -> None:
    before = state(outstanding=[group(2), group(3)], groups_dispatched=4, groups_by_others=1)
    records: list[JournalRecord] = [
        GroupRecord(replace(group(4, 6), is_published=False)),
        step(6, 3),
        GroupRecord(group(4, 6)),
        GroupRecord(group(2, None, replacement=1)),
        GroupRecord(group(5, 7), 3),
    ]
    begun = resume((Path("c"), before), on_the_bus(6, 2), SETTINGS, records)
    assert begun.state.outstanding == [group(2), group(4, 6), group(2, None, replacement=1), group(5, 7)]
    assert (begun.state.groups_dispatched, begun.state.groups_by_others) == (6, 3)
    lost = resume((Path("c"), before), on_the_bus(7, 9), SETTINGS, records)
    assert lost.steps == [] and group(3) in lost.state.outstanding, "it is trained as any other"


def test_what_does_not_belong_together_is_refused() -> None:
    with pytest.raises(LearnerError, match="has version 3 on this bus, but runs/checkpoints holds no checkpoint"):
        resume(None, on_the_bus(3, 1), SETTINGS)
    with pytest.raises(LearnerError, match="is of run 'other'"):
        resume((Path("c"), state(run_id="other")), None, SETTINGS)


def test_a_checkpoint_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    """A learner killed at any moment of writing leaves the one before; one directory belongs to one learner."""
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 2):
        path = checkpoints.create_temp(step)
        (path / "weights.safetensors").write_bytes(b"%d" % step)
        if step == 1:
            checkpoints.commit(path, state(step=1))
    latest = checkpoints.latest()
    assert latest is not None and latest[1].step == 1 and (latest[0] / "weights.safetensors").read_bytes() == b"1"
    with checkpoints.locked(), pytest.raises(CheckpointError, match="another learner is using"), checkpoints.locked():
        pass
