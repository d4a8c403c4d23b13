"""``lightningbus publish``: tasks of a file or a data set."""

from typing import Annotated

import typer

from lightningbus.bus.connection import CONNECT_SECONDS
from lightningbus.cli.options import BusOption, exit_on_user_error, run_async
from lightningbus.run.errors import exit_with
from lightningbus.run.run_directory.discovery import connect
from lightningbus.schemas import subjects
from lightningbus.tasks.task_file import load_tasks
from lightningbus.tasks.task_source import TaskSource, parse_columns


def publish(
    tasks: Annotated[
        str,
        typer.Argument(
            help='JSONL, one {"id": ..., "input": ..., "labels": {...}} per line; or Parquet, CSV, directory of a data '
            "set, hf:NAME of one on the Hugging Face Hub"
        ),
    ],
    columns: Annotated[
        list[str] | None,
        typer.Option(help="field=column of the input, as question=prompt; repeat it [default: every column]"),
    ] = None,
    id_column: Annotated[
        str | None, typer.Option("--id", help="column of the ids [default: id if there is one, else row numbers]")
    ] = None,
    split: Annotated[str, typer.Option(help="split of a data set")] = "train",
    config: Annotated[str | None, typer.Option(help="configuration of a data set that has several")] = None,
    samples: Annotated[int, typer.Option(min=1, help="rollouts per task: the group that is compared")] = 1,
    run: Annotated[str, typer.Option(help="run the results belong to")] = "run",
    agent: Annotated[str, typer.Option(help="agent name")] = "default",
    mode: Annotated[str | None, typer.Option(help="train or eval [default: train, eval with --evaluation]")] = None,
    evaluation: Annotated[
        str,
        typer.Option(help="name of the evaluation, such as greedy: rollouts of --mode eval, with figures of their own"),
    ] = "",
    version: Annotated[
        list[str] | None,
        typer.Option(
            help="answer every call from this weight version only: a number, or MODEL=NUMBER; repeat it for several "
            "models"
        ),
    ] = None,
    role: Annotated[
        list[str] | None,
        typer.Option(help="ROLE=MODEL: this model answers the agent's calls to policy:ROLE; repeat it"),
    ] = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option(help="NAME=VERSION: calls have this version of the prompt; repeat it [default: the released one]"),
    ] = None,
    pass_: Annotated[
        str,
        typer.Option("--pass", help="name of this time, to publish a file again under the same run: part of task ids"),
    ] = "",
    temperature: Annotated[float | None, typer.Option(min=0, help="forced on every model call")] = None,
    deadline: Annotated[float, typer.Option(min=0.1, help="seconds a rollout may take")] = 60.0,
    timeout: Annotated[float, typer.Option(min=0.1, help="seconds to wait while the queue is full")] = 300.0,
    bus: BusOption = None,
) -> None:
    """Publish the tasks of a file or a data set; every row is checked before the first is sent.

    A task that the bus has already is not sent again, and counted: --pass makes new ones of the same file.
    """
    from lightningbus.run.evaluation.publishing import build_tasks, publish_all
    from lightningbus.run.settings.policy_options import parse_prompt_versions, parse_role_models, parse_versions

    problems = exit_on_user_error(load_tasks, _parse_source(tasks, columns, id_column, split, config))
    expanded = exit_on_user_error(
        lambda: build_tasks(
            problems, option_prefix="--", samples=samples, run=run, agent=agent, mode=mode, evaluation=evaluation,
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
                bar = progress.add_task("publishing", total=len(problems) * samples)
                return await publish_all(at, expanded, timeout, lambda: progress.advance(bar))

    new, there = run_async(send())
    if there:
        print(f"{new} of {new + there} published, {there} were there already: --pass NAME publishes them again")
    else:
        print(f"{new} rollouts of {len(problems)} tasks published")


def _parse_source(
    path: str, columns: list[str] | None, id_column: str | None, split: str, config: str | None
) -> TaskSource:
    try:
        map_of_columns = parse_columns(columns or ())
    except ValueError as error:
        exit_with(f"--columns: {error}")
    return TaskSource(path=path, columns=map_of_columns, id=id_column, split=split, config=config)
