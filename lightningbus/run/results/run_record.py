"""Record of a training job's settings in its run's directory, since a resume must keep them."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import Any

from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.settings.loss_parts import TeacherList
from lightningbus.run.errors import UserError
from lightningbus.run.processes.steps_left import describe_no_steps_left
from lightningbus.run.results.base_files import describe_files, read_base_files
from lightningbus.run.results.results import Results
from lightningbus.run.settings.evaluation import EvalSettings
from lightningbus.run.settings.optimize import OptimizeSettings
from lightningbus.run.settings.setting_change import SettingChange, is_changeable, pick_fields
from lightningbus.run.settings.sources import merge
from lightningbus.tasks.task_loading import load_tasks
from lightningbus.tasks.task_source import NamedTaskSource, TaskSource

RECORD = "job.json"
SUITE = "eval.suites."
"""Begins the key of a suite in the record; its name follows."""
NO_TASKS = hashlib.sha256().hexdigest()
"""Digest where there are no tasks."""
CHANGEABLE = {
    "learner": {
        *("max_steps", "cpu_threads", "id"),
        *("disk_free_mib", "checkpoint_interval", "rollout_bytes", "keep_last_checkpoints", "keep_weight_versions"),
        *("checkpoint_max_overhead", "checkpoint_max_repeat_seconds"),
        *("health_address", "max_failed_groups"),
    },
    "eval": {"every", "deadline", "suites", "best_by"},
    "optimize": {"every", "budget", "round_budget", "max_iterations", "deadline", "reflection"},
}
"""Settings that affect neither training nor its measurement; a resume may change them."""


def describe_job(
    learners: Sequence[LearnerSettings], heldout: EvalSettings, prompts: OptimizeSettings | None = None
) -> dict[str, Any]:
    """Return the settings that a resume must keep, with a digest of the tasks.

    ``prompts``: settings of prompt optimisation in turns with training.

    Raises `lightningbus.tasks.errors.TaskFileError`.
    """
    job = {"eval": _without("eval", heldout.model_dump(mode="json")) | {"tasks": digest_tasks(heldout.tasks)}}
    for suite in heldout.suites:
        fields = _without("eval", suite.model_dump(mode="json"))
        job[f"{SUITE}{suite.name}"] = fields | {"tasks": digest_tasks(suite.tasks)}
    for learner in learners:
        section = "learner" if len(learners) == 1 else f"learners.{learner.model}"
        job[section] = _without("learner", learner.model_dump(mode="json")) | {
            "model_path": str(learner.model_path.resolve()),
            "checkpoint_dir": str(learner.checkpoint_dir.resolve()),
            "tasks": digest_tasks(learner.tasks),
            "task_sets": [
                each.model_dump(mode="json", exclude=set(TaskSource.model_fields)) for each in learner.task_sets
            ],
            "teacher": _describe_teachers(learner),
            "weights": learner.weights.model_dump(mode="json", exclude={"keep_best", "full_interval"}),
        }
    if prompts is not None:
        job["optimize"] = _without("optimize", prompts.model_dump(mode="json")) | {
            "tasks": digest_tasks(prompts.tasks),
            "heldout": digest_tasks(prompts.heldout),
        }
    return job


def list_suites(directory: Path) -> list[str]:
    """List the names of the suites that the training job of a run's directory evaluates; none if it is not on record.

    Raises `UserError` when the record cannot be read.
    """
    return [path.removeprefix(SUITE) for path in _read_record(directory) if path.startswith(SUITE)]


def read_model_path(directory: Path, model: str) -> Path | None:
    """Read the directory of the model that a training job began with, as an absolute path; None if not on record.

    Raises `UserError` when the record cannot be read.
    """
    record = _read_record(directory)
    section = record.get("learner") or record.get(f"learners.{model}") or {}
    return Path(section["model_path"]) if "model_path" in section else None


def read_task_digests(directory: Path, model: str) -> dict[str, str]:
    """Read the SHA-256 of the tasks that a model was trained on, and of those held out, by what they are for.

    Those of a suite by its name; empty if not on record. Raises `UserError` when the record cannot be read.
    """
    record = _read_record(directory)
    sections = {"training": record.get("learner") or record.get(f"learners.{model}") or {}}
    sections |= {"held-out": record.get("eval") or {}}
    sections |= {path.removeprefix(SUITE): each for path, each in record.items() if path.startswith(SUITE)}
    digests = {name: str(each.get("tasks") or "") for name, each in sections.items()}
    return {name: digest for name, digest in digests.items() if digest not in ("", NO_TASKS)}


def _read_record(directory: Path) -> dict[str, Any]:
    """Read the record of a run's directory; empty if there is none. Raises `UserError`."""
    try:
        return dict(json.loads((directory / RECORD).read_text()))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{directory / RECORD} cannot be read: {error}") from error


