"""Progress of all learners of a run in dispatching: one message on the bus, replaced by compare-and-set."""

import hashlib
import json
import secrets
import time
from collections.abc import Collection, Mapping, Sequence

from nats.js.errors import NotFoundError

from lightningbus.bus.client import Bus
from lightningbus.bus.errors import FencedError
from lightningbus.learner.errors import LearnerError
from lightningbus.learner.settings.learner import SHARED_SETTINGS, TASK_LIMITS, LearnerSettings
from lightningbus.schemas import subjects
from lightningbus.schemas.codec import decode
from lightningbus.schemas.training import DispatchMark
from lightningbus.tasks.task_loading import TaskInput


class RunDispatch:
    """The count of groups that the learners of a run have dispatched.

    Learners of one run process the same tasks in the same order. The first with room dispatches the next group, and
    every learner trains its own calls of it.
    """

    def __init__(self, bus: Bus, settings: LearnerSettings, task_inputs: Sequence[TaskInput]) -> None:
        self._bus, self._run, self._model = bus, settings.run, settings.model
        self.subject, self.announced_on = subjects.dispatch_mark(settings.run), subjects.dispatched(settings.run)
        self._max_group_seconds = settings.max_group_seconds
        self._settings_sha256 = hash_shared_settings(settings, task_inputs)
        self._tasks_sha256 = hash_shared_settings(settings, task_inputs, but=TASK_LIMITS)
        self._sequence = 0
        self._groups_by_model: Mapping[str, int] = {}
        self.num_groups = 0
        """Number of groups at the last read."""
        self.marked_at_ns = 0
        """Time at which the last group was dispatched."""

    async def refresh(self, *, from_leader: bool = False) -> int:
        """Look, and return the count; raises `LearnerError` if the run's tasks follow from other settings.

        ``from_leader``: ask the stream's leader; any other server of a cluster may lag.
        """
        try:
            message = await self._bus.js.get_last_msg(subjects.DISPATCH, self.subject, direct=not from_leader)
        except NotFoundError:
            self._sequence = 0
            return self.num_groups
        self._sequence = int(message.seq or 0)
        mark = decode(DispatchMark, message.data or b"")
        is_alone = mark.groups_by_model.keys() <= {self._model}
        if mark.settings_sha256 != self._settings_sha256 and not (is_alone and mark.tasks_sha256 == self._tasks_sha256):
            raise LearnerError(self._describe_difference(mark))
        self.num_groups = max(self.num_groups, mark.num_groups)
        self._groups_by_model = mark.groups_by_model
        self.marked_at_ns = mark.marked_at_ns
        return self.num_groups

    def _describe_difference(self, mark: DispatchMark) -> str:
        is_alone = mark.groups_by_model.keys() == {self._model}
        fixed = SHARED_SETTINGS - TASK_LIMITS if is_alone else SHARED_SETTINGS
        names = ", ".join(sorted(fixed | {"tasks", "task_model"}))
        if self._model in mark.groups_by_model:  # it was under the mark's settings itself
            return (
                f"run {self._run!r} was begun with other tasks or settings than this learner of {self._model!r} has: "
                f"give it the former ones, or begin a run of another name; none of these may change: {names}"
            )
        return f"another learner of run {self._run!r} dispatches other tasks: learners of a run have the same {names}"

    @property
    def num_by_others(self) -> int:
        """Groups that learners of other models dispatched, by the last read."""
        return sum(count for model, count in self._groups_by_model.items() if model != self._model)

    def count_ended(self, num_dispatched: int, num_by_others: int) -> int:
        """Count the groups that others dispatched beyond the given numbers, if all of them have ended."""
        if time.time() - self.marked_at_ns / 1e9 <= self._max_group_seconds:
            return 0
        return min(max(0, self.num_by_others - num_by_others), max(0, self.num_groups - num_dispatched))

    async def advance(self, num_groups: int) -> None:
        """Raise the count after this learner published a group; a greater count stays.

        Raises as `Bus.publish`, and as `refresh`.
        """
        while num_groups > self.num_groups:
            num_own = self._groups_by_model.get(self._model, 0) + 1
            mark = DispatchMark(
                run_id=self._run,
                num_groups=num_groups,
                groups_by_model={**self._groups_by_model, self._model: num_own},
                settings_sha256=self._settings_sha256,
                tasks_sha256=self._tasks_sha256,
                marked_at_ns=time.time_ns(),
            )
            msg_id = f"dispatch:{self._run}:{num_groups}:{secrets.token_hex(8)}"
            try:
                self._sequence = await self._bus.publish(self.subject, mark, msg_id=msg_id, expect_last=self._sequence)
            except FencedError:
                await self.refresh(from_leader=True)
                continue
            self.num_groups, self.marked_at_ns = num_groups, mark.marked_at_ns
            self._groups_by_model = mark.groups_by_model


def hash_shared_settings(
    settings: LearnerSettings, task_inputs: Sequence[TaskInput], *, but: Collection[str] = ()
) -> str:
    """Hash the settings that learners of one run must share, ``but`` left out."""
    fields = settings.model_dump(mode="json", include=SHARED_SETTINGS - set(but)) | {"task_model": settings.main_model}
    fields["task_sets"] = [[each.name, each.weight, each.group_size, each.agent] for each in settings.task_sets]
    digest = hashlib.sha256(json.dumps(fields, sort_keys=True).encode())
    for task_input in task_inputs:
        digest.update(task_input.id.encode() + b"\0")
    return digest.hexdigest()
