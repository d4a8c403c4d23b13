"""One teacher: it scores a few sequences at a time, and one that is away is waited for."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from lightningbus.common.backoff import Backoff, RetryPolicy
from lightningbus.learner.errors import LearnerError
from lightningbus.learner.rollouts.teacher_scores import TeacherScores
from lightningbus.learner.settings.loss_parts import TeacherSettings
from lightningbus.learner.teacher.client import TeacherClient, TeacherUnreachableError
from lightningbus.learner.transitions.chats import ChatTemplate
from lightningbus.learner.transitions.hint import Hint, add_hint
from lightningbus.learner.transitions.transitions import Transition

log = logging.getLogger(__name__)
RETRY = RetryPolicy(0.5, 15.0)
T = TypeVar("T")


class Teacher:
    """A teacher with a queue of its own. What waits in it is bounded by what is dispatched."""

    def __init__(self, settings: TeacherSettings, model_path: Path, find_address: Callable[[], str | None]) -> None:
        """``model_path``: the student. ``find_address`` returns where the teacher is now; None: nowhere.

        Raises `LearnerError` for a key that cannot be read.
        """
        self._settings, self._model_path, self._find_address = settings, model_path, find_address
        self._client = TeacherClient(settings)
        self._slots = asyncio.Semaphore(settings.max_requests)
        self._checking = asyncio.Lock()
        self._is_checked = False
        self._hint: Hint | None = None
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
        """Check once what `TeacherClient.check` does, however often that must be tried, and the hint.

        Raises `LearnerError`.
        """
        await self.add_hint([])
        await self._retry(self._check_once)

    async def add_hint(self, calls: Sequence[Transition]) -> Sequence[Transition | None]:
        """Return calls as the teacher reads them; None for a call that has no place for its hint.

        Raises `LearnerError` for a hint that the student's chat template does not render.
        """
        if self._settings.hint is None:
            return calls
        async with self._checking:
            if self._hint is None:
                try:
                    template = await asyncio.to_thread(ChatTemplate.load, self._model_path)
                    self._hint = Hint.render(self._settings.hint, template)
                except ValueError as error:
                    raise LearnerError(str(error)) from error
        return add_hint(calls, self._hint)

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
                    log.warning("teacher %r is waited for: %s", self._settings.name, error)
                self.problem = str(error)
                await asyncio.sleep(backoff.next_delay())
            else:
                self.problem = ""
                return answer
