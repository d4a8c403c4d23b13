"""``lightningbus dpo``: train on pairs of a better and a worse answer, of a run's rollouts or of a file."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lightningbus.cli.data_training import (
    ConfigOption,
    DataTraining,
    EpochsOption,
    ModelOption,
    ModelPathOption,
    NameOption,
    OutOption,
    ResumeOption,
    RunDataOption,
)
from lightningbus.cli.options import DatabaseOption, SqlOption
from lightningbus.run.errors import UserError

if TYPE_CHECKING:
    from lightningbus.analysis.run_history import RunHistory
    from lightningbus.learner.rollouts.assembler import Rollout

log = logging.getLogger(__name__)


def dpo(
    data: Annotated[
        Path | None,
        typer.Argument(
            help="file of pairs, .jsonl or .parquet with `prompt`, `chosen` and `rejected`, or of tokens from "
            "`rollouts export`"
        ),
    ] = None,
    run: RunDataOption = None,
    model: ModelOption = None,
    query: Annotated[
        str | None,
        typer.Option(help="SQL that selects `execution_id` of the rollouts to pair, in place of all of the run"),
    ] = None,
    config: ConfigOption = None,
    model_path: ModelPathOption = None,
    name: NameOption = "dpo",
    epochs: EpochsOption = 1,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="pairs of each step [default: the run file's, else 16]")
    ] = None,
    beta: Annotated[
        float | None,
        typer.Option(help="strength of the tie to the model at the start [default: the run file's, else 0.1]"),
    ] = None,
    lr: Annotated[float | None, typer.Option(help="learning rate [default: the run file's, else 1e-6]")] = None,
    out: OutOption = None,
    resume: ResumeOption = False,
    sql: SqlOption = None,
    database: DatabaseOption = "lightningbus",
) -> None:
    """Train a model on pairs of answers (DPO): in each task the best rollout against the worst, or a file of pairs.

    The model learns to tell them apart by its probabilities, in comparison with the model at the start. Each step
    publishes a weight version, as a learner on rollouts does.
    """

    def choose(history: "RunHistory") -> "Sequence[Rollout]":
        if query:
            rollouts, num_equal = history.query_rollouts(query), 0
        else:
            rollouts, num_equal = history.paired_rollouts()
        if not rollouts:
            wanted = "no rollout that --query names" if query else "no task with two rollouts of different rewards"
            raise UserError(f"run {run!r} has {wanted}")
        if num_equal:
            log.warning("groups left out because no two of their rewards differ: %d", num_equal)
        return rollouts

    DataTraining(
        command="dpo",
        part="preferences",
        file_kind="a file of pairs",
        data=data,
        run=run,
        model=model,
        config=config,
        model_path=model_path,
        name=name,
        epochs=epochs,
        batch_size=batch_size,
        lr=lr,
        out=out,
        is_resumed=resume,
        sql=sql,
        database=database,
        beta=beta,
    ).execute(choose)
