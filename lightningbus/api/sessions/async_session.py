"""`aconnect`: a session for code with an event loop."""

import asyncio
import os
from types import TracebackType
from typing import Any, Self, Unpack

from lightningbus.analysis.transcript import Transcript
from lightningbus.api.evaluation_result import EvaluationResult
from lightningbus.api.sessions.options import EvaluateOptions
from lightningbus.api.sessions.reward_curve import RewardCurve
from lightningbus.api.sessions.session import Published, Session, connect
from lightningbus.api.sessions.table import Table
from lightningbus.api.tasks import Tasks
from lightningbus.run.evaluation.publishing import PublishOptions
from lightningbus.run.run_directory.directory import RUNS


class AsyncSession:
    """`Session` with methods to await; questions run in threads. Made by `aconnect`."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"Async{self._session!r}"

    async def close(self) -> None:
        """See `Session.close`."""
        await asyncio.to_thread(self._session.close)

    async def query(self, sql: str, **parameters: Any) -> Table:
        """See `Session.query`."""
        return await asyncio.to_thread(self._session.query, sql, **parameters)

    async def query_df(self, sql: str, **parameters: Any) -> Any:
        """See `Session.query_df`."""
        return await asyncio.to_thread(self._session.query_df, sql, **parameters)

    async def runs(self) -> Table:
        """See `Session.runs`."""
        return await asyncio.to_thread(self._session.runs)

    async def rollouts(
        self,
        run: str | None = None,
        mode: str | None = None,
        outcome: str | None = None,
        evaluation: str | None = None,
        limit: int = 100,
    ) -> Table:
        """See `Session.rollouts`."""
        return await asyncio.to_thread(self._session.rollouts, run, mode, outcome, evaluation, limit)

    async def transcript(self, rollout_id: str, run: str | None = None) -> Transcript:
        """See `Session.transcript`."""
        return await asyncio.to_thread(self._session.transcript, rollout_id, run)

    async def reward_curve(self, run: str | None = None) -> RewardCurve:
        """See `Session.reward_curve`."""
        return await asyncio.to_thread(self._session.reward_curve, run)

    async def evaluate(self, tasks: Tasks, **options: Unpack[EvaluateOptions]) -> EvaluationResult:
        """See `Session.evaluate`."""
        return await self._session._evaluate(tasks, options)

    async def publish(self, tasks: Tasks, *, timeout: float = 300.0, **options: Unpack[PublishOptions]) -> Published:
        """See `Session.publish`."""
        return await self._session._publish(tasks, timeout, options)


async def aconnect(
    run: str | None = None,
    *,
    runs: str | os.PathLike[str] = RUNS,
    bus: str | None = None,
    sql: str | None = None,
    database: str = "lightningbus",
) -> AsyncSession:
    """`connect` for code with an event loop."""
    return AsyncSession(connect(run, runs=runs, bus=bus, sql=sql, database=database))
