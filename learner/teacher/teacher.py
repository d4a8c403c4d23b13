"""Scores of ended rollouts by a teacher: each once, a few at a time. A teacher that is away is waited for."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import TypeVar

import numpy as np

from lightningbus.common.aio import cancel_and_wait
from lightningbus.common.backoff import Backoff, RetryPolicy
from lightningbus.learner.rollouts.assembler import Rollout, training_reward
from lightningbus.learner.rollouts.groups import RolloutGroup
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.teacher.client import TeacherClient, TeacherUnreachableError, UnscorableError
from lightningbus.learner.teacher.score_file import ScoreFile
from lightningbus.learner.teacher.scoring import ScoredRollout
from lightningbus.learner.trainer import Floats
from lightningbus.learner.transitions.transitions import build_transitions

log = logging.getLogger(__name__)
RETRY = RetryPolicy(0.5, 15.0)
T = TypeVar("T")


class Teacher:
    """One teacher of one learner. Its requests are bounded; what waits for it is bounded by what is dispatched."""

    def __init__(self, settings: LearnerSettings, find_address: Callable[[], str | None]) -> None:
        """``find_address`` returns where the teacher is now; None: nowhere.

        Raises `LearnerError` for a key that cannot be read.
        """
        assert settings.teacher is not None
        self._settings, self._find_address = settings, find_address
        self._client = TeacherClient(settings.teacher)
        self._slots = asyncio.Semaphore(settings.teacher.max_requests)
        self._file = ScoreFile(settings.checkpoint_dir)
        self._tasks: dict[str, asyncio.Task[Floats | None]] = {}
        self._checking = asyncio.Lock()
        self._is_checked = False
        self.problem = ""
        """Reason why the teacher scores nothing now; empty: it does."""

    def begin(self, rollout: Rollout) -> None:
        """Begin to score a rollout that has ended, unless nothing of it is trained."""
        name = rollout.execution_id
        if name in self._tasks or training_reward(rollout, self._settings.failed_rollouts) is None:
            return
        self._tasks[name] = task = asyncio.create_task(self._find_or_score(rollout))
        task.add_done_callback(partial(self._end, name))

    async def score(self, groups: Iterable[RolloutGroup]) -> None:
        """Add its scores to all rollouts of these groups that may be trained.

        Waits as long as the teacher takes. Raises `LearnerError` where it can never score them.
        """
        for rollout in [rollout for group in groups for rollout in group.rollouts]:
            self.begin(rollout)
        tasks = dict(self._tasks)
        for group in groups:
            for name, rollout in list(group.members.items()):
                scores = await tasks[rollout.execution_id] if rollout.execution_id in tasks else None
                group.members[name] = replace(rollout, teacher_logprobs=scores)

    def _end(self, name: str, task: "asyncio.Task[Floats | None]") -> None:
        """Forget a rollout that is scored, which the file has, or whose scoring failed."""
        del self._tasks[name]
        if not task.cancelled():
            task.exception()  # raised again where the rollout is asked for

    async def close(self) -> None:
        """End all requests."""
        await cancel_and_wait(*self._tasks.values())
        await self._client.close()
        self._file.close()

    async def _find_or_score(self, rollout: Rollout) -> Floats | None:
        """Return the scores of a rollout; None for one that cannot be read."""
        known = self._file.find(rollout.execution_id)
        if known is not None:
            return known
        try:
            calls = build_transitions(rollout.calls, self._settings.model)
        except (ValueError, LookupError, OverflowError):
            return None  # the batch leaves it out, with its reason
        request = ScoredRollout.of_calls(rollout.id, calls)
        try:
            scores = [await self._score(sequence.token_ids.tolist()) for sequence in request.sequences]
        except UnscorableError as error:
            log.warning("the teacher does not score rollout %s: %s", rollout.id, error)
            merged = np.full(request.num_tokens, np.nan, np.float32)
        else:
            merged = request.merge(scores)
        self._file.add(rollout.execution_id, merged)
        return merged

    async def _score(self, token_ids: list[int]) -> Floats:
        """Score a sequence, however often that must be tried."""
        async with self._slots:
            await self._retry(self._check_tokenizer)
            return await self._retry(partial(self._client.score, token_ids=token_ids))

    async def _check_tokenizer(self, address: str) -> None:
        async with self._checking:
            if not self._is_checked:
                await self._client.check_tokenizer(address, self._settings.model_path)
                self._is_checked = True

    async def _retry(self, ask: Callable[[str], Awaitable[T]]) -> T:
        backoff = Backoff(RETRY)
        while True:
            try:
                address = self._find_address()
                if address is None:
                    raise TeacherUnreachableError("no node of the run serves it")
                answer = await ask(address)
            except TeacherUnreachableError as error:
                if not self.problem:
                    log.warning("the teacher is waited for: %s", error)
                self.problem = str(error)
                await asyncio.sleep(backoff.next_delay())
            else:
                self.problem = ""
                return answer