def _describe_teachers(learner: LearnerSettings) -> Any:
    """Return what a resume must keep of a learner's teachers: one alone, a list of several, or None."""
    kept = [
        each.model_dump(include={"model", "served_model"})
        | each.model_dump(include={"name", "labels", "roles", "top_k", "direction", "hint"}, exclude_defaults=True)
        for each in learner.teachers
    ]
    return kept if isinstance(learner.teacher, TeacherList) else kept[0] if kept else None


def _without(section: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Drop the fields that may change at a resume."""
    return {name: value for name, value in fields.items() if name not in CHANGEABLE[section]}


def write_record(directory: Path, job: Mapping[str, Any]) -> None:
    """Write the record of a job. One that goes on with other settings keeps its time, which is when it began."""
    path = directory / RECORD
    began = path.stat() if path.exists() else None
    path.touch(mode=0o600)
    path.write_text(json.dumps(job, indent=2))
    if began is not None:
        os.utime(path, ns=(began.st_atime_ns, began.st_mtime_ns))


def identify_record(directory: Path) -> tuple[int, int] | None:
    """Return what tells the record of one job from that of another of the same name; None without a record."""
    try:
        status = (directory / RECORD).stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def check_resumable(directory: Path, job: Mapping[str, Any], max_steps: int) -> list[SettingChange]:
    """Return the changes of learners' settings since the run was started, in which it can go on.

    Raises `UserError` if there is nothing to resume, or if settings contradict those of the run.
    """
    name = directory.name
    try:
        record = json.loads((directory / RECORD).read_text())
    except FileNotFoundError:
        raise UserError(f"{directory} holds no training job to resume: start it without --resume") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{directory / RECORD} cannot be read ({error}): start the run without --resume") from error
    changed: dict[str, dict[str, Any]] = {}
    for path, before, now in find_differences(record, job):
        if path.startswith(SUITE) and path.count(".") == 2:  # a suite was added or left out
            continue
        if _has_moved(directory, path, before, now, job):
            continue
        if (change := _find_change(path)) is not None:
            section, names = change
            _put(changed.setdefault(section, {}), names, now)
            continue
        what = f"{path} was {_quote(before)} and is {_quote(now)} now"
        if path.endswith((".tasks", ".heldout")):
            what = f"{path} holds other tasks than before"
        raise UserError(f"run {name!r} cannot be resumed with other settings: {what}; or start it without --resume")
    results = Results.read(directory)
    if results is not None and results.is_finished and max_steps <= results.steps:
        raise UserError(describe_no_steps_left(name, results.steps))
    return [
        SettingChange(
            model=job[section]["model"],
            learner=fields,
            before=pick_fields(_read_settings_in_force(record[section], results), fields),
            reason="resumed with other settings",
            changed_at=datetime.now(UTC),
        )
        for section, fields in changed.items()
    ]


def _read_settings_in_force(learner: Mapping[str, Any], results: Results | None) -> dict[str, Any]:
    """Return the recorded settings of a learner as its changes since have made them."""
    changes = results.changes if results is not None else []
    return reduce(merge, (each.learner for each in changes if each.model == learner["model"]), dict(learner))


def _has_moved(directory: Path, path: str, before: Any, now: Any, job: Mapping[str, Any]) -> bool:
    """Whether a setting names another place of the same: the project was moved or copied."""
    section, _, name = path.rpartition(".")
    match name:
        case "model_path":
            files = read_base_files(directory, job[section]["model"])
            return bool(files) and files == describe_files(Path(now))
        case "checkpoint_dir":  # it lies in the run's directory, and has moved with that
            return Path(now).is_relative_to(directory.resolve()) and Path(before).name == Path(now).name
    return False


def _find_change(path: str) -> tuple[str, list[str]] | None:
    """Split a path into a learner's section and the names below it, if that setting may change; None: it may not."""
    section, *names = path.split(".")
    if section == "learners":  # a model's name has no dot
        section, names = f"{section}.{names[0]}", names[1:]
    is_learner = section.startswith("learner")
    return (section, names) if is_learner and is_changeable(names, is_alone=section == "learner") else None


def _put(fields: dict[str, Any], names: Sequence[str], value: Any) -> None:
    for name in names[:-1]:
        fields = fields.setdefault(name, {})
    fields[names[-1]] = value


def find_differences(before: Any, now: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """List the dotted paths at which two settings differ, with both values. Pure."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for name in dict.fromkeys([*before, *now]):
            yield from find_differences(before.get(name), now.get(name), f"{path}.{name}".lstrip("."))
    elif before != now:
        yield path, before, now


def _quote(value: Any) -> str:
    return json.dumps(value)


def digest_tasks(source: Path | TaskSource | Sequence[NamedTaskSource] | None) -> str:
    """Return a digest of the tasks themselves, so that another form of the same source has the same.

    Raises `lightningbus.tasks.errors.TaskFileError`.
    """
    digest = hashlib.sha256()
    for task in load_tasks(source) if source is not None else ():
        digest.update(json.dumps([task.id, task.input, task.labels]).encode())
    return digest.hexdigest()
