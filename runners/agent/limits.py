"""Limits on an agent's processes, and diagnosis of the limit that ended one."""

import re
import resource
import signal
from dataclasses import dataclass

from lightningbus.common.processes import procfs
from lightningbus.runners.settings import RunnerSettings

GIB = 2**30
ERROR_PATTERNS = (
    (re.compile(r"^MemoryError\b|Cannot allocate memory"), "memory_limit_gib"),
    (re.compile(r"\[Errno 27\]|File too large|EFBIG"), "max_file_gib"),
    (re.compile(r"\[Errno 24\]|Too many open files|EMFILE"), "max_open_files"),
)
"""Signs of each limit in an error's text."""
SIGNALS = {-signal.SIGXFSZ: "max_file_gib", -signal.SIGABRT: "memory_limit_gib", -signal.SIGSEGV: "memory_limit_gib"}
"""Signs of each limit in an exit status: a program out of memory usually aborts by itself."""


@dataclass(frozen=True, slots=True)
class ResourceLimits:
    """Limits of one agent process and all its descendants; None: those of the runner."""

    memory_limit_gib: float | None = None
    max_file_gib: float | None = None
    max_open_files: int | None = None
    max_processes: int | None = None

    @classmethod
    def from_settings(cls, settings: RunnerSettings) -> "ResourceLimits":
        """Read the limits from a runner's settings."""
        return cls(settings.memory_limit_gib, settings.max_file_gib, settings.max_open_files, settings.max_processes)

    @property
    def is_watched(self) -> bool:
        """Whether there is one that the kernel does not hold for all processes together."""
        return self.memory_limit_gib is not None or self.max_processes is not None

    @property
    def memory_sentence(self) -> str:
        """A sentence about an agent that was ended for its memory."""
        return "; ".join(filter(None, ("the agent took too much memory", self._describe("memory_limit_gib"))))

    def kernel_limits(self) -> dict[str, int]:
        """List the kernel's limits for each process, by their names in the module ``resource``."""
        bounds = {
            "RLIMIT_CORE": 0,
            "RLIMIT_FSIZE": self.max_file_gib and self.max_file_gib * GIB,
            "RLIMIT_NOFILE": self.max_open_files,
            "RLIMIT_DATA": self.memory_limit_gib and self.memory_limit_gib * GIB,  # last: the others take memory too
        }
        return {name: int(bound) for name, bound in bounds.items() if bound is not None}

    def apply(self) -> None:
        """Set the kernel's limits for each process, in the child before the agent's program starts."""
        for name, bound in self.kernel_limits().items():
            which = getattr(resource, name)
            hard = resource.getrlimit(which)[1]
            most = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
            resource.setrlimit(which, (most, most))

    def find_violation(self, head: int) -> str:
        """Check all processes from ``head`` down together: return a sentence about an exceeded limit, else nothing."""
        tree = [pid for pid in (head, *procfs.descendants(head)) if procfs.is_alive(pid)]
        if self.max_processes is not None and len(tree) > self.max_processes:
            return f"the agent had {len(tree)} processes; {self._describe('max_processes')}"
        if self.memory_limit_gib is None or sum(map(procfs.rss_bytes, tree)) <= self.memory_limit_gib * GIB:
            return ""  # Sums of RSS count shared pages more than once, and take no time.
        memory_gib = procfs.total_bytes(tree) / GIB
        if memory_gib > self.memory_limit_gib:
            return f"the agent held {memory_gib:.2f} GiB in {len(tree)} processes; {self._describe('memory_limit_gib')}"
        return ""

    def explain_error(self, error: str) -> str:
        """Explain which limit caused an agent's error, in a sentence; empty if none."""
        return next(
            (sentence for sign, name in ERROR_PATTERNS if sign.search(error) and (sentence := self._describe(name))), ""
        )

    def explain_exit(self, code: int | None) -> str:
        """Describe a process's exit, and the limit that may explain it."""
        number = (
            128 - code if code is not None and code > 128 else code
        )  # the form in which a sandbox passes on a signal
        sentence = self._describe(SIGNALS.get(number or 0, ""))
        return f"its process ended with {code}" + (f"; {sentence}" if sentence else "")

    def _describe(self, name: str) -> str:
        most = getattr(self, name, None)
        return f"the limit is {name}: {most:g}" if most is not None else ""
