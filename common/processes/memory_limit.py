"""The limit of a shell on the memory of its processes, which a library seldom names when it ends."""

import resource

GIB = 2**30


def describe_memory_limit() -> str:
    """Return a clause about the limit of this process and its children; empty without one."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return ""
    return f"; memory is limited to {limit / GIB:.1f} GiB here (ulimit -v): raise the limit, or take it away"
