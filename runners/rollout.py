"""Running the agent once, and what it came to."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from nats.errors import Error as NatsError

from lightningbus.bus.errors import BusError
from lightningbus.common.observability.faults import MAX_TRACEBACK, count_fault
from lightningbus.runners.agent.executors import (
    AgentError,
    AgentExecutor,
    LoopBlockedError,
    RolloutInfo,
    WorkerProcessDiedError,
)
from lightningbus.runners.agent.launcher import AgentStartError
from lightningbus.runners.agent.reward_function import RewardFunctionError, RewardTimeoutError
from lightningbus.runners.gateway.engines.upstream import waited_in_vain
from lightningbus.runners.gateway.slot import Slot
from lightningbus.runners.prompts import PromptUnavailableError
from lightningbus.runners.protocol.prompts import PromptChoice
from lightningbus.runners.protocol.request import find_invalid_sampling
from lightningbus.runners.recording import rewards
from lightningbus.runners.recording.attempt import MAX_ERROR, AttemptRecorder
from lightningbus.runners.workspaces.errors import WorkspaceFailedError, WorkspaceRefusedError
from lightningbus.schemas.base import Outcome
from lightningbus.schemas.tasks import Task
from lightningbus.schemas.text import replace_surrogates, shorten

log = logging.getLogger(__name__)

CUT_REWARD = 0.0
"""Reward of a rollout that a full context cut, where neither a reward function nor a span gives one."""


@dataclass(frozen=True, slots=True)
class RolloutResult:
    """Outcome of a run of the agent; ``result`` is JSON."""

    outcome: Outcome
    error: str = ""
    reward: float | None = None
    rewards: dict[str, float] = field(default_factory=dict)
    """Rewards by name, where the agent gave names."""
    reward_span: str = ""
    result: str = ""


ChoosePrompts = Callable[[Task], Awaitable[tuple[PromptChoice, ...]]]


async def choose_none(task: Task) -> tuple[PromptChoice, ...]:
    """Choose no prompts, for an agent without prompts on the bus."""
    return ()


async def run_agent(
    executor: AgentExecutor,
    slot: Slot,
    task: Task,
    recorder: AttemptRecorder,
    choose_prompts: ChoosePrompts = choose_none,
) -> RolloutResult:
    """Run the agent until it ends or reaches its deadline; every error becomes an outcome."""
    try:
        result = await _run_executor(executor, slot, task, recorder, choose_prompts)
    except Exception as error:  # a fault of ours: not the agent's, and not worth a slot
        count_fault(f"rollout {recorder.rollout}", error)
        result = RolloutResult("infra_error", f"the runner failed: {type(error).__name__}: {error}")
    finally:
        running = slot.rollout
        slot.end()
        if running is not None:
            await running.end_calls()
        await executor.finish(recorder)
    return replace(result, error=shorten(result.error, MAX_ERROR))


async def _run_executor(
    executor: AgentExecutor, slot: Slot, task: Task, recorder: AttemptRecorder, choose_prompts: ChoosePrompts
) -> RolloutResult:
    seconds = task.deadline
    try:
        prompts = await choose_prompts(task)
        await executor.start()  # a restart: its imports are not part of the rollout's time
        await executor.prepare(task.input, recorder.rollout)
        slot.begin(recorder, task, asyncio.get_running_loop().time() + seconds, prompts)
        answer, cut_reason = await _run_to_deadline(executor, task, recorder)
        answer = await executor.grade(task.input, answer)  # within a limit of its own
        earned = _resolve_rewards(answer, recorder, cut_reason)
        result = parse_result(answer)
    except TimeoutError:
        if recorder.poison_reason:
            return RolloutResult("poison", recorder.poison_reason)
        if recorder.infra_error or recorder.num_calls_waiting:
            return RolloutResult("infra_error", recorder.infra_error or waited_in_vain(recorder.waiting_reason))
        return RolloutResult("timeout", f"the agent did not end within its deadline of {seconds:g} s")
    except LoopBlockedError as error:
        return RolloutResult("timeout", f"the agent did not end within its deadline of {seconds:g} s: {error}")
    except RewardTimeoutError as error:
        return RolloutResult("reward_timeout", str(error))
    except (BusError, NatsError) as error:
        return RolloutResult("infra_error", f"the prompts cannot be looked up: {str(error) or type(error).__name__}")
    except WorkspaceRefusedError as error:
        return RolloutResult("poison", str(error))
    except (AgentStartError, WorkerProcessDiedError, PromptUnavailableError, WorkspaceFailedError) as error:
        return RolloutResult("infra_error", str(error))
    except (AgentError, RewardFunctionError, rewards.InvalidRewardError) as error:
        if recorder.poison_reason:
            return RolloutResult("poison", recorder.poison_reason)
        if recorder.infra_error:
            return RolloutResult("infra_error", recorder.infra_error)
        if isinstance(error, AgentError) and error.detail:
            log.warning("%s", shorten(error.detail, MAX_TRACEBACK))
        return RolloutResult("grading_failed" if isinstance(error, RewardFunctionError) else "agent_error", str(error))
    if recorder.unrecordable_reason:
        return RolloutResult("agent_error", recorder.unrecordable_reason)
    if earned is None:
        return RolloutResult("ok", cut_reason, result=result)
    return RolloutResult("ok", cut_reason, earned.reward, earned.by_name, earned.span_id, result)


def _resolve_rewards(answer: Mapping[str, Any], recorder: AttemptRecorder, cut_reason: str) -> rewards.Rewards | None:
    """Return the rewards of an attempt; None: graders give them, and the agent gave none."""
    if recorder.is_graded:
        return rewards.resolve_own_rewards(answer, recorder.reward_spans)
    return rewards.resolve_rewards(answer, recorder.reward_spans, CUT_REWARD if cut_reason else None)


async def _run_to_deadline(
    executor: AgentExecutor, task: Task, recorder: AttemptRecorder
) -> tuple[dict[str, Any], str]:
    """Run the agent as `_run_to_end`; raise TimeoutError at its deadline, or the executor's error about it."""
    try:
        async with asyncio.timeout(task.deadline):
            return await _run_to_end(executor, task, recorder)
    except TimeoutError:
        executor.check_timeout()
        raise


