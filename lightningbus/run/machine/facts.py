"""Facts for `lightningbus doctor`: hardware, packages, directories and ports.

Directories and ports are tested by writing a file and by listening.
"""

import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from lightningbus.bus.embedded.nats_server import port_is_free
from lightningbus.common.processor import read_features
from lightningbus.common.unix_sockets import PathTooLongError, private_directory
from lightningbus.run.machine.checks import PACKAGES, Facts
from lightningbus.run.machine.hardware import GIB, read_gpus, read_hardware, read_versions
from lightningbus.run.machine.installation import describe_missing_parts

PORTS = {4222: "bus", 8123: "ClickHouse"}
ASK_AMX = "import sys; from lightningbus.inference.engine.vllm_plugin import request_amx; sys.exit(not request_amx())"
"""Code that requests AMX in a process of its own, since the permission stays with the process that requests it."""


def read_facts(runs: Path) -> Facts:
    """Return the facts of this machine for a run below ``runs``; takes about two seconds."""
    existing = next(path for path in (runs.absolute(), *runs.absolute().parents) if path.exists())
    gpus, versions = read_gpus(), read_versions(PACKAGES)
    hardware = read_hardware(gpus)
    has_amx = "amx_tile" in read_features()
    return Facts(
        platform=sys.platform,
        python=sys.version_info[:2],
        num_cores=hardware.num_cores,
        memory_gib=hardware.memory_gib,
        gpus=gpus.models,
        driver=gpus.driver,
        gpu_problem=gpus.problem,
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
        versions={name: versions.get(name) for name in PACKAGES},
    )


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
