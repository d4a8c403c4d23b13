"""The grade of one submission, from those of all graders. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from lightningbus.graders.judges.answer import JudgeCall
from lightningbus.graders.settings import AGENT_REWARD, GraderSettings
from lightningbus.schemas.semconv.rewards import is_usable


@dataclass(slots=True)
class Part:
    """One grader's part of a grade for a submission: a reward, or the reason why there is none."""

    reward: float | None = None
    error: str = ""
    calls: list[JudgeCall] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Grade:
    """The reward of a submission; None: grading failed."""

    reward: float | None
    rewards: Mapping[str, float]
    """Rewards by grader, before they are weighed."""
    error: str
    calls: tuple[JudgeCall, ...]
    started_ns: int
    ended_ns: int

    @property
    def cost(self) -> float:
        """Price of the judges' calls."""
        return sum(call.cost for call in self.calls)


def combine(
    parts: Mapping[str, Part], settings: GraderSettings, own_reward: float | None, started_ns: int, ended_ns: int
) -> Grade:
    """Weigh the graders' rewards. A grader that failed and has a weight leaves the submission without a reward."""
    weights = {name: grader.weight for name, grader in settings.graders.items()}
    rewards = {name: part.reward for name, part in parts.items() if part.reward is not None}
    errors = [f"{name}: {part.error}" for name, part in parts.items() if part.reward is None and weights[name]]
    total = sum(weights[name] * reward for name, reward in rewards.items())
    if own_reward is not None:
        rewards[AGENT_REWARD] = own_reward
        total += settings.agent_weight * own_reward
    elif settings.agent_weight:
        errors.append(f"{AGENT_REWARD}: the agent gave no reward, and agent_weight is {settings.agent_weight:g}")
    if not errors and not is_usable(total):
        errors.append(f"the weighted sum {total:g} is no reward")
    calls = tuple(call for part in parts.values() for call in part.calls)
    return Grade(None if errors else total, rewards, "; ".join(errors), calls, started_ns, ended_ns)
