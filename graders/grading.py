"""All graders of a process: submissions of one group in, a grade for each out."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TypeVar

import aiohttp

from lightningbus.common.backoff import RetryPolicy
from lightningbus.graders.errors import GradingFailedError, UnusableGradeError
from lightningbus.graders.functions.pool import FunctionPool
from lightningbus.graders.grade import Grade, Part, combine
from lightningbus.graders.judges.answer import JudgeCall
from lightningbus.graders.judges.cache import JudgeCache
from lightningbus.graders.judges.judge import Judge
from lightningbus.graders.judges.pairs import Pair, choose_pairs, count_wins
from lightningbus.graders.judges.prompts import (
    Preference,
    ask_for_preference,
    ask_for_score,
    read_preference,
    read_score,
)
from lightningbus.graders.settings import GraderSettings
from lightningbus.graders.submission import Submission

log = logging.getLogger(__name__)

RETRY_POLICY = RetryPolicy(0.2, 10.0)
NO_OPPONENT = "no other rollout of its group ended well, to be compared with"
T = TypeVar("T")


class Grading:
    """Functions and judges by name; make it with `open_grading`."""

    def __init__(
        self, settings: GraderSettings, functions: Mapping[str, FunctionPool], judges: Mapping[str, Judge]
    ) -> None:
        self._settings, self._functions, self._judges = settings, functions, judges

    @property
    def needs_conversations(self) -> bool:
        """Whether a judge or function reads the messages of a rollout."""
        return bool(self._judges) or any(function.takes_rollout for function in self._functions.values())

    async def grade(self, group: Sequence[Submission]) -> list[Grade]:
        """Grade submissions of one task; raise `GraderError` where no submission could be graded."""
        started_ns = time.time_ns()
        names = list(self._settings.graders)
        parts = await asyncio.gather(*(self._grade_by(name, group) for name in names))
        ended_ns = time.time_ns()
        return [
            combine(dict(zip(names, own_parts, strict=True)), self._settings, each.own_reward, started_ns, ended_ns)
            for each, own_parts in zip(group, zip(*parts, strict=True), strict=True)
        ]

    async def _grade_by(self, name: str, group: Sequence[Submission]) -> list[Part]:
        """Return one grader's part of each grade."""
        if name in self._functions:
            return await asyncio.gather(*(self._fill(partial(_call, self._functions[name], each)) for each in group))
        judge = self._judges[name]
        if judge.settings.compare == "pairs":
            return await self._compare(judge, group)
        return await asyncio.gather(*(self._fill(partial(_score, judge, each)) for each in group))

    async def _fill(self, work: Callable[[list[JudgeCall]], Awaitable[float]]) -> Part:
        part = Part()
        try:
            part.reward = await self._try(lambda: work(part.calls))
        except GradingFailedError as error:
            part.error = str(error)
        return part

    async def _try(self, work: Callable[[], Awaitable[T]]) -> T:
        """Return the result of work that may give an unusable grade, after several tries if need be."""
        for number in range(1, self._settings.max_attempts + 1):
            try:
                return await work()
            except UnusableGradeError as error:
                if number == self._settings.max_attempts:
                    raise GradingFailedError(f"{error} ({number} tries)") from error
                log.warning("no usable grade, trying again: %s", error)
            await asyncio.sleep(RETRY_POLICY.delay_after(number))
        raise AssertionError("the last try returns or raises")

    async def _compare(self, judge: Judge, group: Sequence[Submission]) -> list[Part]:
        """Compare rollouts of a group in pairs; the calls of a pair are those of its first."""
        parts = [Part(error=NO_OPPONENT) for _ in group]
        preferences: dict[Pair, list[Preference]] = {}

        async def compare(pair: Pair) -> None:
            first, second = (group[index] for index in pair)
            orders = [(first, second), (second, first)] if judge.settings.both_orders else [(first, second)]
            try:
                found = [await self._try(partial(_prefer, judge, *order, parts[pair[0]].calls)) for order in orders]
            except GradingFailedError as error:
                for index in pair:
                    parts[index].error = str(error)
                return
            preferences[pair] = found

        await asyncio.gather(*map(compare, choose_pairs(len(group), judge.settings.max_opponents)))
        for part, share in zip(parts, count_wins(preferences, len(group)), strict=True):
            part.reward = share
        return parts


async def _call(function: FunctionPool, submission: Submission, calls: list[JudgeCall]) -> float:
    return await function.grade(submission)


async def _score(judge: Judge, submission: Submission, calls: list[JudgeCall]) -> float:
    call = await judge.ask(ask_for_score(judge.settings, submission))
    calls.append(call)
    score = read_score(judge.settings, call.answer.text)
    judge.keep(call)
    return score


async def _prefer(judge: Judge, first: Submission, second: Submission, calls: list[JudgeCall]) -> Preference:
    call = await judge.ask(ask_for_preference(judge.settings, first, second))
    calls.append(call)
    preference = read_preference(call.answer.text)
    judge.keep(call)
    return preference


@asynccontextmanager
async def open_grading(settings: GraderSettings) -> AsyncIterator[Grading]:
    """Start the functions' processes and open the cache while the block runs; raise `GraderError`."""
    async with AsyncExitStack() as exits:
        session = await exits.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
        cache = JudgeCache(settings.cache)
        exits.callback(cache.close)
        functions: dict[str, FunctionPool] = {}
        judges: dict[str, Judge] = {}
        for name, grader in settings.graders.items():
            if grader.judge is not None:
                judges[name] = Judge(name, grader.judge, cache, session)
            elif grader.function is not None:
                functions[name] = FunctionPool(
                    name, grader.function, settings.python_executable, settings.working_dir, settings.processes,
                    settings.function_timeout_seconds,
                )  # fmt: skip
                exits.push_async_callback(functions[name].stop)
                await functions[name].start()
        yield Grading(settings, functions, judges)
