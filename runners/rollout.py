"""Running the agent once, and what it came to."""

import asyncio
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from common.observability.faults import MAX_TRACEBACK, count_fault
from runners.agent.executors import AgentFault, Host, ProcessLost
from runners.agent.launcher import CannotStart
from runners.gateway.slot import Slot
from runners.recording import rewards
from runners.recording.attempt import MAX_ERROR, Attempt
from schemas.base import Outcome
from schemas.tasks import Task
from schemas.text import replace_surrogates, shorten

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run of the agent ended; ``result`` is JSON."""

    outcome: Outcome
    error: str = ""
    reward: float | None = None
    reward_span: str = ""
    result: str = ""


async def run_agent(host: Host, slot: Slot, task: Task, attempt: Attempt) -> Ending:
    """Run the agent until it has ended or its deadline has come; whatever goes wrong is an ending too."""
    try:
        ending = await _run(host, slot, task, attempt)
    except Exception as error:  # a fault of ours: not the agent's, and not worth a slot
        count_fault(f"rollout {attempt.rollout}", error)
        ending = Ending("infra", f"the runner failed: {type(error).__name__}: {error}")
    finally:
        slot.end()
    return replace(ending, error=shorten(ending.error, MAX_ERROR))


async def _run(host: Host, slot: Slot, task: Task, attempt: Attempt) -> Ending:
    seconds = task.deadline
    try:
        await host.start()  # of an agent that died: its imports are not part of the rollout's time
        slot.begin(attempt, task, asyncio.get_running_loop().time() + seconds)
        async with asyncio.timeout(seconds):
            answer = await host.run(task.input)
        reward, span = rewards.resolve(answer, attempt.rewarding)
        result = result_of(answer)
    except TimeoutError:
        if attempt.infra or attempt.held:
            return Ending("infra", attempt.infra or f"no model answered within {seconds:g} s")
        return Ending("timeout", f"the agent did not end within its deadline of {seconds:g} s")
    except (CannotStart, ProcessLost) as error:
        return Ending("infra", str(error))
    except (AgentFault, rewards.NotAReward) as error:
        if attempt.infra:
            return Ending("infra", attempt.infra)
        if isinstance(error, AgentFault) and error.detail:
            log.warning("%s", shorten(error.detail, MAX_TRACEBACK))
        return Ending("agent_error", str(error))
    if attempt.unrecordable:
        return Ending("agent_error", attempt.unrecordable)
    return Ending("ok", reward=reward, reward_span=span, result=result)


def result_of(answer: Mapping[str, Any]) -> str:
    """What the agent returned, as JSON; raises `AgentFault` when that nests more deeply than it was read."""
    try:
        return replace_surrogates(json.dumps(answer.get("value"), ensure_ascii=False))
    except RecursionError:
        raise AgentFault("the agent's result is nested too deeply") from None
