"""Training batches and data sets, made again from ClickHouse; calls block."""

import io
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from clickhouse_connect.driver.client import Client

from lightningbus.analysis.prompt_tasks import list_prompt_tasks
from lightningbus.analysis.run_history import RecordedStep, RunHistory
from lightningbus.learner.backend import make_builder, make_trainer, record_reference
from lightningbus.learner.batching.batch import Batch
from lightningbus.learner.checkpointing.checkpoint import TRAINER, CheckpointError, Checkpoints
from lightningbus.learner.errors import LearnerError
from lightningbus.learner.publishing.weight_files import WEIGHTS, write_weights
from lightningbus.learner.rollouts.assembler import Rollout
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.settings.own_function import OwnFunctionError
from lightningbus.learner.teacher.score_file import add_recorded_scores
from lightningbus.learner.trainer import Trainer
from lightningbus.learner.transitions.prefix_tree import find_parents
from lightningbus.learner.transitions.transitions import build_transitions
from lightningbus.run.errors import UserError
from lightningbus.run.settings.run_file import validate_settings
from lightningbus.run.settings.sources import merge
from lightningbus.schemas.trajectory.prefix_encoding import expand_calls


def replay_step(
    client: Client, run: str | None, model: str | None, number: int, checkpoints: Path | None, grading: str = ""
) -> dict[str, Any]:
    """Repeat a step and compare: its batch and, from the checkpoint before it, its loss.

    ``grading``: the grading whose rewards count; empty: those that rollouts ended with.
    """
    history = RunHistory.open(client, run, model, grading)
    (step,) = history.steps(number, number)
    batch = _batch(history, step, step.settings)
    batch_sha256 = batch.compute_sha256()
    result: dict[str, Any] = {
        "step": number,
        "rollouts": len(batch.dispositions),
        "sequences": len(batch.sequences),
        "tokens": int(batch.metrics["tokens"]),
        "batch_sha256": batch_sha256,
        "same_batch": batch_sha256 == step.batch_sha256,
    }
    if checkpoints is None:
        return result
    try:
        before = Checkpoints(checkpoints).of_step(number - 1)
    except CheckpointError as error:
        raise UserError(str(error)) from error
    if before is None:
        raise UserError(
            f"{checkpoints} has no checkpoint of step {number - 1}: checkpoint_interval 1 writes one for each, and "
            "keep_last_checkpoints keeps more of them"
        )
    trainer = _make_trainer(step.settings)
    trainer.load(before / TRAINER)
    metrics = _train(trainer, batch)
    same = all(metrics[name] == step.metrics.get(name) for name in ("actor/loss", "actor/grad_norm"))
    return {**result, "loss": metrics["actor/loss"], "grad_norm": metrics["actor/grad_norm"], "same_loss": same}


def train_offline(
    client: Client,
    run: str | None,
    model: str | None,
    steps: tuple[int, int],
    changes: dict[str, Any],
    out: Path,
    on_step: Callable[[], None],
    grading: str = "",
) -> list[tuple[int, float, int, float]]:
    """Train on the batches of steps, in order, from the first model; (step, reward, tokens, loss) of each.

    Each step has the settings on record for it, with ``changes``: where they changed between two steps, training goes
    on by the new ones, as the learner did. ``grading`` as for `replay_step`.
    """
    history = RunHistory.open(client, run, model, grading)
    recorded = history.steps(*steps)
    chosen = [
        validate_settings(LearnerSettings, merge(step.settings.model_dump(), changes), "settings") for step in recorded
    ]
    trainer, done = _make_trainer(chosen[0]), []
    for step, before, settings in zip(recorded, [chosen[0], *chosen], chosen, strict=False):
        if settings.step_fields != before.step_fields:
            trainer = _continue_with(trainer, settings)
        batch = _batch(history, step, settings)
        loss = _train(trainer, batch)["actor/loss"] if batch.sequences else 0.0
        done.append((step.number, batch.metrics["reward/mean"], int(batch.metrics["tokens"]), loss))
        on_step()
    out.mkdir(parents=True, exist_ok=True)
    write_weights(trainer, out / WEIGHTS)
    return done


