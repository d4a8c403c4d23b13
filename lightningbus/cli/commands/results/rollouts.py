"""``lightningbus rollouts``: read a rollout, follow rollouts as they end, export the best as a data set."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from lightningbus.cli.options import (
    BusOption,
    DatabaseOption,
    JsonOption,
    SqlOption,
    exit_on_user_error,
    require_extra,
    run_async,
    with_sql_client,
    with_sql_client_redirected,
)
from lightningbus.run.errors import exit_with
from lightningbus.run.run_directory.discovery import BUS_VARIABLE
from lightningbus.run.run_directory.lookup import find_named_run, find_run_id

app = typer.Typer(
    help="Read a rollout, follow rollouts as they end, export the best.", no_args_is_help=True, rich_markup_mode=None
)


@app.command()
def show(
    rollout: Annotated[str, typer.Argument(help="id of the rollout")],
    run: Annotated[str, typer.Option(help="id of the rollout's run [default: the newest that has it]")] = "",
    color: Annotated[str, typer.Option(help="meaning of the tokens' colours: advantage, staleness or none")] = "none",
    prompts: Annotated[
        bool, typer.Option("--prompts", help="show the text of the tokens that the model read in place of the messages")
    ] = False,
    tokenizer: Annotated[
        Path | None, typer.Option(help="directory of the model, for --prompts [default: that of the run's node]")
    ] = None,
    sql: SqlOption = None,
    database: DatabaseOption = "lightningbus",
    as_json: JsonOption = False,
) -> None:
    """Show one rollout call by call: requests, answers, tools and reward, with the weight version of each token."""
    with require_extra("store"):
        from lightningbus.analysis.transcript import Transcript
        from lightningbus.run.run_data.run_names import find_stored_run
    if color not in ("none", "advantage", "staleness"):
        exit_with(f"--color: {color!r} is none of advantage, staleness and none")

    def load(client: Any) -> Transcript:
        run_id = find_stored_run(client, run)
        return Transcript.load(client, rollout, run_id, has_prompts=prompts, tokenizer=tokenizer)

    transcript = with_sql_client(sql, database, load, run)
    transcript.show_json() if as_json else transcript.show(color)


@app.command()
def tail(
    run: Annotated[str, typer.Option(help="show only this run")] = "",
    outcome: Annotated[str, typer.Option(help="show only this outcome, e.g. agent_error")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="print a JSON object per line")] = False,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="stop after this many attempts")] = None,
    bus: BusOption = None,
) -> None:
    """Print attempts as they end, a line each, until Ctrl-C."""
    from lightningbus.analysis.tail import tail_rollouts

    named = find_named_run(run) if run else None
    is_bus_given = bool(bus or os.environ.get(BUS_VARIABLE))  # its runs may be those of other machines
    if run and not is_bus_given and named is None:
        with_sql_client(None, "lightningbus", lambda client: None, run)  # refuses a run that the store does not know
    elif not is_bus_given and named is not None and named.read_endpoints() is None:
        exit_with(f"run {run!r} is not up, so nothing of it ends: `lightningbus query --run {run}` asks its store")
    run_async(tail_rollouts(bus, exit_on_user_error(find_run_id, run), outcome, as_json, count, named))


@app.command()
def export(
    out: Annotated[
        Path,
        typer.Argument(help="file to write: chat messages or, with --prompts, tasks as .jsonl; tokens as .parquet"),
    ],
    run: Annotated[str | None, typer.Option(help="id of the run [default: the only one in the store]")] = None,
    model: Annotated[
        str | None, typer.Option(help="name of the model whose calls to export [default: the only trained one]")
    ] = None,
    top_k: Annotated[int, typer.Option(min=1, help="number of rollouts of each task, the best first")] = 1,
    min_reward: Annotated[float, typer.Option(help="smallest reward of an exported rollout")] = 0.0,
    query: Annotated[
        str | None,
        typer.Option(help="SQL that selects `execution_id` of the rollouts to export, in place of the best ones"),
    ] = None,
    prompts: Annotated[
        bool,
        typer.Option(
            "--prompts",
            help="write a task for each model call: lightningbus.tasks.recorded_prompts:answer goes on from its prompt",
        ),
    ] = False,
    sql: SqlOption = None,
    database: DatabaseOption = "lightningbus",
) -> None:
    """Write the best training rollouts as a supervised data set, or their prompts as tasks."""
    with require_extra("learner"):
        from lightningbus.analysis import replay as work
        from lightningbus.analysis.run_history import RunHistory
        from lightningbus.run.run_data.run_names import find_stored_run

    writers = {".jsonl": work.write_chat, ".parquet": work.write_parquet}
    if out.suffix not in writers:
        exit_with(f"{out}: the name must end in .jsonl (chat messages) or .parquet (tokens)")
    if prompts and out.suffix != ".jsonl":
        exit_with(f"{out}: the name must end in .jsonl for --prompts")
    writer = work.write_prompts if prompts else writers[out.suffix]

    def write(client: Any) -> int:
        history = RunHistory.open(client, run and find_stored_run(client, run), model)
        rollouts = history.query_rollouts(query) if query else history.best_rollouts(top_k, min_reward)
        return writer(out, rollouts)

    count = with_sql_client_redirected(sql, database, write, run)
    print(f"{count} lines in {out}")
