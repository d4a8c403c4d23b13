"""``lightningbus optimize``: improve an agent's prompts from its rollouts."""

import importlib
import json
from pathlib import Path
from typing import Annotated

import typer

from lightningbus.cli.options import exit_on_user_error, require_extra, run_async, run_until_signal


def optimize(
    config: Annotated[Path, typer.Option("--config", "-c", help="run file with a section `optimize`")],
    resume: Annotated[
        bool, typer.Option("--resume", help="continue the stopped run; nothing is evaluated twice")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the result as a JSON object")] = False,
) -> None:
    """Search for better prompts within a budget of rollouts, and release the best if held-out reward is not worse."""
    with require_extra("optimize"):
        importlib.import_module("gepa")
    from lightningbus.optimize import job
    from lightningbus.optimize.result import OptimizeResult
    from lightningbus.run.errors import exit_with
    from lightningbus.run.settings.run_file import load_run_settings

    settings = exit_on_user_error(load_run_settings, config)
    if settings.optimize is None:
        exit_with(f"{config}: it has no section optimize: docs/prompts.md shows one")
    work = job.run(settings, resume=resume)
    stopping = run_until_signal(work, lambda: f": lightningbus optimize --resume -c {config} goes on")
    result: OptimizeResult = run_async(stopping)
    if as_json:
        print(json.dumps(result.to_figures(), indent=2, ensure_ascii=False))
        return
    for line in result.describe():
        print(line)
