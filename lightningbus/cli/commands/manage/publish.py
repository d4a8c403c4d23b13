"""``lightningbus publish``: send the tasks of a file or a data set to the bus."""

from typing import Annotated

import typer

from lightningbus.bus.connection import CONNECT_SECONDS
from lightningbus.cli.options import BusOption, exit_on_user_error, run_async
from lightningbus.run.errors import exit_with
from lightningbus.run.run_directory.discovery import connect
from lightningbus.schemas import subjects
from lightningbus.tasks.task_loading import load_tasks
from lightningbus.tasks.task_source import TaskSource, parse_columns


def publish(
    tasks: Annotated[
        str,
        typer.Argument(
            help='file of tasks: JSONL, one {"id": ..., "input": ..., "labels": {...}} per line; or Parquet, CSV, '
            "directory of a data set, hf:NAME of one on the Hugging Face Hub"
        ),
    ],
    columns: Annotated[
        list[str] | None,
        typer.Option(help="FIELD=COLUMN of the input, e.g. question=prompt; repeatable [default: every column]"),
    ] = None,
    id_column: Annotated[
        str | None,
        typer.Option("--id", help="column with the tasks' ids [default: id if there is one, else row numbers]"),
    ] = None,
    split: Annotated[str, typer.Option(help="split of a data set")] = "train",
    config: Annotated[str | None, typer.Option(help="configuration of the data set, if it has several")] = None,
    samples: Annotated[int, typer.Option(min=1, help="rollouts per task, which are compared as a group")] = 1,
    run: Annotated[str, typer.Option(help="id of the run that the results belong to")] = "run",
    agent: Annotated[str, typer.Option(help="name of the agent that runs the tasks")] = "default",
    mode: Annotated[
        str | None, typer.Option(help="purpose of the rollouts, train or eval [default: train, eval with --evaluation]")
    ] = None,
    evaluation: Annotated[
        str,
        typer.Option(help="name of an evaluation, such as greedy: the tasks get --mode eval, and separate figures"),
    ] = "",
    version: Annotated[
        list[str] | None,
        typer.Option(
            help="answer every call from this weight version only: a number, or MODEL=NUMBER; repeatable "
            "for several models"
        ),
    ] = None,
    role: Annotated[
        list[str] | None,
        typer.Option(help="ROLE=MODEL: this model answers the agent's calls to policy:ROLE; repeatable"),
    ] = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option(help="NAME=VERSION: calls use this version of a prompt; repeatable [default: the released one]"),
    ] = None,
    pass_: Annotated[
        str,
        typer.Option("--pass", help="suffix of the task ids, to publish the same file again in the same run"),
    ] = "",
    temperature: Annotated[
        float | None, typer.Option(min=0, help="sampling temperature of every model call [default: the agent's]")
    ] = None,
    deadline: Annotated[float, typer.Option(min=0.1, help="longest duration of a rollout, in seconds")] = 60.0,
    take_back: Annotated[
        bool,
        typer.Option("--take-back", help="delete the tasks that this command published and no runner has finished"),
    ] = False,
    timeout: Annotated[float, typer.Option(min=0.1, help="longest wait, in seconds, while the queue is full")] = 300.0,
    bus: BusOption = None,
) -> None:
    """Publish the tasks of a file or a data set; every row is checked before the first is sent.

    Tasks that the bus has already are counted, not sent again. With --pass the same file makes new tasks. With
    --take-back the same command takes its tasks back: the record says that they were given up, and learners go on.
    """
    from lightningbus.run.evaluation.publishing import build_tasks, publish_all
    from lightningbus.run.settings.policy_options import parse_prompt_versions, parse_role_models, parse_versions
    from lightningbus.tasks.task_removal import take_back as take_back_tasks

    inputs = exit_on_user_error(load_tasks, _parse_source(tasks, columns, id_column, split, config))
    expanded = exit_on_user_error(
        lambda: build_tasks(
            inputs, option_prefix="--", samples=samples, run=run, agent=agent, mode=mode, evaluation=evaluation,
            weight_versions=parse_versions(version or ()), role_models=parse_role_models(role or ()),
            prompt_versions=parse_prompt_versions(prompt or ()), pass_name=pass_, temperature=temperature,
            deadline=deadline,
        )
    )  # fmt: skip

    async def send() -> tuple[int, int]:
        from rich.progress import Progress

        from lightningbus.run.display.live_view import console

        async with connect(bus, "publish", wait=CONNECT_SECONDS) as at:
            await at.check_stream(subjects.TASKS)
            with Progress(console=console(), transient=True) as progress:
                bar = progress.add_task("publishing", total=len(inputs) * samples)
                return await publish_all(at, expanded, timeout, lambda: progress.advance(bar))

    async def remove() -> int:
        async with connect(bus, "publish", wait=CONNECT_SECONDS) as at:
            await at.check_stream(subjects.TASKS)
            return await take_back_tasks(at, expanded)

    if take_back:
        print(f"{run_async(remove())} of {len(inputs) * samples} rollouts taken back")
        return
    new, there = run_async(send())
    if there:
        print(f"{new} of {new + there} published, {there} were there already: --pass NAME publishes them again")
    else:
        print(f"{new} rollouts of {len(inputs)} tasks published")


def _parse_source(
    path: str, columns: list[str] | None, id_column: str | None, split: str, config: str | None
) -> TaskSource:
    try:
        map_of_columns = parse_columns(columns or ())
    except ValueError as error:
        exit_with(f"--columns: {error}")
    return TaskSource(path=path, columns=map_of_columns, id=id_column, split=split, config=config)
