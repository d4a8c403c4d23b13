"""Requests for a grade that are graded together: one alone, or the rollouts of a task that are compared."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from lightningbus.schemas.grading import GradingRequest


@dataclass(eq=False, slots=True)
class OpenGroup:
    """Requests that are graded together."""

    requests: list[GradingRequest] = field(default_factory=list)
    errors: "asyncio.Future[dict[str, str]]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """Reasons why grading failed, by execution, once the ends of all are published."""
    timer: asyncio.TimerHandle | None = None

    @property
    def is_complete(self) -> bool:
        """Whether every rollout of the task has ended."""
        rollouts = {request.ending.rollout_id for request in self.requests}
        return len(rollouts) >= self.requests[0].ending.group_size


class OpenGroups:
    """Collects requests; ``close`` is called with a group when it is complete, or nothing more came for its time."""

    def __init__(self, compares_pairs: bool, timeout_seconds: float, close: Callable[[OpenGroup], None]) -> None:
        self._compares_pairs, self._timeout_seconds, self._close = compares_pairs, timeout_seconds, close
        self._groups: dict[tuple[str, str], OpenGroup] = {}

    def add(self, request: GradingRequest) -> OpenGroup:
        """Put a request into its group; one that came before, and is delivered again, is there once."""
        batch = request.ending
        key = (batch.run_id, batch.task_id if self._compares_pairs else batch.execution_id)
        group = self._groups.setdefault(key, OpenGroup())
        if all(other.ending.execution_id != batch.execution_id for other in group.requests):
            group.requests.append(request)
        if group.timer is not None:
            group.timer.cancel()
        if not self._compares_pairs or group.is_complete:
            self._end(key)
        else:
            group.timer = asyncio.get_running_loop().call_later(self._timeout_seconds, self._end, key)
        return group

    def _end(self, key: tuple[str, str]) -> None:
        self._close(self._groups.pop(key))
