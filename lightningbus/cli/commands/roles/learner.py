"""``lightningbus learner``: train with verl."""

from pathlib import Path
from typing import Annotated

import typer

from lightningbus.cli.options import (
    BusOption,
    GpuMemoryOption,
    GpuTflopsOption,
    HealthOption,
    RanksOption,
    SettingsOption,
    exit_on_user_error,
    load_settings,
    require_extra,
)
from lightningbus.common.observability.logs import log_standard_output
from lightningbus.run.errors import exit_with
from lightningbus.run.processes.role_process import EX_TEMPFAIL, run_role
from lightningbus.run.run_directory.discovery import discover_bus
from lightningbus.tasks.errors import TaskFileError


def learner(
    context: typer.Context,
    model_path: Annotated[Path | None, typer.Option(help="model directory to start from")] = None,
    tasks: Annotated[Path | None, typer.Option(help="file of training tasks to dispatch")] = None,
    max_steps: Annotated[int | None, typer.Option(help="number of training steps [default: 100]")] = None,
    run: Annotated[str | None, typer.Option(help="name of the run [default: run]")] = None,
    bus: BusOption = None,
    checkpoint_dir: Annotated[
        Path | None, typer.Option(help="directory of the checkpoints [default: runs/checkpoints]")
    ] = None,
    health_address: HealthOption = None,
    settings: SettingsOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print the memory and time that training needs, and do not train")
    ] = False,
    ranks: RanksOption = 1,
    gpu_memory: GpuMemoryOption = None,
    gpu_tflops: GpuTflopsOption = None,
) -> None:
    """Train on finished rollouts with verl, and publish each step as a weight version.

    Every field of the learner's settings is an option too, such as --group-size 4 or --actor.optim.lr 1e-4. With
    several GPUs or processes: torchrun --nproc-per-node 2 -m lightningbus learner ...
    """
    with require_extra("learner"):
        from lightningbus.learner import errors
        from lightningbus.learner import learner as role
        from lightningbus.learner.checkpointing import checkpoint
        from lightningbus.learner.settings.learner import LearnerSettings
        from lightningbus.learner.settings.loss_parts import TeacherList
        from lightningbus.learner.training import distributed

    options = {
        "model_path": model_path,
        "tasks": tasks,
        "max_steps": max_steps,
        "run": run,
        "checkpoint_dir": checkpoint_dir,
    }
    checked = load_settings(
        LearnerSettings, "learner", settings, context.args, **options, health_address=health_address
    )
    if dry_run:
        from lightningbus.run.preflight.job_checks import check_alone
        from lightningbus.run.preflight.memory_check import Target

        target = Target(ranks, gpu_memory, gpu_tflops)
        print("\n".join(exit_on_user_error(lambda: list(check_alone(checked, target)))))
        return
    if distributed.is_worker_rank():
        log_standard_output()
        try:
            role.run_worker(checked)
        except errors.LearnerError as error:
            exit_with(error)
        return
    expected = (errors.LearnerError, checkpoint.CheckpointError, TaskFileError)
    at = exit_on_user_error(discover_bus, bus, "learner", model=checked.model)
    teachers = [
        each.model_copy(update={"api_key_file": at.inference_api_key})
        if each.model is not None and each.api_key_file is None
        else each
        for each in checked.teachers
    ]
    if teachers:
        teacher = TeacherList(teachers) if isinstance(checked.teacher, TeacherList) else teachers[0]
        checked = checked.model_copy(update={"teacher": teacher})
    try:
        run_role(at, "learner", role.run, checked, *expected)
    except errors.LearnerRestart as restart:
        exit_with(restart, EX_TEMPFAIL)