def write_chat(out: Path, rollouts: Sequence[Rollout]) -> int:
    """Write a line per conversation with all its messages; return the number of lines."""
    return _write_lines(out, [line for rollout in rollouts for line in _iter_conversations(rollout)])


def write_prompts(out: Path, rollouts: Sequence[Rollout]) -> int:
    """Write a task per model call that goes on from its prompt; return the number of lines."""
    return _write_lines(out, [task for rollout in rollouts for task in list_prompt_tasks(rollout)])


def write_parquet(out: Path, rollouts: Sequence[Rollout]) -> int:
    """Write a line per model call, with its tokens as they were sampled; return the number of lines."""
    import pyarrow as pa
    from pyarrow import parquet

    numbers = pa.list_(pa.int64())
    schema = pa.schema(
        {
            "rollout": pa.string(),
            "task": pa.string(),
            "reward": pa.float64(),
            "call": pa.int64(),
            "role": pa.string(),
            "temperature": pa.float64(),
            "prompt_ids": numbers,
            "response_ids": numbers,
            "logprobs": pa.list_(pa.float32()),
            "versions": numbers,
        }
    )
    lines = [
        {"rollout": rollout.id, "task": rollout.task_id, "reward": rollout.reward, "call": call.index}
        | {name: getattr(call, name) for name in schema.names[4:]}
        for rollout in rollouts
        for call in build_transitions(rollout.calls)
    ]
    parquet.write_table(pa.Table.from_pylist(lines, schema), out)
    return len(lines)


def _write_lines(out: Path, lines: Sequence[dict[str, Any]]) -> int:
    out.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    return len(lines)


def _batch(history: RunHistory, step: RecordedStep, settings: LearnerSettings) -> Batch:
    try:
        builder = make_builder(settings)
    except ValueError as error:
        raise UserError(str(error)) from error
    groups, quarantined = history.groups(step), history.quarantined(step)
    if settings.teachers:
        try:
            add_recorded_scores(groups, settings.checkpoint_dir, settings.teachers)
        except FileNotFoundError as error:
            raise UserError(f"step {step.number} was taught, and {error}") from error
    try:
        return builder.build(groups, step.version - 1, quarantined, step.number - 1)
    except ValueError as error:  # raised by a credit function or an estimator, as in the learner
        raise UserError(str(error)) from error


def _make_trainer(settings: LearnerSettings) -> Trainer:
    try:
        with redirect_stdout(io.StringIO()):  # verl prints what it builds
            trainer = make_trainer(settings)
        if settings.preferences is not None:
            record_reference(trainer, make_builder(settings))
        return trainer
    except ValueError as error:
        raise UserError(str(error)) from error


def _continue_with(trainer: Trainer, settings: LearnerSettings) -> Trainer:
    """Return a trainer with other settings that goes on from the state of a trainer."""
    with tempfile.TemporaryDirectory(prefix="lightningbus-replay-") as directory:
        trainer.save(Path(directory))
        after = _make_trainer(settings)
        after.load(Path(directory))
    return after


def _train(trainer: Trainer, batch: Batch) -> dict[str, float]:
    try:
        return trainer.step(batch)
    except (OwnFunctionError, LearnerError) as error:
        raise UserError(str(error)) from error


def _iter_conversations(rollout: Rollout) -> Iterator[dict[str, Any]]:
    extended = set(find_parents(build_transitions(rollout.calls)))
    for index, call in enumerate(expand_calls(rollout.calls)):
        if index in extended:
            continue  # an earlier turn of one that follows
        request, answer = json.loads(call.request), json.loads(call.response)
        messages = request.get("messages", [{"role": "user", "content": request.get("prompt", "")}])
        answer = answer if isinstance(answer, dict) else {"role": "assistant", "content": answer}
        line = {"messages": [*messages, answer], "rollout": rollout.id, "role": call.role, "reward": rollout.reward}
        yield {**line, "tools": request["tools"]} if "tools" in request else line
