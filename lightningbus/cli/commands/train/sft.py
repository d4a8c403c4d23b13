"""``lightningbus sft``: train on good answers, of a run's rollouts or of a file of chats."""

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


def sft(
    data: Annotated[
        Path | None,
        typer.Argument(help="file of chats, .jsonl or .parquet with `messages`, or of tokens from `rollouts export`"),
    ] = None,
    run: RunDataOption = None,
    model: ModelOption = None,
    top_k: Annotated[int, typer.Option(min=1, help="rollouts of each task to take, the best first")] = 1,
    min_reward: Annotated[float, typer.Option(help="smallest reward of a rollout to take")] = 0.0,
    query: Annotated[
        str | None,
        typer.Option(help="SQL that selects `execution_id` of the rollouts to take, in place of the best ones"),
    ] = None,
    config: ConfigOption = None,
    model_path: ModelPathOption = None,
    name: NameOption = "sft",
    epochs: EpochsOption = 1,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="chats or rollouts of each step [default: the run file's, else 16]")
    ] = None,
    lr: Annotated[float | None, typer.Option(help="learning rate [default: the run file's, else 1e-5]")] = None,
    out: OutOption = None,
    resume: ResumeOption = False,
    sql: SqlOption = None,
    database: DatabaseOption = "lightningbus",
) -> None:
    """Train a model on good answers: the best rollouts of a run, those of a query, or a file of chats.

    The loss is on the assistant's turns. Each step publishes a weight version, as a learner on rollouts does.
    """

    def choose(history: "RunHistory") -> "Sequence[Rollout]":
        rollouts = history.query_rollouts(query) if query else history.best_rollouts(top_k, min_reward)
        if not rollouts:
            wanted = "that --query names" if query else f"of a reward of at least {min_reward:g} (--min-reward)"
            raise UserError(f"run {run!r} has no rollout {wanted}")
        return rollouts

    DataTraining(
        command="sft",
        part="supervised",
        file_kind="a file of chats",
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
    ).execute(choose)
