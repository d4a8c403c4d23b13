"""Credit functions, which share a rollout's outcome among its calls: pure functions, by name.

docs/lightningrl.md works through each with numbers.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from lightningbus.learner.batching.advantages import Estimator
from lightningbus.learner.settings.algorithm import CreditSettings
from lightningbus.learner.settings.import_path import is_import_path
from lightningbus.learner.settings.own_function import OwnFunction

Estimate = Estimator
"""The advantage estimator of the run: scores, the group and the number of tokens of each in; the advantages out."""


@dataclass(frozen=True, slots=True)
class Episode:
    """Input of a credit function: one valid rollout, of which ``n`` calls are of the trained model.

    Fields:
        task_id: id of the task; episodes of equal id are one group
        reward: the outcome, which training counts
        rewards: ``n`` intermediate rewards, each given after its call; the outcome is not among them
        states: ``n`` keys; two calls of equal key were asked with exactly the same tokens
        num_tokens: ``n`` numbers of tokens that the calls sampled
        windows: ``n`` numbers of context windows: how often the agent had compacted its context before each call
        named_rewards: rewards of the whole rollout by name, such as those that the agent returned; empty: it has none
    """

    task_id: str
    reward: float
    rewards: tuple[float, ...]
    states: tuple[Hashable, ...]
    num_tokens: tuple[int, ...] = ()
    windows: tuple[int, ...] = ()
    named_rewards: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of_calls(
        cls,
        task_id: str,
        reward: float,
        rewards: Sequence[float],
        states: Sequence[Hashable],
        positions: Sequence[int],
        num_tokens: Sequence[int],
        windows: Sequence[int] = (),
        named_rewards: Mapping[str, float] | None = None,
    ) -> "Episode":
        """Return the episode of one policy: its calls at ``positions`` among all calls of a rollout.

        A reward given after a call of another policy goes to the policy's last call before it. Rewards before its first
        call are left out.
        """
        bounds = [*positions, len(rewards)]
        own_rewards = (sum(rewards[start:end]) for start, end in pairwise(bounds))
        return cls(
            task_id,
            reward,
            tuple(own_rewards),
            tuple(states[position] for position in positions),
            tuple(num_tokens[position] for position in positions),
            tuple(windows[position] for position in positions) if windows else (0,) * len(positions),
            named_rewards or {},
        )

    @property
    def num_calls(self) -> int:
        """Number of calls."""
        return len(self.rewards)

    def returns(self, gamma: float) -> list[float]:
        """Return ``G_t = r_t + gamma G_(t+1)`` for each call; the last reward includes the outcome."""
        outcomes: list[float] = []
        ahead = self.reward
        for reward in reversed(self.rewards):
            ahead = reward + (gamma * ahead if outcomes else ahead)
            outcomes.append(ahead)
        return outcomes[::-1]


Credit = Callable[[Sequence[Episode], Estimate, CreditSettings], Sequence[Sequence[float | None]]]
"""Credit function: takes every valid rollout of a batch, returns the advantage of each call; None: it is not trained.
"""


def identical(episodes: Sequence[Episode], estimate: Estimate, settings: CreditSettings) -> list[list[float]]:
    """Give every call the rollout's advantage: ``A_t = A``. Agent Lightning (arXiv:2508.03680), section 3.2."""
    return [
        [outcome] * episode.num_calls for outcome, episode in zip(_outcome(episodes, estimate), episodes, strict=True)
    ]


def last_call(episodes: Sequence[Episode], estimate: Estimate, settings: CreditSettings) -> list[list[float | None]]:
    """Give the last call the advantage, ``A_t = A``: single-turn training of the final answer, the rest is context."""
    return [
        [*[None] * (episode.num_calls - 1), *[outcome] * min(episode.num_calls, 1)]
        for outcome, episode in zip(_outcome(episodes, estimate), episodes, strict=True)
    ]


