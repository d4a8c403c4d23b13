"""The rewards of an attempt, from what the agent gave: a reward function, a return value, or a span. Pure."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lightningbus.schemas.semconv import attributes
from lightningbus.schemas.semconv.rewards import MAIN, MAX_REWARD, extract_rewards, find_main, is_usable, named_rewards
from lightningbus.schemas.spans import MAX_REWARDS, RUNNER_REWARDS, Span

NO_REWARD = "the agent gave no reward"
WAYS = (
    'return a number, or several by name as {"reward": {"correct": 1.0}}; or set a reward function, or emit a span '
    f"with the attribute {attributes.REWARD}"
)
MAX_NAME = 64
"""Characters of a reward's name."""
UNNAMED = (MAIN, "primary", "0")
"""Names of a single reward whose agent gave it none; ``primary`` is Agent Lightning's."""


class InvalidRewardError(ValueError):
    """Something stood where a reward should, and was not a number that can be one."""


@dataclass(frozen=True, slots=True)
class Rewards:
    """The reward of an attempt, and its rewards by name, where it has some."""

    reward: float
    by_name: dict[str, float] = field(default_factory=dict)
    span_id: str = ""
    """The span that all of them were read from; empty: the agent returned them."""


def describe_value(value: Any) -> str:
    """Describe a value found in place of a reward."""
    if value is None:
        return "nothing"
    if isinstance(value, str):
        return f"the text {value[:80]!r}"
    if isinstance(value, Mapping):
        return "an object " + (f"of {', '.join(map(str, value))}"[:80] if value else "without fields")
    return f"a list of {len(value)}" if isinstance(value, Sequence) else f"{str(value)[:80]!r}"


def parse_reward(value: Any, name: str = "") -> float:
    """Convert a value to a float within `MAX_REWARD`; booleans count as 1 and 0. Raise `InvalidRewardError`."""
    what = f"the reward {name!r}" if name else "a reward"
    if not isinstance(value, int | float):
        raise InvalidRewardError(f"{what} is a number, not {str(value)[:80]!r}")
    try:
        reward = float(value)
    except OverflowError:
        reward = math.inf
    if not math.isfinite(reward):
        raise InvalidRewardError(f"{what} is a finite number, not {str(value)[:80]}")
    if not is_usable(reward):
        raise InvalidRewardError(f"{what} lies between -{MAX_REWARD:g} and {MAX_REWARD:g}, and this one is {reward:g}")
    return reward


def parse_named_rewards(value: Any) -> dict[str, float]:
    """Parse finite rewards by name, at least one; raise `InvalidRewardError`."""
    if not isinstance(value, Mapping):
        raise InvalidRewardError(f"rewards are an object of names and numbers, not {str(value)[:80]!r}")
    if not value:
        raise InvalidRewardError("rewards are an object of names and numbers, and this one is empty")
    num_own = len(value) - sum(name in value for name in RUNNER_REWARDS)
    if num_own > MAX_REWARDS:
        raise InvalidRewardError(f"a rollout has at most {MAX_REWARDS} named rewards, not {num_own}")
    for name in value:
        if not 0 < len(name) <= MAX_NAME or not name.isprintable():  # half a character is not printable either
            raise InvalidRewardError(f"the name of a reward has 1 to {MAX_NAME} printable characters: {name[:80]!r}")
    return {name: parse_reward(reward, name) for name, reward in value.items()}


def parse_rewards(fields: Mapping[str, Any]) -> Rewards:
    """Parse ``reward`` (a number, or numbers by name) and ``rewards`` (by name); one of them is given.

    Raises `InvalidRewardError`.
    """
    reward = fields.get("reward")
    if isinstance(reward, Mapping):
        if "rewards" in fields:
            raise InvalidRewardError("rewards by name stand under reward or under rewards, not under both")
        named = parse_named_rewards(reward)
        return Rewards(named[find_main(named)], named)
    if "rewards" not in fields:
        return Rewards(parse_reward(reward))
    if "reward" not in fields:
        named = parse_named_rewards(fields["rewards"])
        return Rewards(named[find_main(named)], named)
    main = parse_reward(reward)
    named = parse_named_rewards(fields["rewards"]) if fields["rewards"] != {} else {}
    if named.get(MAIN, main) != main:
        raise InvalidRewardError(f"the reward is {main:g}, and among the rewards it is {named[MAIN]:g}")
    return Rewards(main, named)


def resolve_rewards(answer: Mapping[str, Any], spans: Iterable[Span], default: float | None = None) -> Rewards:
    """Choose the rewards of the reward function, else of the agent's result, else of the last span with a reward.

    A reward function returns a number, numbers by name, or an object with ``reward`` or ``rewards``; an agent a number
    or such an object. Among rewards by name the rollout's own is ``reward``, else the first. Where there is none it is
    ``default``. Raises `InvalidRewardError`, also where there is no default.
    """
    if "reward" in answer:
        value = answer["reward"]
        return parse_rewards(value if _has_rewards(value) else {"reward": value})
    value = answer.get("value")
    if isinstance(value, Mapping) and ("reward" in value or "rewards" in value):
        return parse_rewards(value)
    if isinstance(value, int | float):
        return Rewards(parse_reward(value))
    in_order = sorted((span for span in spans if _is_reward(span)), key=lambda span: span.end_ns)
    if not in_order and default is not None:
        return Rewards(default)
    if not in_order:
        raise InvalidRewardError(f"{NO_REWARD}: it returned {describe_value(value)}, not a number; {WAYS}")
    last = in_order[-1]
    values = named_rewards(last)
    main = find_main(values)
    if len(values) == 1 and main in UNNAMED:
        return Rewards(parse_reward(values[main]), {}, last.span_id)
    named = parse_named_rewards(values)
    return Rewards(named[main], named, last.span_id)


def resolve_own_rewards(answer: Mapping[str, Any], spans: Sequence[Span]) -> Rewards | None:
    """Choose the rewards that an agent gave of its own accord, where graders give the rollout's; there may be none.

    A number that it returned is its result. Raises `InvalidRewardError` for a reward that is none.
    """
    value = answer.get("value")
    is_given = "reward" in answer or (isinstance(value, Mapping) and ("reward" in value or "rewards" in value))
    if not is_given and not any(map(_is_reward, spans)):
        return None
    return resolve_rewards(answer if is_given else {}, spans)


def _has_rewards(value: Any) -> bool:
    """Return whether a reward function returned an object with ``rewards``, or one whose ``reward`` has names."""
    return isinstance(value, Mapping) and ("rewards" in value or isinstance(value.get("reward"), Mapping))


def _is_reward(span: Span) -> bool:
    return any(True for _ in extract_rewards(span))
