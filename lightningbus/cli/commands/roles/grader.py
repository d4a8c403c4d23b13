"""``lightningbus grader``: give finished rollouts their rewards."""

import typer

from lightningbus.cli.options import (
    BusOption,
    HealthOption,
    SettingsOption,
    exit_on_user_error,
    load_settings,
)
from lightningbus.run.processes.role_process import run_role
from lightningbus.run.run_directory.discovery import discover_bus


def grader(
    context: typer.Context,
    bus: BusOption = None,
    health_address: HealthOption = None,
    settings: SettingsOption = None,
) -> None:
    """Take finished rollouts off the bus, and give them rewards by functions and judges.

    Every field of the grader's settings is an option too, such as --max-attempts 5; runners need --graded true.
    """
    from lightningbus.graders import grader as role
    from lightningbus.graders.errors import GraderError
    from lightningbus.graders.settings import GraderSettings

    checked = load_settings(GraderSettings, "grader", settings, context.args, health_address=health_address)
    run_role(exit_on_user_error(discover_bus, bus, "grader"), "grader", role.run, checked, GraderError)
