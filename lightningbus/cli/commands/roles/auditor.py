"""``lightningbus auditor``: recompute a share of the tokens that engines sampled."""

from pathlib import Path
from typing import Annotated

import typer

from lightningbus.cli.options import (
    BusOption,
    HealthOption,
    SettingsOption,
    exit_on_user_error,
    load_settings,
    require_extra,
)
from lightningbus.run.processes.role_process import run_role
from lightningbus.run.run_directory.discovery import discover_bus


def auditor(
    context: typer.Context,
    model_path: Annotated[Path | None, typer.Option(help="model directory, for the architecture")] = None,
    bus: BusOption = None,
    model: Annotated[str | None, typer.Option(help="name of the model [default: policy]")] = None,
    share: Annotated[float | None, typer.Option(help="share of the rollouts to audit [default: 0.01]")] = None,
    health_address: HealthOption = None,
    settings: SettingsOption = None,
) -> None:
    """Recompute the log-probabilities of sampled tokens, and stop engines that reported other values.

    Every field of the auditor's settings is an option too, such as --tolerance 0.1.
    """
    with require_extra("learner"):
        from lightningbus.auditor import auditor as role
        from lightningbus.auditor.settings import AuditorSettings

    options = {"model_path": model_path, "model": model, "share": share}
    checked = load_settings(
        AuditorSettings, "auditor", settings, context.args, **options, health_address=health_address
    )
    run_role(exit_on_user_error(discover_bus, bus, "auditor"), "auditor", role.run, checked, role.AuditorError)