def discounted(episodes: Sequence[Episode], estimate: Estimate, settings: CreditSettings) -> list[list[float]]:
    """Discount the advantage by the distance from the outcome: ``A_t = gamma^(n-1-t) A``.

    The discount of Sutton and Barto, *Reinforcement Learning* (2018), section 3.3, on the advantage rather than on the
    reward: a group's standard deviation would divide it out again.
    """
    shared = zip(_outcome(episodes, estimate), episodes, strict=True)
    return [
        [outcome * settings.gamma ** (episode.num_calls - 1 - at) for at in range(episode.num_calls)]
        for outcome, episode in shared
    ]


def reward_to_go(episodes: Sequence[Episode], estimate: Estimate, settings: CreditSettings) -> list[list[float]]:
    """Credit each call with the rewards after it: ``G_t = r_t + gamma G_(t+1)`` (Sutton and Barto, section 3.3).

    ``A_t`` is the estimator's advantage of the rollout had it ended with ``G_t``, every other rollout of the group
    counting once, with the mean of its own returns. Without intermediate rewards and at gamma 1 it is `identical`. An
    estimator that scales by the whole batch is called for each call separately: in one call of it, a rollout with many
    calls would count as many rollouts.
    """
    returns = [episode.returns(settings.gamma) for episode in episodes]
    means = [float(np.mean(values or [episode.reward])) for values, episode in zip(returns, episodes, strict=True)]
    lengths = [sum(episode.num_tokens) for episode in episodes]
    if estimate.is_batchwide:
        tasks = [episode.task_id for episode in episodes]
        return [
            _estimate_one_by_one(index, values, means, lambda scores: estimate(scores, tasks, lengths))
            for index, values in enumerate(returns)
        ]
    members: dict[str, list[int]] = {}
    for index, episode in enumerate(episodes):
        members.setdefault(episode.task_id, []).append(index)
    scores: list[float] = []
    groups: list[Hashable] = []
    num_tokens: list[int] = []
    positions: list[int] = []
    for index, episode in enumerate(episodes):
        for at, value in enumerate(returns[index]):
            for member in members[episode.task_id]:
                if member == index:
                    positions.append(len(scores))
                scores.append(value if member == index else means[member])
                groups.append((episode.task_id, index, at))
                num_tokens.append(lengths[member])
    estimated = estimate(scores, groups, num_tokens)
    estimates = iter([estimated[at] for at in positions])
    return [[next(estimates) for _ in range(episode.num_calls)] for episode in episodes]


def air(episodes: Sequence[Episode], estimate: Estimate, settings: CreditSettings) -> list[list[float]]:
    """Apply `reward_to_go` to rewards that rules find in the spans, such as a tool's return status.

    Automatic intermediate rewarding of Agent Lightning (arXiv:2508.03680), section 3.3; the rules are ``credit.rules``,
    applied when the rollout is assembled.
    """
    return reward_to_go(episodes, estimate, settings)


def gigpo(episodes: Sequence[Episode], estimate: Estimate, settings: CreditSettings) -> list[list[float]]:
    """Add to the advantage a comparison of ``G_t`` with other rollouts' calls from the same state, ``S_t``.

    ``A_t = A + gigpo_step_weight * S_t``. GiGPO (arXiv:2505.10978), equations 6 to 9: calls of a task with the same
    prompt tokens form a group; a state that only one rollout was in has ``S_t = 0``.
    """
    returns = [episode.returns(settings.gamma) for episode in episodes]
    visits: dict[Hashable, list[tuple[int, int]]] = {}
    for index, episode in enumerate(episodes):
        for at, state in enumerate(episode.states):
            visits.setdefault((episode.task_id, state), []).append((index, at))
    compared = [(key, visitors) for key, visitors in visits.items() if len({index for index, _ in visitors}) > 1]
    scores = [returns[index][at] for _, visitors in compared for index, at in visitors]
    groups = [key for key, visitors in compared for _ in visitors]
    num_tokens = [sum(episodes[index].num_tokens[at:]) for _, visitors in compared for index, at in visitors]
    step = iter(estimate(scores, groups, num_tokens))
    credit = identical(episodes, estimate, settings)
    for _, visitors in compared:
        for index, at in visitors:
            credit[index][at] += settings.gigpo_step_weight * next(step)
    return credit


