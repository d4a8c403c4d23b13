"""The GPU, its driver and the packages that use it, and what the GPU alone can do."""

import csv
import io
import shutil
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from benchmarks.gpu.context import Context
from benchmarks.results import Result
from lightningbus.inference.engine.vllm_command import has_gpu
from lightningbus.run.machine.hardware import read_gpus, read_hardware, read_versions
from lightningbus.run.preflight.memory_check import GIB, measure_matrix_tflops

QUERY = ("name", "memory.total", "driver_version")
COPY_BYTES = 2**30
NONE = "no GPU here"


class NoGpuError(Exception):
    """This machine cannot run `make gpu`; the text is a sentence that says why."""


def check_gpu() -> None:
    """Raises `NoGpuError` without an NVIDIA GPU that torch can use."""
    if not has_gpu():
        raise NoGpuError(
            "make gpu needs an NVIDIA GPU, and this machine has none: `python -m benchmarks.gpu --dry-run` runs the "
            "same steps with tiny models on its CPU, and `make demo` trains without a GPU"
        )
    import torch

    if not torch.cuda.is_available():
        raise NoGpuError(
            f"make gpu needs a torch that can use the GPU, and {torch.__version__} cannot: `make clean gpu` installs "
            "requirements/gpu.lock"
        )


def read_environment() -> dict[str, Any]:
    """GPU, driver, versions and host; the GPU's fields are empty where there is none."""
    hardware = read_hardware(read_gpus())
    gpus = query_gpus()
    return {
        "gpu": gpus[0]["name"] if gpus else "",
        "num_gpus": len(gpus),
        "gpu_memory": gpus[0]["memory.total"] if gpus else "",
        "driver": gpus[0]["driver_version"] if gpus else "",
        "cpu": hardware.cpu,
        "num_cores": hardware.num_cores,
        "memory_gib": hardware.memory_gib,
        "versions": {**read_versions(), "flash-attn": _version("flash-attn") or "none: sdpa"},
    }


def query_gpus() -> list[dict[str, str]]:
    """The fields of `QUERY` of each GPU, by nvidia-smi; none without it."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    command = [program, f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader"]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    return parse_gpus(completed.stdout) if completed.returncode == 0 else []


def parse_gpus(text: str) -> list[dict[str, str]]:
    """Lines of nvidia-smi. Pure."""
    rows = csv.reader(io.StringIO(text), skipinitialspace=True)
    return [dict(zip(QUERY, row, strict=True)) for row in rows if len(row) == len(QUERY)]


def measure(context: Context) -> None:
    """What bounds all other figures: memory, a matrix product, a copy to the GPU."""
    import torch

    on_gpu = torch.cuda.is_available()
    memory = torch.cuda.get_device_properties(0).total_memory / GIB if on_gpu else None
    note = f"CUDA {torch.version.cuda}, capability {torch.cuda.get_device_capability()}" if on_gpu else NONE
    context.report(Result("memory of the GPU", memory, "GiB", note=note))
    size = "8192 x 8192 in bfloat16" if on_gpu else "1024 x 1024 in float32, by the CPU"
    context.report(Result("matrix product", measure_matrix_tflops(on_gpu), "TFLOP/s", note=size))
    rate = _measure_copy() if on_gpu else None
    context.report(Result("copy from pinned memory to the GPU", rate, "GB/s", note="" if on_gpu else NONE))


def _measure_copy() -> float:
    import torch

    source = torch.empty(COPY_BYTES, dtype=torch.uint8, pin_memory=True)
    target = torch.empty_like(source, device="cuda", pin_memory=False)
    times = []
    for _ in range(3):
        torch.cuda.synchronize()
        started = time.perf_counter()
        target.copy_(source)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return COPY_BYTES / 1e9 / min(times)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
