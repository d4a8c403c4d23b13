"""vLLM's plugin entry point: runs in every vLLM process before the engine is made."""

import ctypes
import logging
import platform

log = logging.getLogger(__name__)

BACKEND = "lightningbus"
"""Name of our weight-transfer engine in ``--weight-transfer-config``."""

ARCH_PRCTL = 158
ARCH_REQ_XCOMP_PERM = 0x1023
XFEATURE_XTILEDATA = 18


def register() -> None:
    """Ask for the AMX tiles, and make our weight-transfer engine known."""
    request_amx()
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if BACKEND not in WeightTransferEngineFactory._registry:  # vLLM loads plugins more than once in a process
        WeightTransferEngineFactory.register_engine(
            BACKEND, "inference.engine.weight_transfer", "LightningbusWeightEngine"
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
