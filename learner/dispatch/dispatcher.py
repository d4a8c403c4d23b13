"""Training tasks onto the bus: as many as the staleness bound admits, and no sooner than runners can take them."""

import asyncio
import itertools
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from contextlib import suppress

from msgspec.structs import replace
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from lightningbus.bus.client import Bus
from lightningbus.bus.errors import BusError
from lightningbus.learner.dispatch.decisions import publish_selection, refuse_others
from lightningbus.learner.dispatch.dispatch_mark import RunDispatch
from lightningbus.learner.dispatch.group_tasks import GroupTasks
from lightningbus.learner.dispatch.lost_tasks import LostTasks
from lightningbus.learner.dispatch.outstanding import OutstandingGroups
from lightningbus.learner.dispatch.pacing import DispatchedGroup, find_awaited, oldest_first, order_by_deadline
from lightningbus.learner.dispatch.staleness_bound import StalenessBound
from lightningbus.learner.dispatch.task_queue import TaskQueue
from lightningbus.learner.rollouts.groups import RolloutGroup
from lightningbus.learner.selection.selector import TaskSelector
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.schemas.codec import DecodeError
from lightningbus.schemas.tasks import Task
from lightningbus.tasks.task_loading import TaskInput
from lightningbus.tasks.task_publisher import TaskPublisher, build_record

log = logging.getLogger(__name__)

MAX_REPLACEMENTS = 3
"""Groups of one task that may come to nothing before another task takes its place."""
QUEUE_POLL_SECONDS = 0.1
"""Seconds between two checks whether runners have taken the queued tasks."""


