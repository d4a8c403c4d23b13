"""Scores of ended rollouts by one or several teachers: each call once, by the teacher whose conditions it meets."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from lightningbus.common.aio import cancel_and_wait
from lightningbus.learner.dispatch.group_tasks import find_input_id
from lightningbus.learner.errors import LearnerError
from lightningbus.learner.rollouts.assembler import Rollout, training_reward
from lightningbus.learner.rollouts.groups import RolloutGroup
from lightningbus.learner.rollouts.teacher_scores import TeacherScores
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.settings.loss_parts import TeacherSettings
from lightningbus.learner.teacher.client import UnscorableError
from lightningbus.learner.teacher.score_file import ScoreFile
from lightningbus.learner.teacher.scoring import ScoredRollout, assign_calls
from lightningbus.learner.teacher.teacher import Teacher
from lightningbus.learner.transitions.transitions import Transition, build_transitions
from lightningbus.tasks.task_loading import TaskInput

log = logging.getLogger(__name__)
Scores = Mapping[str, TeacherScores]
"""Scores of a rollout by teacher, see `Rollout.teacher_scores`."""


class Teachers:
    """The teachers of one learner. A teacher that is away holds up the rollouts alone that it scores."""

    def __init__(
        self,
        settings: LearnerSettings,
        find_address: Callable[[TeacherSettings], str | None],
        tasks: Sequence[TaskInput] = (),
        on_scored: Callable[[], None] = lambda: None,
    ) -> None:
        """``find_address`` returns where a teacher is now; None: nowhere. ``tasks`` have the labels.

        ``on_scored`` is called whenever the scoring of a rollout has ended. Raises `LearnerError` for a key that cannot
        be read, and for labels that no task has.
        """
        self._settings, self._on_scored = settings, on_scored
        self._labels = _find_labels(settings.teachers, tasks)
        self._teachers = {
            each.name: Teacher(each, settings.model_path, partial(find_address, each)) for each in settings.teachers
        }
        self._top_k = {each.name: each.top_k for each in settings.teachers}
        self._file = ScoreFile(settings.checkpoint_dir)
        self._scoring: dict[str, asyncio.Task[Scores]] = {}

    @property
    def problem(self) -> str:
        """Reasons why teachers score nothing now, by their names; empty: all do."""
        problems = [f"{name}: {teacher.problem}" for name, teacher in self._teachers.items() if teacher.problem]
        return "; ".join(problems)

    def begin(self, rollout: Rollout) -> None:
        """Begin to score a rollout that has ended, unless nothing of it is trained."""
        name = rollout.execution_id
        if name in self._scoring or training_reward(rollout, self._settings.failed_rollouts) is None:
            return
        self._scoring[name] = task = asyncio.create_task(self._find_or_score(rollout))
        task.add_done_callback(partial(self._end, name))

    def find_waiting(self, groups: Iterable[RolloutGroup]) -> set[str]:
        """Return the tasks of the groups that wait for scores of a rollout."""
        return {
            group.task_id
            for group in groups
            if any(rollout.execution_id in self._scoring for rollout in group.members.values())
        }

    async def score(self, groups: Iterable[RolloutGroup]) -> None:
        """Add their scores to all rollouts of these groups that may be trained.

        Waits as long as the teachers take. Raises `LearnerError` where one can never score them.
        """
        for rollout in [rollout for group in groups for rollout in group.rollouts]:
            self.begin(rollout)
        scoring = dict(self._scoring)
        for group in groups:
            for name, rollout in list(group.members.items()):
                if rollout.execution_id in scoring:
                    group.members[name] = replace(rollout, teacher_scores=await scoring[rollout.execution_id])

    async def check(self) -> None:
        """Check each teacher; raise `LearnerError` for one that can be none. Waits for teachers that are away."""
        await asyncio.gather(*(teacher.check() for teacher in self._teachers.values()))

    async def close(self) -> None:
        """End all requests."""
        await cancel_and_wait(*self._scoring.values())
        for teacher in self._teachers.values():
            await teacher.close()
        self._file.close()

    def _end(self, name: str, task: "asyncio.Task[Scores]") -> None:
        """Forget a rollout that is scored, which the file has, or whose scoring failed."""
        del self._scoring[name]
        if not task.cancelled():
            task.exception()  # raised again where the rollout is asked for
            self._on_scored()

    async def _find_or_score(self, rollout: Rollout) -> Scores:
        """Return the scores of a rollout by each teacher of its calls; none for one that cannot be read."""
        try:
            calls = build_transitions(rollout.calls, self._settings.model)
        except (ValueError, LookupError, OverflowError):
            return {}  # the batch leaves it out, with its reason
        labels = self._labels.get(find_input_id(rollout.task_id, self._settings.run), {})
        places = assign_calls(self._settings.teachers, labels, calls)
        work = [self._score_calls(name, rollout, calls, chosen) for name, chosen in places.items()]
        scored = await asyncio.gather(*work, return_exceptions=True)
        if error := next((each for each in scored if isinstance(each, BaseException)), None):
            raise error
        return {
            name: values for name, values in zip(places, scored, strict=True) if not isinstance(values, BaseException)
        }

    async def _score_calls(
        self, name: str, rollout: Rollout, calls: Sequence[Transition], chosen: Sequence[int]
    ) -> TeacherScores:
        """Return one teacher's scores of the calls at the ``chosen`` places, from the file if it has them."""
        teacher, top_k = self._teachers[name], self._top_k[name]
        known = self._file.find(rollout.execution_id, name, top_k)
        if known is not None:
            return known
        hinted = await teacher.add_hint(calls)
        chosen = [place for place in chosen if hinted[place] is not None]
        read = [call if other is None else other for call, other in zip(calls, hinted, strict=True)]
        request = ScoredRollout.of_calls(rollout.id, read, chosen)
        try:
            scores = [await teacher.score(sequence.token_ids.tolist()) for sequence in request.sequences]
        except UnscorableError as error:
            log.warning("teacher %r does not score rollout %s: %s", name, rollout.id, error)
            merged = TeacherScores.empty(request.num_tokens, top_k)
        else:
            merged = request.merge(scores, top_k)
        self._file.add(rollout.execution_id, name, merged)
        return merged


def _find_labels(teachers: Sequence[TeacherSettings], tasks: Sequence[TaskInput]) -> Mapping[str, Mapping[str, str]]:
    """Return the labels of each task by its id in the file, where a teacher needs them.

    Raises `LearnerError` for a teacher whose labels no task has.
    """
    for teacher in (teacher for teacher in teachers if teacher.labels):
        if not any(teacher.labels.items() <= task.labels.items() for task in tasks):
            raise LearnerError(f"teacher {teacher.name!r} would score nothing: no task has the labels {teacher.labels}")
    return {task.id: task.labels for task in tasks} if any(teacher.labels for teacher in teachers) else {}
