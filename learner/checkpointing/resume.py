"""Start of a learner: from nothing, or from the newest checkpoint, its journal and the bus. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from lightningbus.learner.checkpointing.checkpoint import LearnerState
from lightningbus.learner.checkpointing.journal import EpochClaim, GroupRecord, JournalRecord, StepRecord
from lightningbus.learner.dispatch.pacing import DispatchedGroup
from lightningbus.learner.errors import LearnerError
from lightningbus.learner.selection.difficulty import TaskResults
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.schemas.weights.events import WeightManifest


@dataclass(frozen=True, slots=True)
class Resumption:
    """The state to begin with, and the steps that are made again before any other: those since the checkpoint."""

    state: LearnerState
    steps: Sequence[StepRecord] = ()
    step_fields: Mapping[str, Any] | None = None
    """Settings by which those steps were made, where they differ from the present ones: others make other weights."""


def resume(
    checkpoint: tuple[Path, LearnerState] | None,
    last: WeightManifest | None,
    settings: LearnerSettings,
    records: Iterable[JournalRecord] = (),
) -> Resumption:
    """Choose the start, under an epoch of its own; ``last`` is the newest version on the bus.

    ``records`` are those of the journal since the checkpoint. Raises `LearnerError` when the parts do not belong
    together.
    """
    if checkpoint is None:
        if last is not None:
            raise LearnerError(
                f"model {settings.model!r} has version {last.version} on this bus, but {settings.checkpoint_dir} "
                "holds no checkpoint to go on from: give the right checkpoints, or another model name"
            )
        return Resumption(LearnerState(run_id=settings.run, model=settings.model))
    path, state = checkpoint
    if (state.run_id, state.model) != (settings.run, settings.model):
        raise LearnerError(
            f"checkpoints: {path} is of run {state.run_id!r}, model {state.model!r}, "
            f"not of run {settings.run!r}, model {settings.model!r}"
        )
    records = list(records)
    steps = _steps_since(state, records)
    known_epoch = max([state.epoch, *(record.epoch for record in records if isinstance(record, EpochClaim))])
    version, oldest_version = state.version, state.oldest_version
    if last is not None and last.version > version:
        reached = steps[-1].version if steps else version
        if last.version > reached or last.epoch > known_epoch:
            version, steps = skip_versions(version, max(last.version, reached)), []
            oldest_version = version
    state = replace(
        _with_groups(state, records, steps),
        epoch=max(known_epoch, last.epoch if last else 0) + 1,
        version=version,
        oldest_version=oldest_version,
    )
    if steps and state.step_fields:
        return Resumption(state, steps, state.step_fields if state.step_fields != settings.step_fields else None)
    return Resumption(replace(state, step_fields=settings.step_fields), steps)


def skip_versions(version: int, newest: int) -> int:
    """Choose the number from which a learner at ``version`` continues without repeating its steps to ``newest``.

    Those weights may have sampled tokens. They are ``newest - version`` updates away from the resumed ones, so the
    difference of two versions is never less than the updates between their weights.
    """
    return newest + (newest - version)


def count_given_up(version: int, continued: int) -> int:
    """Count the steps that a learner gives up: the inverse of `skip_versions`, which chose ``continued``."""
    return (continued - version) // 2


def _steps_since(state: LearnerState, records: Iterable[JournalRecord]) -> list[StepRecord]:
    """List the recorded steps after the checkpoint, without a gap."""
    by_version = {record.version: record for record in records if isinstance(record, StepRecord)}
    versions = takewhile(by_version.__contains__, range(state.version + 1, state.version + 1 + len(by_version)))
    return [by_version[version] for version in versions]


def _with_groups(state: LearnerState, records: Iterable[JournalRecord], steps: Iterable[StepRecord]) -> LearnerState:
    """Add the groups dispatched since the checkpoint to the state; those of ``steps`` are trained by the replay."""
    dispatched = [record for record in records if isinstance(record, GroupRecord)]
    groups = {_key(group): group for group in (*state.outstanding, *(record.group for record in dispatched))}
    for group in (trained.group for step in steps for trained in step.groups):
        if group is not None:
            groups.pop(_key(group), None)
    known = {record.group.number for record in dispatched}
    num_dispatched = state.groups_dispatched
    while num_dispatched in known:
        num_dispatched += 1
    last_task = max([state.stream_mark.last_task, *(record.group.last_task for record in dispatched)])
    return replace(
        state,
        stream_mark=replace(state.stream_mark, last_task=last_task),
        outstanding=list(groups.values()),
        groups_dispatched=num_dispatched,
        groups_by_others=max([state.groups_by_others, *(record.groups_by_others for record in dispatched)]),
        task_results=note_selected(state.task_results, (record.group for record in dispatched)),
    )


def note_selected(results: Mapping[str, TaskResults], groups: Iterable[DispatchedGroup]) -> dict[str, TaskResults]:
    """Note for which groups tasks were selected since the results were written."""
    noted = dict(results)
    for group in groups:
        if group.selection is not None:
            before = noted.get(group.selection.task, TaskResults())
            noted[group.selection.task] = replace(before, selected_at=max(before.selected_at, group.number))
    return noted


def _key(group: DispatchedGroup) -> tuple[int, int]:
    return group.number, group.replacement
