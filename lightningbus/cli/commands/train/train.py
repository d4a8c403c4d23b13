"""``lightningbus train``: run a training job from its first evaluation to its last."""

import importlib
from pathlib import Path
from typing import Annotated

import typer

from lightningbus.cli.options import (
    GpuMemoryOption,
    GpuTflopsOption,
    RanksOption,
    exit_on_user_error,
    require_extra,
    run_async,
    run_until_signal,
)
from lightningbus.run.errors import exit_with


def train(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="with --resume: run to continue, by name or directory [default: -c's]"),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            help="run file with a learner; with NAME it wins over the run's own settings",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="only check the run file, servers, model, engine and agent; run the agent once"),
    ] = False,
    engine: Annotated[
        bool,
        typer.Option(
            help="with --dry-run: start vLLM and compare what it computes with the learner, unless --no-engine"
        ),
    ] = True,
    ranks: RanksOption = 1,
    gpu_memory: GpuMemoryOption = None,
    gpu_tflops: GpuTflopsOption = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="continue the stopped run instead of moving it aside")
    ] = False,
) -> None:
    """Run a training job to its end: held-out reward before, training, held-out reward after, figures and a picture."""
    with require_extra("demo"):
        importlib.import_module("matplotlib")  # the picture comes last, and is not to be what fails
    from lightningbus.run.jobs import train_job
    from lightningbus.run.preflight import job_checks
    from lightningbus.run.preflight.memory_check import Target
    from lightningbus.run.results.run_record import identify_record
    from lightningbus.run.results.train_result import report
    from lightningbus.run.run_directory.recorded_settings import load_named_run
    from lightningbus.run.settings.hub_models import find_cached_models
    from lightningbus.run.settings.run_file import load_run_settings

    if name is not None and not resume:
        exit_with(f"{name}: a run is continued by `lightningbus train --resume {name}`; a run file is given by -c")
    if name is not None:
        settings = exit_on_user_error(load_named_run, name, config)
    elif config is not None:
        settings = find_cached_models(exit_on_user_error(load_run_settings, config))
    else:
        exit_with("give a run file by -c, or --resume with the name of a run")
    job = exit_on_user_error(job_checks.parse_job, settings, str(config or name))

    rounds = None
    if settings.optimizes_in_turns:
        with require_extra("optimize"):
            importlib.import_module("gepa")
        from lightningbus.optimize.training_rounds import training_rounds

        rounds = exit_on_user_error(training_rounds, settings)

    def look() -> None:
        target = Target(ranks, gpu_memory, gpu_tflops)
        for line in job_checks.run_checks(settings, job, target, loads_models=True, starts_engine=engine):
            print(line)

    if dry_run:
        exit_on_user_error(look)
        return
    directory = settings.runs / settings.name
    earlier = identify_record(directory)

    def advise() -> str:
        if not resume and identify_record(directory) == earlier:
            return ": nothing had started, and no run was changed"
        where = [*([name] if name is not None else []), *([f"-c {config}"] if config is not None else [])]
        return f": lightningbus train --resume {' '.join(where)} goes on"

    work = train_job.run(settings, job, resume=resume, rounds=rounds)
    report(run_async(run_until_signal(work, advise)))