def compaction(episodes: Sequence[Episode], estimate: Estimate, settings: CreditSettings) -> list[list[float]]:
    """Lessen the credit of a context window by the tokens that were sampled after its summary.

    ``A_t = lambda_w^N_w * A'_t`` with ``lambda_w = 1 - 1 / (1.5 L_w)``. ``L_w`` tokens were sampled in the window of
    call t, its summary among them, and ``N_w`` in later windows. ``A'_t`` is the advantage of `reward_to_go`: a summary
    has the credit of what follows. The factor is cross-trajectory generalised advantage estimation of CompactionRL
    (arXiv:2607.05378), equation 14, at gamma 1: an early window is far from the outcome, though it ends soon.
    """
    credited = reward_to_go(episodes, estimate, settings)
    for values, episode in zip(credited, episodes, strict=True):
        sampled = Counter[int]()
        for window, count in zip(episode.windows, episode.num_tokens, strict=False):
            sampled[window] += count
        for at, window in enumerate(episode.windows):
            later = sum(count for number, count in sampled.items() if number > window)
            values[at] *= (1 - 1 / (1.5 * max(sampled[window], 1))) ** later
    return credited


CREDIT_FUNCTIONS: dict[str, Credit] = {
    function.__name__: function for function in (identical, last_call, discounted, reward_to_go, air, gigpo, compaction)
}


def needs_windows(name: str) -> bool:
    """Return whether a credit function may use `Episode.windows`, which take time to find."""
    return name == compaction.__name__ or is_import_path(name)


def resolve_credit_fn(name: str) -> Credit:
    """Return the credit function of a name or an import path ``module:function``; raises ValueError if unknown."""
    if name in CREDIT_FUNCTIONS:
        return CREDIT_FUNCTIONS[name]
    if not is_import_path(name):
        raise ValueError(f"credit: {name!r} is not known; known: {', '.join(CREDIT_FUNCTIONS)}, or module:function")
    return _make_own_credit(OwnFunction.load("credit.method", name))


def _make_own_credit(user_function: OwnFunction) -> Credit:
    def share(episodes: Sequence[Episode], estimate: Estimate, settings: CreditSettings) -> list[list[float | None]]:
        credited = user_function.read_list(user_function(episodes, estimate, settings), len(episodes), "rollouts")
        return [
            _read_calls(user_function, values, episode.num_calls)
            for values, episode in zip(credited, episodes, strict=True)
        ]

    return share


def _read_calls(user_function: OwnFunction, values: object, num_calls: int) -> list[float | None]:
    items = user_function.read_list(values, num_calls, "calls of a rollout")
    trained = [item for item in items if item is not None]
    numbers = iter(user_function.read_numbers(trained, len(trained), "calls of a rollout"))
    return [None if item is None else next(numbers) for item in items]


def _outcome(episodes: Sequence[Episode], estimate: Estimate) -> list[float]:
    return estimate(
        [episode.reward for episode in episodes],
        [episode.task_id for episode in episodes],
        [sum(episode.num_tokens) for episode in episodes],
    )


def _estimate_one_by_one(
    index: int, values: Sequence[float], others: Sequence[float], estimate: Callable[[list[float]], list[float]]
) -> list[float]:
    """Return the advantage of episode ``index`` for each of ``values`` as its score, other scores being equal."""
    estimated: dict[float, float] = {}
    for value in values:
        if value not in estimated:
            estimated[value] = estimate([*others[:index], value, *others[index + 1 :]])[index]
    return [estimated[value] for value in values]
