"""The gate before a training step: groups without signal are left out, and others dispatched in their places."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from lightningbus.bus.client import Bus
from lightningbus.common.observability.faults import count_fault
from lightningbus.learner.accounting import ExcludedRollouts
from lightningbus.learner.batching.advantages import drop_error
from lightningbus.learner.batching.batch import BatchBuilder
from lightningbus.learner.checkpointing.step_committer import InThread
from lightningbus.learner.dispatch.decisions import publish_without_signal
from lightningbus.learner.dispatch.dispatcher import Dispatcher
from lightningbus.learner.dispatch.group_tasks import find_input_id
from lightningbus.learner.errors import as_learner_error
from lightningbus.learner.rollouts.assembler import training_reward
from lightningbus.learner.rollouts.groups import GroupBuffer, RolloutGroup
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.settings.own_function import OwnFunctionError

log = logging.getLogger(__name__)


@dataclass
class GroupGate:
    """Looks at each ready group once, and adds the results of trained and replaced groups to those of their tasks.

    What it sets aside is on no checkpoint before the results are: a learner that resumes meets both again, or neither.
    """

    bus: Bus
    settings: LearnerSettings
    dispatcher: Dispatcher
    excluded: ExcludedRollouts
    builder: BatchBuilder
    in_thread: InThread
    _admitted: set[str] = field(default_factory=set)
    """Tasks of ready groups that have a signal."""
    _num_replaced: int = 0
    """Groups set aside since the last step."""

    async def set_aside(self, groups: GroupBuffer) -> None:
        """Drop ready groups that replace one of another learner, and set aside those without signal.

        No ready group is left unchecked, also of those that end meanwhile. Raises `LearnerError` for an error in a
        user's function.
        """
        self._admitted &= {group.task_id for group in groups.ready}
        while True:
            groups.drop(self.dispatcher.find_replacements_of_others(groups.ready))
            unchecked = (group for group in groups.ready if group.task_id not in self._admitted)
            group = next(unchecked, None)
            if group is None or not self._can_replace:
                return
            if await self._has_signal(group):
                self._admitted.add(group.task_id)
            else:
                await self._replace(group)

    @property
    def _can_replace(self) -> bool:
        limit = self.settings.max_replaced_per_step
        return self.settings.task_selection.replace_without_signal and self._num_replaced < limit

    async def _replace(self, group: RolloutGroup) -> None:
        self._num_replaced += 1
        if self._num_replaced == self.settings.max_replaced_per_step:
            log.warning(
                "%d groups of a step are without signal: it trains further ones as they are", self._num_replaced
            )
        self.excluded.set_aside(group)
        self.add_results([group])
        self.dispatcher.remove([group.task_id])
        await publish_without_signal(self.bus, self.settings, group.task_id, self._read_rewards(group))

    def add_results(self, groups: Iterable[RolloutGroup]) -> None:
        """Add the rewards of groups that are trained or set aside to the results of their tasks."""
        for group in groups:
            self.dispatcher.selector.add(find_input_id(group.task_id, self.settings.run), self._read_rewards(group))

    def end_step(self) -> dict[str, float]:
        """Return the metrics of the step that ends, and begin to count anew."""
        num_replaced, self._num_replaced = self._num_replaced, 0
        if not self.settings.task_selection.replace_without_signal:
            return {}
        update_scale = 1 + num_replaced / self.settings.groups_per_step
        return {"groups/replaced": num_replaced, "groups/update_scale": update_scale}

    async def _has_signal(self, group: RolloutGroup) -> bool:
        try:
            return bool(await self.in_thread(self.builder.has_signal, group))
        except OwnFunctionError as error:
            raise as_learner_error(error) from error
        except Exception as error:  # the batch meets it again, and says which group is at fault
            count_fault("advantages of a group are not computed before its step", error)
            return True

    def _read_rewards(self, group: RolloutGroup) -> list[float]:
        rewards = (training_reward(rollout, self.settings.failed_rollouts) for rollout in group.rollouts)
        return [drop_error(reward) for reward in rewards if reward is not None]
