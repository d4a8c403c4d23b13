"""``lightningbus inference``: run vLLM behind a gateway that swaps weights."""

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
    with_api_key,
)
from lightningbus.run.processes.role_process import run_role
from lightningbus.run.run_directory.discovery import discover_bus


def inference(
    context: typer.Context,
    model_path: Annotated[Path | None, typer.Option(help="model directory, for architecture and tokenizer")] = None,
    bus: BusOption = None,
    model: Annotated[str | None, typer.Option(help="name of the model in agents' calls [default: policy]")] = None,
    port: Annotated[int | None, typer.Option(help="port of the gateway [default: a free one]")] = None,
    host: Annotated[str | None, typer.Option(help="address of the gateway [default: 127.0.0.1]")] = None,
    advertise_url: Annotated[
        str | None, typer.Option(help="URL at which runners reach the gateway [default: http://host:port]")
    ] = None,
    health_address: HealthOption = None,
    settings: SettingsOption = None,
) -> None:
    """Run vLLM behind a gateway, and load each new weight version while requests are in flight.

    Every field of the node's settings is an option too, such as --max-model-len 4096.
    """
    with require_extra("inference"):
        from lightningbus.inference import node
        from lightningbus.inference.engine.base import EngineError
        from lightningbus.inference.settings import InferenceSettings

    options = {"model_path": model_path, "model": model, "port": port, "host": host, "advertise_url": advertise_url}
    checked = load_settings(
        InferenceSettings, "inference", settings, context.args, **options, health_address=health_address
    )
    at = exit_on_user_error(discover_bus, bus, "inference")
    run_role(at, "inference", node.run, with_api_key(checked, at), EngineError)
