"""The reward function: in a process of its own, which the agent that it judges cannot reach."""

from typing import Any

from runners.agent.executors import AgentError, AgentExecutor, RolloutInfo, WorkerProcessDied
from runners.agent.shared_process import SharedExecutor


class RewardFunction(SharedExecutor):
    """``module:function`` of (input, result), in the agent's interpreter, loaded once and kept warm.

    An async one serves many slots side by side, any other one after the other.
    """

    _mode = "reward"
    _kind = "reward function "

    async def compute_reward(self, task: Any, result: Any) -> Any:
        """What it returns, any JSON; raises `AgentError` if it fails, `WorkerProcessDied` if its process is gone."""
        try:
            return (await self.run_one(task, result)).get("value")
        except AgentError as error:
            raise AgentError(f"the reward function failed: {error}", error.detail) from error
        except WorkerProcessDied as error:
            raise WorkerProcessDied(f"the reward function is gone: {error}") from error


class RewardingExecutor:
    """An executor whose rollouts are rewarded by a reward function."""

    def __init__(self, executor: AgentExecutor, function: RewardFunction) -> None:
        self._executor, self._function = executor, function

    async def start(self) -> None:
        """Both processes, unless they run."""
        await self._executor.start()
        await self._function.start()

    async def run(self, task: Any, rollout: RolloutInfo | None = None) -> dict[str, Any]:
        """One rollout, and its reward; the agent's process has no part in that."""
        answer = await self._executor.run(task, rollout)
        return {**answer, "reward": await self._function.compute_reward(task, answer.get("value"))}

    async def stop(self) -> None:
        """End both."""
        await self._executor.stop()
        await self._function.stop()


def with_reward_function(executor: AgentExecutor, function: RewardFunction | None) -> AgentExecutor:
    """An executor with its reward function, if there is one."""
    return RewardingExecutor(executor, function) if function is not None else executor