async def _run_to_end(executor: AgentExecutor, task: Task, recorder: AttemptRecorder) -> tuple[dict[str, Any], str]:
    """Run the agent; return its answer, and a sentence if it ended because its context was full.

    Such a rollout is cut, not failed: its calls are good, and it has the reward of what was done until then.
    """
    answer, failure = {"value": None}, ""
    try:
        answer = await executor.run(task.input, describe_rollout(task, recorder))
    except AgentError as error:
        if not recorder.full_context or recorder.infra_error or recorder.poison_reason:
            raise
        failure = f"; the agent then failed: {error}"
    if not recorder.full_context:
        return answer, ""
    return answer, f"the rollout was cut by its full context: {recorder.full_context}{failure}"


def describe_rollout(task: Task, recorder: AttemptRecorder) -> RolloutInfo:
    """Collect the facts about its rollout that an agent may use."""
    return {
        "id": recorder.rollout,
        "attempt": recorder.number,
        "mode": task.mode,
        "model": task.model,
        # What is no JSON is refused where the model is called.
        "sampling_params": {} if find_invalid_sampling(task.sampling_params) else task.sampling_params,
    }


def parse_result(answer: Mapping[str, Any]) -> str:
    """Encode the agent's return value as JSON; raise `AgentError` when it nests more deeply than it was read."""
    try:
        return replace_surrogates(json.dumps(answer.get("value"), ensure_ascii=False))
    except RecursionError:
        raise AgentError("the agent's result is nested too deeply") from None
