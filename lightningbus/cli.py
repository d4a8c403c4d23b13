"""The ``lightningbus`` command."""

from typing import Annotated

import typer

from lightningbus import asking, dead, repeating, reporting, serving, starting
from lightningbus.roles import set_up_logging

app = typer.Typer(
    help="Train any LLM agent by reinforcement learning, over an event bus.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
COMMANDS = (
    starting.demo, starting.train, starting.up, starting.bus, starting.provision, starting.store, starting.inference,
    starting.learner, starting.runner, asking.publish, asking.query, asking.status,
    reporting.report, reporting.transcript, reporting.tail, serving.ui, repeating.replay, repeating.export,
)  # fmt: skip
for command in COMMANDS:
    app.command()(command)
app.add_typer(dead.app, name="dead")


@app.callback()
def _main(verbose: Annotated[bool, typer.Option("--verbose", "-v", help="more log lines")] = False) -> None:
    set_up_logging(verbose)


def main() -> None:
    """Entry point."""
    app()
