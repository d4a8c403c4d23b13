"""``lightningbus weights export``: write a version as a model directory."""

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

import typer

from lightningbus.cli.options import BusOption, check_names, require_extra, run_async
from lightningbus.run.errors import exit_with


def export(
    where: Annotated[
        list[str],
        typer.Argument(
            metavar="[VERSION] DIR",
            help="number of the version [default: the one that nodes serve], and the directory to write",
        ),
    ],
    model: Annotated[str | None, typer.Option(help="name of the model [default: the run's, if it trains one]")] = None,
    run: Annotated[
        str | None,
        typer.Option(help="run whose version to export, by name or directory; it may have ended [default: the latest]"),
    ] = None,
    base_model: Annotated[
        Path | None,
        typer.Option(
            help="directory of the base model, for its configuration and tokenizer [default: the run's model]"
        ),
    ] = None,
    base_name: Annotated[
        str | None,
        typer.Option(
            help="name of the base model in the model card and adapters [default: its name on the Hub, if known]"
        ),
    ] = None,
    best: Annotated[bool, typer.Option("--best", help="export the version with the best held-out reward")] = False,
    adapter: Annotated[bool, typer.Option("--adapter", help="export LoRA's adapters alone, in PEFT's format")] = False,
    force: Annotated[bool, typer.Option("--force", help="export a version even if it may not be served")] = False,
    push_to_hub: Annotated[
        str | None,
        typer.Option(metavar="REPO", help="also upload the model to this repository on the Hugging Face Hub"),
    ] = None,
    public: Annotated[bool, typer.Option("--public", help="make a new repository on the Hub public")] = False,
    bus: BusOption = None,
) -> None:
    """Write a version as a model directory. transformers and vLLM load it; it is checked against what nodes loaded."""
    version, directory = _parse(where)
    if best and version is not None:
        exit_with("give a version or --best, not both")
    if model is not None:
        check_names(model=model)
    with require_extra("learner"):
        from lightningbus.export.hub import push_to_hub as push
        from lightningbus.export.model_directory import ExportRequest
        from lightningbus.export.run_export import export_run

    request = ExportRequest(
        directory, version, model, base_model, base_name, is_adapter=adapter, is_best=best, is_forced=force
    )
    with redirect_stdout(sys.stderr):  # progress of libraries is no result
        exported = run_async(export_run(request, run, bus))
    print(f"version {exported.version} of run {exported.run_id} is in {directory}")
    if push_to_hub is not None:

        async def upload() -> str:
            return push(directory, push_to_hub, is_public=public)

        with redirect_stdout(sys.stderr):
            address = run_async(upload())
        print(f"uploaded to {address}")


def _parse(where: list[str]) -> tuple[int | None, Path]:
    """Split the arguments into a version, None if absent, and a directory; end the command on anything else."""
    if len(where) == 1 and not where[0].isdecimal():
        return None, Path(where[0])
    if len(where) != 2 or not where[0].isdecimal():
        exit_with("give a version and a directory, or a directory alone: lightningbus weights export 3 my-model")
    return int(where[0]), Path(where[1])
