"""The wait for slow groups, which the next step would put beyond the staleness bound."""

import logging
import time
from collections.abc import Collection, Sequence

from lightningbus.learner.dispatch.dispatcher import Dispatcher
from lightningbus.learner.rollouts.groups import RolloutGroup, in_dispatch_order
from lightningbus.learner.settings.learner import LearnerSettings

log = logging.getLogger(__name__)


class SlowGroups:
    """Decides how long training waits for groups that a dispatcher knows."""

    def __init__(self, dispatcher: Dispatcher, settings: LearnerSettings) -> None:
        self._dispatcher, self._settings = dispatcher, settings
        self._waits_since: float | None = None
        self.awaited: list[str] = []
        """Tasks of the groups that the next step waits for."""

    def choose(self, ready: Sequence[RolloutGroup], closed: Collection[str]) -> Sequence[RolloutGroup]:
        """Choose the groups to train next, in order; return none while training waits for an older one.

        ``closed`` are the tasks that wait for no further rollout, and for no teacher.
        """
        dispatched = self._dispatcher.outstanding_tasks
        if self._settings.staleness.order == "dispatch" and dispatched:
            return in_dispatch_order(ready, dispatched, closed)
        chosen = self._dispatcher.order_by_deadline(ready)[: self._settings.groups_per_step]
        return [] if self.must_be_waited_for({group.task_id for group in chosen}, closed) else chosen

    def must_be_waited_for(self, batch: Collection[str], closed: Collection[str]) -> bool:
        """Return whether a step on this batch would leave groups beyond the bound that may still be waited for.

        ``closed``: as for `choose`.
        """
        is_whole = len(batch) == self._settings.groups_per_step
        self.awaited = self._dispatcher.find_awaited(batch, closed) if is_whole else []
        if not self.awaited:
            self._waits_since = None
            return False
        self._waits_since = self._waits_since or time.monotonic()
        if self.seconds_left != 0:
            return True
        log.warning("training waits no longer for %d slow groups, and will train them late", len(self.awaited))
        self._dispatcher.give_up(self.awaited)
        self.awaited, self._waits_since = [], None
        return False

    @property
    def seconds_left(self) -> float | None:
        """Seconds until slow groups are waited for no longer; None: there are none."""
        if self._waits_since is None:
            return None
        limit = self._settings.staleness.max_wait_seconds
        limit = self._settings.max_group_seconds if limit is None else limit
        return max(0.0, self._waits_since + limit - time.monotonic())
