"""One teacher: it scores a few sequences at a time, and one that is away is waited for."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from lightningbus.common.backoff import Backoff, RetryPolicy
from lightningbus.learner.rollouts.teacher_scores import TeacherScores
from lightningbus.learner.settings.loss_parts import TeacherSettings
from lightningbus.learner.teacher.client import TeacherClient, TeacherUnreachableError

log = logging.getLogger(__name__)
RETRY = RetryPolicy(0.5, 15.0)
T = TypeVar("T")


class Teacher:
    """A teacher with a queue of its own. What waits in it is bounded by what is dispatched."""

    def __init__(self, settings: TeacherSettings, model_path: Path, find_address: Callable[[], str | None]) -> None:
        """``model_path``: the student. ``find_address`` returns where the teacher is now; None: nowhere.

        Raises `LearnerError` for a key that cannot be read.
        """
        self._name, self._model_path, self._find_address = settings.name, model_path, find_address
        self._client = TeacherClient(settings)
        self._slots = asyncio.Semaphore(settings.max_requests)
        self._checking = asyncio.Lock()
        self._is_checked = False
        self.problem = ""
        """Reason why the teacher scores nothing now; empty: it does."""

    async def score(self, token_ids: list[int]) -> TeacherScores:
        """Score a sequence, however often that must be tried; see `TeacherClient.score`.

        Raises `UnscorableError`, and `LearnerError` where it can never score one.
        """
        async with self._slots:
            await self.check()
            return await self._retry(partial(self._client.score, token_ids=token_ids))

    async def check(self) -> None:
        """Check once what `TeacherClient.check` does, however often that must be tried; raise `LearnerError`."""
        await self._retry(self._check_once)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _check_once(self, address: str) -> None:
        async with self._checking:
            if not self._is_checked:
                await self._client.check(address, self._model_path)
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
                    log.warning("teacher %r is waited for: %s", self._name, error)
                self.problem = str(error)
                await asyncio.sleep(backoff.next_delay())
            else:
                self.problem = ""
                return answer
