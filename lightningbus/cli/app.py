"""The ``lightningbus`` command."""

import os
from pathlib import Path
from typing import Annotated

import typer

from common.observability.logs import FORMAT_VARIABLE, LogFormat, configure_logging
from lightningbus.cli.commands import (
    audit,
    auditor,
    bus,
    demo,
    dlq,
    env,
    inference,
    learner,
    provision,
    publish,
    query,
    report,
    rollouts,
    runner,
    status,
    steps,
    store,
    train,
    ui,
    up,
    weights,
)
from lightningbus.cli.options import ANY_SETTING
from lightningbus.run.discovery import CREDENTIALS_VARIABLE

app = typer.Typer(
    help="Train any LLM agent by reinforcement learning, over an event bus.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
COMMANDS = (
    demo.demo, train.train, up.up, publish.publish, query.query, status.status, report.report, ui.ui,
    audit.audit, env.env, provision.provision,
)  # fmt: skip
ROLES = (runner.runner, learner.learner, inference.inference, auditor.auditor)
GROUPS = {
    "rollouts": rollouts.app, "steps": steps.app, "weights": weights.app, "dlq": dlq.app,
    "store": store.app, "bus": bus.app,
}  # fmt: skip
for command in COMMANDS:
    app.command()(command)
for role in ROLES:
    app.command(context_settings=ANY_SETTING)(role)
for name, group in GROUPS.items():
    app.add_typer(group, name=name)


@app.callback()
def _main(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="more log lines")] = False,
    log_format: Annotated[
        LogFormat, typer.Option(envvar=FORMAT_VARIABLE, help="log lines for people, or one JSON object each")
    ] = LogFormat.human,
    credentials: Annotated[
        Path | None,
        typer.Option(help=f"keys for the bus, of `lightningbus bus create-users` [default: ${CREDENTIALS_VARIABLE}]"),
    ] = None,
) -> None:
    os.environ[FORMAT_VARIABLE] = log_format  # for the roles that `up`, `train` and `demo` start
    configure_logging(verbose, log_format)
    if credentials is not None:
        os.environ[CREDENTIALS_VARIABLE] = str(credentials.resolve())


def main() -> None:
    """Entry point."""
    app()
