"""The ``lightningbus`` command."""

import os
from pathlib import Path
from typing import Annotated

import typer

from lightningbus.cli.lazy_group import Command, LazyGroup, Section
from lightningbus.common.loopback_proxies import bypass_loopback
from lightningbus.common.missing_modules import describe_missing_module
from lightningbus.common.observability.log_format import FORMAT_VARIABLE, LogFormat

START, TRAIN = Section("start", "Start"), Section("train", "Train")
RESULTS, MANAGE = Section("results", "See what happened"), Section("manage", "Manage a run")
ROLES = Section("roles", "Run one role by itself")
COMMANDS = (
    Command("doctor", START, "Check that this machine can run lightningbus.", "lightningbus doctor"),
    Command("init", START, "Write a first project to change.", "lightningbus init first --framework openai"),
    Command("demo", START, "Train an agent with a calculator on this machine.", "lightningbus demo"),
    Command("env", TRAIN, "Write an environment's tasks and run file.", "lightningbus env gymnasium:NAME --limit 100"),
    Command("train", TRAIN, "Run a training job to its end.", "lightningbus train -c run.yaml"),
    Command("sft", TRAIN, "Train on good answers: rollouts or chats.", "lightningbus sft chats.jsonl --model-path M"),
    Command("dpo", TRAIN, "Train on pairs of a better and a worse answer.", "lightningbus dpo --run first"),
    Command("optimize", TRAIN, "Improve the prompts of an agent.", "lightningbus optimize -c optimize.yaml"),
    Command("evaluate", TRAIN, "Answer held-out tasks.", "lightningbus evaluate agent:solve heldout.jsonl --model M"),
    Command("up", TRAIN, "Run all roles of a run file until Ctrl-C.", "lightningbus up -c run.yaml"),
    Command("status", RESULTS, "List the roles that are alive, and their state.", "lightningbus status --watch"),
    Command("ui", RESULTS, "Show runs and rollouts in the browser.", "lightningbus ui"),
    Command("report", RESULTS, "Report rewards, speed, tokens and more.", "lightningbus report reward_by_version"),
    Command("query", RESULTS, "Run SQL on all recorded data.", "lightningbus query 'SELECT count() FROM rollouts'"),
    Command("rollouts", RESULTS, "Read a rollout, follow them, export the best.", "lightningbus rollouts tail -n 10"),
    Command("steps", RESULTS, "Repeat a training step.", "lightningbus steps replay --step 3"),
    Command("regrade", RESULTS, "Give stored rollouts new rewards.", "lightningbus regrade grader.yaml --name strict"),
    Command("audit", RESULTS, "Show the auditor's findings.", "lightningbus audit"),
    Command("runs", MANAGE, "List, tag, rename, archive and delete runs.", "lightningbus runs list --tag good"),
    Command("publish", MANAGE, "Publish the tasks of a file.", "lightningbus publish tasks.jsonl --samples 8"),
    Command("weights", MANAGE, "List, pin and revoke weight versions.", "lightningbus weights list"),
    Command("prompts", MANAGE, "List, release and revoke prompt versions.", "lightningbus prompts list"),
    Command("dlq", MANAGE, "List and replay dead letters.", "lightningbus dlq list"),
    Command("provision", MANAGE, "Create the streams on your own NATS server.", "lightningbus provision --replicas 3"),
    Command("bus", ROLES, "Run a nats-server with all streams.", "lightningbus bus --port 4222"),
    Command("store", ROLES, "Write events to ClickHouse, and answer SQL.", "lightningbus store --data-dir runs/store"),
    Command("inference", ROLES, "Run vLLM behind a gateway.", "lightningbus inference --model-path models/M", True),
    Command("learner", ROLES, "Train on finished rollouts.", "lightningbus learner --settings learner.yaml", True),
    Command("runner", ROLES, "Run an agent on tasks of the bus.", "lightningbus runner --entrypoint agent:solve", True),
    Command("grader", ROLES, "Give rollouts their rewards.", "lightningbus grader --settings grader.yaml", True),
    Command("auditor", ROLES, "Recompute sampled probabilities.", "lightningbus auditor --model-path models/M", True),
)  # fmt: skip
"""Every command, by section in the order of `--help`. Its module is imported when it is called."""


class Commands(LazyGroup):
    """The commands of the table."""

    table = COMMANDS


app = typer.Typer(
    help="Train any LLM agent by reinforcement learning, over an event bus.",
    epilog="`lightningbus COMMAND --help` has the options of a command; docs/cli.md has all of them, and exit codes.",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version

        print(f"lightningbus {version('lightningbus')}")
        raise typer.Exit


@app.callback()
def _main(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="print more log lines")] = False,
    log_format: Annotated[
        LogFormat,
        typer.Option(envvar=FORMAT_VARIABLE, help="format of log lines: text for people, or a JSON object each"),
    ] = LogFormat.human,
    credentials: Annotated[
        Path | None,
        typer.Option(
            help="directory of keys from `lightningbus bus create-users` [default: $LIGHTNINGBUS_CREDENTIALS]"
        ),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="print the version and exit")
    ] = False,
) -> None:
    from lightningbus.common.observability.logs import configure_logging
    from lightningbus.run.run_directory.discovery import CREDENTIALS_VARIABLE

    os.environ[FORMAT_VARIABLE] = log_format  # for the roles that `up`, `train` and `demo` start
    configure_logging(verbose, log_format)
    if credentials is not None:
        os.environ[CREDENTIALS_VARIABLE] = str(credentials.resolve())


def main() -> None:
    """Run the command line; a missing module ends it with one sentence, whichever command imports it."""
    os.environ.update(bypass_loopback(os.environ))
    try:
        app()
    except ModuleNotFoundError as error:
        from lightningbus.run.errors import exit_with

        exit_with(describe_missing_module(error.name))
