"""The ``lightningbus`` command."""

import os
from pathlib import Path
from typing import Annotated

import typer

from common.observability.logs import FORMAT_VARIABLE, LogFormat, configure_logging
from lightningbus.cli.commands import dlq, inspect, replay, report, servers, start, ui, weights
from lightningbus.run.discovery import ACCESS_VARIABLE

app = typer.Typer(
    help="Train any LLM agent by reinforcement learning, over an event bus.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
COMMANDS = (
    start.demo, start.train, start.up, servers.provision, start.inference,
    start.learner, start.runner, inspect.publish, inspect.query, inspect.status,
    report.report, report.transcript, report.tail, ui.ui, replay.replay, replay.export,
)  # fmt: skip
for command in COMMANDS:
    app.command()(command)
app.add_typer(servers.bus_app, name="bus")
app.add_typer(servers.store_app, name="store")
app.add_typer(dlq.app, name="dead")
app.add_typer(weights.app, name="weights")


@app.callback()
def _main(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="more log lines")] = False,
    log_format: Annotated[
        LogFormat, typer.Option(envvar=FORMAT_VARIABLE, help="log lines for people, or one JSON object each")
    ] = LogFormat.human,
    access: Annotated[
        Path | None,
        typer.Option(help=f"keys for the bus, made by `lightningbus bus users` [default: ${ACCESS_VARIABLE}]"),
    ] = None,
) -> None:
    os.environ[FORMAT_VARIABLE] = log_format  # for the roles that `up`, `train` and `demo` start
    configure_logging(verbose, log_format)
    if access is not None:
        os.environ[ACCESS_VARIABLE] = str(access.resolve())


def main() -> None:
    """Entry point."""
    app()
