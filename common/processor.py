"""Features of this machine's processor."""

from functools import cache
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
FEATURE_LINES = ("flags", "Features")
"""Names of the line with a processor's features: x86's and ARM's."""
BFLOAT16_FEATURES = frozenset(("avx512_bf16", "amx_bf16", "bf16"))


@cache
def read_features() -> frozenset[str]:
    """Return the features that the processor says it has; empty where the kernel does not tell them."""
    lines = CPUINFO.read_text(errors="replace").splitlines() if CPUINFO.exists() else []
    named = (line.partition(":") for line in lines)
    return next((frozenset(value.split()) for name, _, value in named if name.strip() in FEATURE_LINES), frozenset())


def has_bfloat16() -> bool:
    """Return whether the processor has instructions for bfloat16, which others emulate at a tenth of the speed."""
    return not BFLOAT16_FEATURES.isdisjoint(read_features())
