"""vLLM's plugin entry point: runs in every vLLM process before the engine is made."""

import ctypes
import logging
import math
import platform
import time
from typing import Any

log = logging.getLogger(__name__)

BACKEND = "lightningbus"
"""Name of our weight-transfer engine in ``--weight-transfer-config``."""

ARCH_PRCTL = 158
ARCH_REQ_XCOMP_PERM = 0x1023
XFEATURE_XTILEDATA = 18

RECHECK_MS = 1
"""Milliseconds that a reader of vLLM's queue sleeps while messages are frequent."""


def register() -> None:
    """Ask for the AMX tiles, let idle processes sleep on a CPU, and make our weight-transfer engine known."""
    request_amx()
    stop_spinning()
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if BACKEND not in WeightTransferEngineFactory._registry:  # vLLM loads plugins more than once in a process
        WeightTransferEngineFactory.register_engine(
            BACKEND, "lightningbus.inference.engine.worker.weight_transfer", "LightningbusWeightEngine"
        )


def request_amx() -> bool:
    """Ask Linux for the AMX tile registers; without it the first small matrix product ends in SIGILL.

    https://docs.kernel.org/arch/x86/xstate.html; returns whether the permission is there. Harmless elsewhere.
    """
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    granted: int = libc.syscall(ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)
    return granted == 0


def stop_spinning() -> bool:
    """Let vLLM's processes sleep while they wait for each other, on a CPU; return whether they do.

    For a second after each message, a reader of vLLM's shared-memory queue calls `sched_yield` without end, on cores
    that other processes need to compute. Here it waits for the writer's notification, and looks again each millisecond:
    of two notifications in quick succession the second is lost.
    """
    from vllm.distributed.device_communicators import shm_broadcast
    from vllm.platforms import current_platform

    condition = getattr(shm_broadcast, "SpinCondition", None)
    if not current_platform.is_cpu() or condition is None:
        return False
    if condition.wait is not wait_for_message:
        condition.wait_idle, condition.wait = condition.wait, wait_for_message
    return True


def wait_for_message(condition: Any, timeout_ms: int | None = None) -> None:
    """Wait as `SpinCondition.wait`, without spinning: by the millisecond in the second after a message."""
    last_read = condition.last_read
    is_busy = time.monotonic() <= last_read + condition.busy_loop_s
    condition.last_read = -math.inf
    try:
        condition.wait_idle(RECHECK_MS if is_busy else timeout_ms)
    finally:
        condition.last_read = last_read