class Dispatcher:
    """Publishes groups; `wake` is called whenever more may be admitted than before."""

    def __init__(
        self,
        bus: Bus,
        task_inputs: Sequence[TaskInput],
        settings: LearnerSettings,
        num_dispatched: int = 0,
        served_version: Callable[[], int | None] = lambda: None,
        closed: Container[str] = (),
        on_surplus: Callable[[], None] = lambda: None,
        record: Callable[[DispatchedGroup, int], None] = lambda group, num_by_others: None,
        selector: TaskSelector | None = None,
        on_published: Callable[[int], None] = lambda sequence: None,
    ) -> None:
        """Prepare to dispatch; ``served_version`` returns the oldest version that nodes serve, None without nodes.

        ``closed`` are the tasks that wait for no further rollout. ``on_surplus`` is called when `surplus` has grown.
        ``record`` keeps a group and `num_by_others` for `restore`: whenever it is new, and before and after its tasks
        are published. ``selector`` chooses tasks; None: one without earlier results. ``on_published`` is called with
        the sequence of the last task in its stream, after tasks are published.
        """
        self._on_surplus, self._record, self._on_published = on_surplus, record, on_published
        self._task_inputs, self._settings, self._closed = task_inputs, settings, closed
        self._publisher = TaskPublisher(bus)
        self._queues = {agent: TaskQueue(bus, agent) for agent in settings.agents.values()}
        self._bound = StalenessBound(settings, served_version)
        self.selector = selector or TaskSelector(task_inputs, settings)
        """The choice of tasks by their results."""
        self._group_tasks = GroupTasks(task_inputs, settings, self.selector)
        self._bus, self._run = bus, RunDispatch(bus, settings, task_inputs)
        self._outstanding = OutstandingGroups()
        self._groups = self._outstanding.by_task
        self._lost = LostTasks()
        self._num_adopted = 0  # groups of others, less the surplus
        self._served_at_looks: deque[int] = deque(maxlen=2)  # at the last looks that found groups of others
        self._is_mark_new = False
        self._wake = asyncio.Event()
        self._pauses: Mapping[str, float] = {}  # by the name of a task set
        self._dispatched_at: dict[str, float] = {}
        self._restored_version = 0  # the newest under which a restored group went out
        self.num_dispatched = num_dispatched
        """Groups of the run that this learner knows to be dispatched, without replacements: the next one's number."""
        self.num_by_others = 0
        """Groups among them that other learners of the run dispatched."""

    async def restore(self, groups: Iterable[DispatchedGroup], num_by_others: int = 0) -> None:
        """Restore the groups that were dispatched before and are neither trained nor dropped.

        All later groups of the run are adopted; ``num_by_others`` is how many groups others had dispatched by then.
        Raises `LearnerError` as `RunDispatch`.
        """
        for group in groups:
            self._restored_version = max(self._restored_version, group.served_version or 0)
            self._groups[(await self._group_tasks.make(group))[0].id] = replace(group)
        self.num_by_others = num_by_others
        if self._task_inputs:
            num_groups = await self._run.refresh(from_leader=True)
            num_ended = self._run.count_ended(self.num_dispatched, num_by_others)
            self.num_dispatched, self.num_by_others = self.num_dispatched + num_ended, num_by_others + num_ended
            # Nodes have served no older version since the last group that is known, and never one beyond the bound.
            oldest = max(self._restored_version, self._bound.version - self._settings.max_staleness)
            await self._adopt(num_groups - self.num_dispatched, min(self._bound.served, oldest))

    def requeue(self, groups: Mapping[str, DispatchedGroup], ended: Mapping[str, Container[int]]) -> None:
        """Restore outstanding groups by task; ``ended`` are samples by task, in case the bus has lost some."""
        self._groups.update(groups)
        if self._lost.nonce:
            self.dispatch_again(ended, self._lost.nonce)
        self._wake.set()

    def find_group(self, task: str) -> DispatchedGroup | None:
        """Return a copy of an outstanding group, by its task."""
        return self._outstanding.copy(task)

    def outstanding(self, trained: Container[str] = ()) -> list[DispatchedGroup]:
        """List the groups that are dispatched and neither dropped nor ``trained``, in the order of dispatch."""
        return self._outstanding.copies(trained)

    @property
    def outstanding_tasks(self) -> Collection[str]:
        """Tasks of the outstanding groups, in the order of dispatch; a group that a pause holds back has no place."""
        if not self._pauses:
            return self._groups.keys()
        groups = self._groups.items()
        return [task for task, each in groups if each.served_version is not None or not self._is_paused(each.number)]

    @property
    def is_behind(self) -> bool:
        """Whether tasks that the bus lost are not published again yet."""
        return len(self._lost) > 0 or self._outstanding.is_any_unpublished(self._lost.later)

    @property
    def missing_version(self) -> int | None:
        """Version that a node must serve before anything is dispatched; None: dispatching waits for no version."""
        return self._bound.missing_version

    def wake(self) -> None:
        """Look again: a group has closed, or nodes serve another version."""
        self._wake.set()

    def advance(self, step: int, version: int, trained: Iterable[str] = ()) -> None:
        """Note that the learner has made ``step`` steps; ``version`` is the one it trains next.

        ``trained`` are the tasks of the last step: they are removed at once, or more would be admitted meanwhile.
        """
        self._bound.step, self._bound.version = step, version
        self._outstanding.remove(trained)
        self._outstanding.batch = frozenset()
        self._wake.set()

    def start_batch(self, tasks: Iterable[str]) -> None:
        """Mark the tasks that are trained from now on, until `advance`."""
        self._outstanding.batch = frozenset(tasks)

    async def replace_dropped(self, tasks: Iterable[str]) -> None:
        """Dispatch the tasks of failed groups again, up to `MAX_REPLACEMENTS` times."""
        for task in tasks:
            group = self._groups.get(task)
            if group is None:
                continue
            if group.replacement >= MAX_REPLACEMENTS:
                log.warning("task %s came to nothing %d times: another takes its place", task, MAX_REPLACEMENTS + 1)
                del self._groups[task]
                continue
            again = DispatchedGroup(number=group.number, replacement=group.replacement + 1, selection=group.selection)
            name = (await self._group_tasks.make(again))[0].id
            del self._groups[task]
            if name not in self._groups:  # otherwise it was restored, and a replay gives the same
                self._groups[name] = again
                self._record(again, self.num_by_others)
        self._wake.set()

    def remove(self, tasks: Iterable[str]) -> None:
        """Remove groups that are not trained: others take their places."""
        self._outstanding.remove(tasks)
        self._wake.set()

    def limit_rates(self, pauses: Mapping[str, float]) -> None:
        """Dispatch one group at a time of some task sets, with pauses in seconds; their turns pass to other sets."""
        if pauses != self._pauses:
            self._pauses = pauses
            self._wake.set()

    def take_surplus(self) -> list[str]:
        """Take the tasks that are left to other learners since the last call, oldest first."""
        return self._outstanding.take_surplus()

    def find_replacements_of_others(self, ready: Iterable[RolloutGroup]) -> list[str]:
        """Find tasks of ready groups that replace a group of another learner; this one's own group did not fail.

        They are not admitted here: by the time that they are ready, their tokens may be beyond the bound.
        """
        tasks = (group.task_id for group in ready)
        return [task for task in tasks if task not in self._groups and self._group_tasks.is_replacement(task)]

    def order_by_deadline(self, ready: Sequence[RolloutGroup]) -> list[RolloutGroup]:
        """Order the ready groups for training."""
        if not self._bound.is_bounded:
            return oldest_first(ready, self._groups)
        return order_by_deadline(ready, self._groups, self._bound.pace())

    def find_awaited(self, batch: Collection[str], closed: Collection[str]) -> list[str]:
        """Find groups not ``closed`` that would exceed the bound later if a batch of tasks were trained now."""
        return find_awaited(batch, self._groups, closed, self._bound.pace()) if self._bound.is_bounded else []

    def give_up(self, tasks: Iterable[str]) -> None:
        """Stop waiting for these open groups: they will be trained late."""
        for task in tasks:
            self._groups[task].is_late = True

    def leave_to_others(self) -> int:
        """Train none of the groups that are dispatched and not closed; returns how many these are."""
        num_groups = self._outstanding.leave_open(self._closed)
        self._on_surplus()
        self._wake.set()
        return num_groups

    def dispatch_again(self, ended: Mapping[str, Container[int]], nonce: str) -> int:
        """Publish all outstanding samples again, except those that have ended: the bus lost messages.

        Groups of which no sample has ended go out as the bound admits them: they may be more, as where this learner
        makes steps of another learner again. ``ended`` are samples by task. ``nonce`` is the same only for the same
        loss: the broker may still know the message ids of what it lost. Returns the number of tasks that go out now.
        """
        missing = self._outstanding.missing_samples(self._group_tasks.find_group_size, ended, self._closed)
        unended = {task for task in missing if not ended.get(task)}
        later = self._outstanding.take_back(unended, self._bound.num_groups())
        for task in later:
            self._record(self._groups[task], self.num_by_others)
        now = {task: samples for task, samples in missing.items() if task not in later}
        self._lost.add(now, nonce, later)
        self._wake.set()
        return sum(map(len, now.values()))

    async def run(self) -> None:
        """Publish for ever; a full bus is waited for. Raises `LearnerError` as `RunDispatch`."""
        if not self._task_inputs:
            await asyncio.Event().wait()

        async def on_mark(message: Msg) -> None:
            self._is_mark_new = True
            self._wake.set()

        subscription = await self._bus.nc.subscribe(self._run.announced_on, cb=on_mark)
        try:
            await self._run_loop()
        finally:
            with suppress(NatsError):
                await subscription.unsubscribe()

    async def _run_loop(self) -> None:
        while True:
            self._wake.clear()
            if self._is_mark_new:
                self._is_mark_new = False
                await self._look_at_run()
            elif self._lost:
                await self._publish_lost()
            elif self._outstanding.is_interrupted:
                await self._publish_next()
            elif self._outstanding.num_started >= self._bound.num_groups():
                await self._wake.wait()
            elif (seconds := min(map(self._count_paused_seconds, self._group_tasks.sets.names))) > 0:
                await self._wait_for_wake(seconds)
            elif await self._has_room():
                await self._publish_next()
            else:
                await self._wait_for_wake(QUEUE_POLL_SECONDS)

    async def _has_room(self) -> bool:
        """Return whether runners have taken the queued tasks; without runners, one step's groups are queued."""
        if not self._bound.is_bounded:
            return True
        queue = self._queues[self._group_tasks.find_agent(self._find_next_number())]
        room = await queue.has_room(self._settings.max_group_size)
        return self._outstanding.num_started < self._settings.groups_per_step if room is None else room

    def _count_paused_seconds(self, name: str) -> float:
        """Return the seconds until a group of the task set may be dispatched; infinite while an open one is waited for.

        A group that is ready is not waited for: a step needs several.
        """
        if name not in self._pauses:
            return 0.0
        if any(
            self._group_tasks.sets.name_of_turn(group.number) == name
            for task, group in self._groups.items()
            if group.served_version is not None and task not in self._closed
        ):
            return math.inf
        return max(0.0, self._dispatched_at.get(name, 0.0) + self._pauses[name] - time.monotonic())

    def _is_paused(self, number: int) -> bool:
        return self._count_paused_seconds(self._group_tasks.sets.name_of_turn(number)) > 0

    def _find_next_number(self) -> int:
        """Find the number of the next new group: the first one whose task set is not paused, if a set is not."""
        sets = self._group_tasks.sets
        free = {name for name in sets.names if not self._count_paused_seconds(name)} or set(sets.names)
        return next(number for number in itertools.count(self.num_dispatched) if sets.name_of_turn(number) in free)

    async def _wait_for_wake(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()

    async def _publish_next(self) -> None:
        """Publish the oldest group that is not all on the bus, else the next task of the pass.

        If the learner ended in the middle, a replay may have closed the group already: then it needs no tasks. It needs
        their record, which may not be on the bus.
        """
        group = self._outstanding.find_unpublished(self._is_paused)
        if group is None:
            await self._look_at_run()
            if self._outstanding.num_started >= self._bound.num_groups():
                return
            number = self._find_next_number()
            for passed in range(self.num_dispatched, number):  # A learner that resumes must not take it as published.
                self._record(DispatchedGroup(number=passed), self.num_by_others)
            group = DispatchedGroup(number=number, selection=await self.selector.select(number))
        self._dispatched_at[self._group_tasks.sets.name_of_turn(group.number)] = time.monotonic()
        tasks, nonce = await self._group_tasks.make(group), self._lost.nonce
        task = tasks[0].id
        if group.served_version is None:
            group.served_version = self._bound.served
            self._record(group, self.num_by_others)
        await publish_selection(self._bus, self._settings, task, group.selection)
        if task in self._closed:
            now = time.time_ns()
            records = [build_record(each, now, now) for each in tasks]
            await self._publisher.record_tasks(records, timeout=math.inf, nonce=nonce)
        else:
            self._groups[task] = group  # before: what is lost on its way is outstanding too
            group.last_task = await self._publish(tasks, nonce)
        group.is_published = True
        self._record(group, self.num_by_others)
        self.num_dispatched = max(self.num_dispatched, group.number + 1)
        if not group.replacement and self.num_dispatched > self._run.num_groups:
            await self._run.advance(self.num_dispatched)

    async def _look_at_run(self) -> None:
        """Adopt what other learners of the run have dispatched."""
        try:
            await self._run.refresh()
        except (NatsError, BusError, DecodeError) as error:
            log.warning("cannot see what other learners dispatched: %s", str(error) or type(error).__name__)
            return
        num_new = self._run.num_by_others - self.num_by_others
        served = self._bound.served
        if num_new > 0:
            served = min([served, *self._served_at_looks])
            self._served_at_looks.append(self._bound.served)
        await self._adopt(min(num_new, self._run.num_groups - self.num_dispatched), served)

    async def _adopt(self, num_groups: int, served: int) -> None:
        """Adopt the groups of other learners: this learner trains its own calls of them.

        If there are more than it can train within the bound, the oldest ones are left to the others. Another learner
        reports a group after it has published it, one group after the other. So a group first seen now went out after
        the check before the last, and its tokens may be of the version that was ``served`` then.
        """
        num_by_others = self._run.num_by_others - self.num_by_others
        self.num_by_others = self._run.num_by_others
        if self.selector.is_active:  # their tasks are not known here; their rollouts are trained
            refuse_others(num_by_others)
            self.num_dispatched += max(0, num_groups)
            return
        for place in range(num_groups):
            group = DispatchedGroup(number=self.num_dispatched, served_version=served, is_published=True)
            task = (await self._group_tasks.make(group))[0].id
            if task not in self._groups and task not in self._closed:
                self._groups[task] = group
                self._num_adopted += place < num_by_others
            self._record(group, self.num_by_others)
            self.num_dispatched += 1
        if not self._bound.is_bounded:
            return
        num_surplus = self._outstanding.leave_beyond(self._bound.num_groups, self._num_adopted)
        self._num_adopted -= num_surplus
        if num_surplus:
            self._on_surplus()

    async def _publish_lost(self) -> None:
        task, samples, nonce = self._lost.first
        group = self._groups.get(task)
        if group is not None and group.served_version is not None:  # else a later loss has it wait for the bound
            tasks = await self._group_tasks.make(group)
            await self._publish([tasks[sample] for sample in samples], nonce)
        self._lost.remove_first()

    async def _publish(self, tasks: Sequence[Task], nonce: str) -> int:
        """Publish tasks; return the stream sequence of the last new one, 0 if all were there before."""
        await self._publisher.publish_tasks(tasks, timeout=math.inf, nonce=nonce)
        self._on_published(self._publisher.last_sequence)
        return self._publisher.last_sequence
