"""Features of this machine's processor."""

from functools import cache

from lightningbus.common.processes.procfs import CPUINFO, find_value

FEATURE_LINES = ("flags", "Features")
"""Names of the line with a processor's features: x86's and ARM's."""
BFLOAT16_FEATURES = frozenset(("avx512_bf16", "amx_bf16", "bf16"))


@cache
def read_features() -> frozenset[str]:
    """Return the features that the processor says it has; empty where the kernel does not tell them."""
    return frozenset(word for name in FEATURE_LINES for word in find_value(CPUINFO, name).split())


def has_bfloat16() -> bool:
    """Return whether the processor has instructions for bfloat16, which others emulate at a tenth of the speed."""
    return not BFLOAT16_FEATURES.isdisjoint(read_features())
