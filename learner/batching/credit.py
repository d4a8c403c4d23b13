"""How a rollout's outcome is shared among its calls: pure functions, by name.

docs/lightningrl.md works through each with numbers.
"""

import importlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from learner.settings.algorithm import CreditSettings

Estimate = Callable[[Sequence[float], Sequence[Hashable]], list[float]]
"""The advantage estimator of the run: scores and the group each belongs to, in; the advantage of each, out."""


@dataclass(frozen=True, slots=True)
class Episode:
    """What credit may depend on: one valid rollout of ``n`` calls."""

    task_id: str
    reward: float
    """The outcome."""
    rewards: tuple[float, ...]
    """``n`` intermediate rewards, each given after its call; the outcome is not among them."""
    states: tuple[Hashable, ...]
    """``n`` keys: two calls of equal key were asked with exactly the same tokens."""

    @classmethod
    def of_calls(
        cls,
        task_id: str,
        reward: float,
        rewards: Sequence[float],
        states: Sequence[Hashable],
        positions: Sequence[int],
    ) -> "Episode":
        """The episode of a policy: its calls at ``positions`` among all calls of a rollout.

        A reward given after a call of another policy goes to the policy's own call before it. What comes before its
        first call is not its doing.
        """
        bounds = [*positions, len(rewards)]
        own_rewards = (sum(rewards[start:end]) for start, end in pairwise(bounds))
        return cls(task_id, reward, tuple(own_rewards), tuple(states[position] for position in positions))

    @property
    def num_calls(self) -> int:
        """How many calls it has."""
        return len(self.rewards)

    def returns(self, gamma: float) -> list[float]:
        """``G_t = r_t + gamma G_(t+1)`` for each call, the outcome being part of the last reward."""
        outcomes: list[float] = []
        ahead = self.reward
        for reward in reversed(self.rewards):
            ahead = reward + (gamma * ahead if outcomes else ahead)
            outcomes.append(ahead)
        return outcomes[::-1]


Credit = Callable[[Sequence[Episode], Estimate, CreditSettings], list[list[float]]]
"""Every valid rollout of a batch in, the advantage of each of its calls out."""


def identical(episodes: Sequence[Episode], estimate: Estimate, settings: CreditSettings) -> list[list[float]]:
    """``A_t = A``: every call gets the rollout's advantage. Agent Lightning (arXiv:2508.03680), section 3.2."""
    return [
        [outcome] * episode.num_calls for outcome, episode in zip(_outcome(episodes, estimate), episodes, strict=True)
    ]


def last_call(episodes: Sequence[Episode], estimate: Estimate, settings: CreditSettings) -> list[list[float]]:
    """``A_t = A`` for the last call, 0 for those before it: single-turn training of the final answer."""
    shared = zip(_outcome(episodes, estimate), episodes, strict=True)
    return [[0.0] * (episode.num_calls - 1) + [outcome] * min(episode.num_calls, 1) for outcome, episode in shared]


def discounted(episodes: Sequence[Episode], estimate: Estimate, settings: CreditSettings) -> list[list[float]]:
    """``A_t = gamma^(n-1-t) A``: a call counts less the further it is from the outcome.

    The discount of Sutton and Barto, *Reinforcement Learning* (2018), section 3.3, on the advantage rather than on
    the reward: a group's standard deviation would divide it out again.
    """
    shared = zip(_outcome(episodes, estimate), episodes, strict=True)
    return [
        [outcome * settings.gamma ** (episode.num_calls - 1 - at) for at in range(episode.num_calls)]
        for outcome, episode in shared
    ]


def reward_to_go(episodes: Sequence[Episode], estimate: Estimate, settings: CreditSettings) -> list[list[float]]:
    """Each call is judged by what came after it: ``G_t = r_t + gamma G_(t+1)`` (Sutton and Barto, section 3.3).

    ``A_t`` is what the estimator says of the rollout had it ended with ``G_t``, every other rollout of the group
    counting once, with the mean of its own returns; without intermediate rewards and at gamma 1 it is `identical`.
    """
    returns = [episode.returns(settings.gamma) for episode in episodes]
    means = [float(np.mean(values or [episode.reward])) for values, episode in zip(returns, episodes, strict=True)]
    members: dict[str, list[int]] = {}
    for index, episode in enumerate(episodes):
        members.setdefault(episode.task_id, []).append(index)
    scores: list[float] = []
    groups: list[Hashable] = []
    positions: list[int] = []
    for index, episode in enumerate(episodes):
        for at, value in enumerate(returns[index]):
            for member in members[episode.task_id]:
                if member == index:
                    positions.append(len(scores))
                scores.append(value if member == index else means[member])
                groups.append((episode.task_id, index, at))
    estimated = estimate(scores, groups) if scores else []
    estimates = iter([estimated[at] for at in positions])
    return [[next(estimates) for _ in range(episode.num_calls)] for episode in episodes]


def air(episodes: Sequence[Episode], estimate: Estimate, settings: CreditSettings) -> list[list[float]]:
    """`reward_to_go` over rewards that rules find in the spans, such as a tool's return status.

    Automatic intermediate rewarding of Agent Lightning (arXiv:2508.03680), section 3.3; the rules are
    ``credit.rules``, applied when the rollout is put together.
    """
    return reward_to_go(episodes, estimate, settings)


def gigpo(episodes: Sequence[Episode], estimate: Estimate, settings: CreditSettings) -> list[list[float]]:
    """``A_t = A + gigpo_step_weight * S_t``: ``S_t`` compares ``G_t`` with other rollouts' calls from the same state.

    GiGPO (arXiv:2505.10978), equations 6 to 9: calls of a task that were asked with the same tokens are a group of
    their own; a state that only one rollout was in has ``S_t = 0``.
    """
    returns = [episode.returns(settings.gamma) for episode in episodes]
    visits: dict[Hashable, list[tuple[int, int]]] = {}
    for index, episode in enumerate(episodes):
        for at, state in enumerate(episode.states):
            visits.setdefault((episode.task_id, state), []).append((index, at))
    compared = [(key, visitors) for key, visitors in visits.items() if len({index for index, _ in visitors}) > 1]
    scores = [returns[index][at] for _, visitors in compared for index, at in visitors]
    groups = [key for key, visitors in compared for _ in visitors]
    step = iter(estimate(scores, groups) if scores else [])
    credit = identical(episodes, estimate, settings)
    for _, visitors in compared:
        for index, at in visitors:
            credit[index][at] += settings.gigpo_step_weight * next(step)
    return credit


CREDIT_FUNCTIONS: dict[str, Credit] = {
    function.__name__: function for function in (identical, last_call, discounted, reward_to_go, air, gigpo)
}


def resolve_credit_fn(name: str) -> Credit:
    """The credit function of a name, or of an import path ``module:function``; raises ValueError with a sentence."""
    if name in CREDIT_FUNCTIONS:
        return CREDIT_FUNCTIONS[name]
    module, _, function = name.partition(":")
    if not function:
        raise ValueError(f"credit: {name!r} is not known; known: {', '.join(CREDIT_FUNCTIONS)}, or module:function")
    try:
        credit_fn = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"credit: {name!r} cannot be imported: {error}") from error
    if not callable(credit_fn):
        raise ValueError(f"credit: {name!r} is not a function")
    return credit_fn  # type: ignore[no-any-return]


def _outcome(episodes: Sequence[Episode], estimate: Estimate) -> list[float]:
    return estimate([episode.reward for episode in episodes], [episode.task_id for episode in episodes])
