"""The reward function: in a process of its own, which the agent that it judges cannot reach."""

import asyncio
import logging
from pathlib import Path
from typing import Any

from lightningbus.common.observability.faults import MAX_TRACEBACK
from lightningbus.runners.agent.executors import AgentError, AgentExecutor, RolloutInfo, WorkerProcessDiedError
from lightningbus.runners.agent.launcher import AgentLauncher
from lightningbus.runners.agent.shared_process import SharedExecutor
from lightningbus.runners.agent.turns import Turns
from lightningbus.runners.recording.attempt import AttemptRecorder
from lightningbus.runners.recording.rewards import InvalidRewardError, resolve_rewards
from lightningbus.schemas.text import shorten

log = logging.getLogger(__name__)


class RewardFunctionError(Exception):
    """The reward function raised, or returned what is not a reward; the message is a sentence."""


class RewardTimeoutError(Exception):
    """The reward function did not end within its limit; the message is a sentence."""


class RewardFunction(SharedExecutor):
    """``module:function`` of (input, result), in the agent's interpreter, loaded once and kept warm.

    An async one serves many slots side by side, any other one serves them in turn, from which its limit counts. When a
    shared process ends or stops answering, each of its calls is retried alone: only so is the faulty one found.
    """

    _mode = "reward"
    _kind = "reward function "

    def __init__(self, python: Path, function: str, launcher: AgentLauncher, timeout_seconds: float) -> None:
        super().__init__(python, function, launcher)
        self._timeout_seconds = timeout_seconds
        self._turns = Turns()

    async def compute_reward(self, task: Any, result: Any) -> Any:
        """Call the function and return its result, any JSON.

        Raises `RewardTimeoutError` beyond its limit, `RewardFunctionError` if it fails, `WorkerProcessDiedError` if its
        process is gone, `AgentStartError` if it cannot be started again.
        """
        try:
            if self.is_concurrent:
                try:
                    async with self._turns.shared():
                        return await self._call(task, result)
                except WorkerProcessDiedError:
                    pass
            async with self._turns.alone():
                return await self._call(task, result)
        except AgentError as error:
            if error.detail:
                log.warning("%s", shorten(error.detail, MAX_TRACEBACK))
            raise RewardFunctionError(f"the reward function failed: {error}") from error
        except WorkerProcessDiedError as error:
            raise WorkerProcessDiedError(f"the reward function is gone: {error}") from error

    async def _call(self, task: Any, result: Any) -> Any:
        """Call the function once; raise `WorkerProcessDiedError` also for a timeout after a restart of the process."""
        await self.start()
        process = self._process
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return (await self.run_one(task, result)).get("value")
        except TimeoutError:
            if self._turns.has_sharing and self._process is not process:
                raise WorkerProcessDiedError("it did not answer") from None
            raise RewardTimeoutError(f"the reward function did not end in {self._timeout_seconds:g} s") from None


class RewardingExecutor(AgentExecutor):
    """An executor whose rollouts get their reward from a reward function."""

    def __init__(self, executor: AgentExecutor, function: RewardFunction) -> None:
        self._executor, self._function = executor, function

    async def start(self) -> None:
        """Start both processes, unless they run."""
        await self._executor.start()
        await self._function.start()

    async def prepare(self, task: Any, rollout_id: str = "") -> None:
        """Make the agent ready."""
        await self._executor.prepare(task, rollout_id)

    async def run(self, task: Any, rollout: RolloutInfo | None = None) -> dict[str, Any]:
        """Run one rollout, without its reward."""
        return await self._executor.run(task, rollout)

    def check_timeout(self) -> None:
        """Raise as the agent's executor does."""
        self._executor.check_timeout()

    async def grade(self, task: Any, answer: dict[str, Any]) -> dict[str, Any]:
        """Add the reward to the answer, without the agent's process; raise as `compute_reward`."""
        graded = {**answer, "reward": await self._function.compute_reward(task, answer.get("value"))}
        try:
            resolve_rewards(graded, ())
        except InvalidRewardError as error:
            raise RewardFunctionError(f"the reward function failed: {error}") from error
        return graded

    async def finish(self, recorder: AttemptRecorder) -> None:
        """Record what the agent leaves."""
        await self._executor.finish(recorder)

    async def stop(self) -> None:
        """End both."""
        await self._executor.stop()
        await self._function.stop()


def with_reward_function(executor: AgentExecutor, function: RewardFunction | None) -> AgentExecutor:
    """Wrap an executor with its reward function, if there is one."""
    return RewardingExecutor(executor, function) if function is not None else executor
