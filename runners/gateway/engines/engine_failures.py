"""Engines that failed at one request, which must not be tried on all of them in turn."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from lightningbus.schemas.fleet import Heartbeat

MAX_FAILURES = 2
REST_SECONDS = 1.0
"""Seconds before a failed engine is asked again: by then its node knows whether it is alive."""
DEATH = "EngineCore encountered an issue"
"""Beginning of vLLM's error when its core has died."""


class EnginesFailedError(Exception):
    """A request at which engines failed, and which is not asked again; ``is_deadly``: they died, or broke off."""

    def __init__(self, message: str, is_deadly: bool) -> None:
        super().__init__(message)
        self.is_deadly = is_deadly


@dataclass(slots=True)
class EngineFailures:
    """The engines at which one call failed before its first token, and their errors."""

    _broken: dict[str, str] = field(default_factory=dict)
    """Errors of engines that died or whose connection broke, by engine."""
    _errors: list[str] = field(default_factory=list)
    """Errors reported by engines that are alive."""
    _failed_at: dict[str, float] = field(default_factory=dict)
    """Time of the last failure by engine, in the event loop's clock."""

    def add_break(self, node: Heartbeat, problem: str) -> None:
        """Record that the engine died or its connection broke, which may happen often to a live engine."""
        self._broken[_engine_of(node)] = f"{node.id}: {problem}"
        self._failed_at[_engine_of(node)] = asyncio.get_running_loop().time()

    def add_error(self, node: Heartbeat, message: str) -> None:
        """Record that the engine answered with a failure."""
        if message.startswith(DEATH):
            self.add_break(node, message)
        else:
            self._errors.append(f"{node.id}: {message}")
            self._failed_at[_engine_of(node)] = asyncio.get_running_loop().time()

    def check(self) -> None:
        """Raise `EnginesFailedError` once it is enough."""
        for failures, is_deadly in ((list(self._broken.values()), True), (self._errors, False)):
            if len(failures) >= MAX_FAILURES:
                what = "broke off" if is_deadly else "failed"
                places = "; ".join(failures)
                raise EnginesFailedError(
                    f"{MAX_FAILURES} engines {what} at this request, so it ends here: {places}", is_deadly
                )

    def by_preference(self, nodes: Sequence[Heartbeat]) -> tuple[Sequence[Heartbeat], Sequence[Heartbeat]]:
        """Split nodes into those whose engine has not failed this call, and rested ones to ask if no other can."""
        if not self._failed_at:
            return nodes, ()
        fresh = [node for node in nodes if _engine_of(node) not in self._failed_at]
        rested_at = asyncio.get_running_loop().time() - REST_SECONDS
        return fresh, [node for node in nodes if self._failed_at.get(_engine_of(node), rested_at + 1) <= rested_at]


def _engine_of(node: Heartbeat) -> str:
    """Return the id of a node's engine process; a restarted engine has another."""
    return str(node.status.get("engine_id") or node.id)
