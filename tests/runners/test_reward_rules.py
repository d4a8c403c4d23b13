"""Which number is a rollout's reward."""

import re
from typing import Any

import pytest

from lightningbus.runners.recording import rewards
from lightningbus.runners.recording.rewards import Rewards
from lightningbus.schemas.semconv.rewards import MAX_REWARD
from lightningbus.schemas.spans import Span

SCORE = "gen_ai.evaluation.score.value"


def span(reward: Any, end_ns: int, name: str = "lightningbus.reward") -> Span:
    return Span(trace_id="t", span_id="s", name="x", start_ns=1, end_ns=end_ns, attributes={name: reward})


@pytest.mark.parametrize(
    ("answer", "spans", "expected"),
    [
        ({"value": 1}, [], 1.0),
        ({"value": True}, [], 1.0),
        ({"value": {"reward": 0.5, "text": "x"}}, [], 0.5),
        ({"value": "text", "reward": 0.25}, [span(1.0, 1)], 0.25),
        ({"value": "text"}, [span(0.1, 5), span(0.9, 9), span(0.2, 7)], 0.9),
        ({"value": None}, [span(0.7, 1, "agentlightning.reward.0.value")], 0.7),
    ],
)
def test_reward_comes_from_the_function_the_value_or_the_last_span(
    answer: dict[str, Any], spans: list[Span], expected: float
) -> None:
    from_span = "s" if spans and "reward" not in answer else ""
    assert rewards.resolve_rewards(answer, spans) == Rewards(expected, {}, from_span)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"value": "text", "reward": {"writer": 1, "checker": 0}}, Rewards(1.0, {"writer": 1.0, "checker": 0.0})),
        ({"value": "text", "reward": {"writer": 1, "reward": 0.5}}, Rewards(0.5, {"writer": 1.0, "reward": 0.5})),
        ({"value": "text", "reward": {"reward": 1, "rewards": {"b": 2}}}, Rewards(1.0, {"b": 2.0})),
        ({"value": {"reward": 1.0, "rewards": {"checker": 0.5}}}, Rewards(1.0, {"checker": 0.5})),
        ({"value": {"reward": 1.0, "rewards": {}}}, Rewards(1.0)),
        ({"value": {"reward": {"writer": True, "checker": 0}}}, Rewards(1.0, {"writer": 1.0, "checker": 0.0})),
        ({"value": {"rewards": {"b": 2, "a": 1}, "text": "x"}}, Rewards(2.0, {"b": 2.0, "a": 1.0})),
    ],
)
def test_rewards_have_names_and_the_one_called_reward_is_the_rollouts_else_the_first(
    answer: dict[str, Any], expected: Rewards
) -> None:
    actual = rewards.resolve_rewards(answer, [span(9.0, 1)])
    assert actual == expected and list(actual.by_name) == list(expected.by_name)


def test_an_answer_of_numbers_without_reward_is_no_reward() -> None:
    assert rewards.resolve_rewards({"value": {"answer": 42}}, [span(0.5, 1)]) == Rewards(0.5, {}, "s")


EVALUATIONS = [
    {"name": "gen_ai.evaluation.result", "attributes": {"gen_ai.evaluation.name": name, SCORE: score}}
    for name, score in (("relevance", 4.0), ("fluency", 2))
]


@pytest.mark.parametrize(
    ("fields", "events", "expected"),
    [
        ({"lightningbus.rewards.writer": 1, "lightningbus.rewards.checker": 0.5}, [], {"writer": 1.0, "checker": 0.5}),
        ({"lightningbus.rewards.checker": 0.5}, [], {"checker": 0.5}),
        ({"lightningbus.rewards.a": 2, "lightningbus.reward": 1}, [], {"reward": 1.0, "a": 2.0}),
        (
            {
                "agentlightning.reward.0.name": "task",
                "agentlightning.reward.0.value": 1.0,
                "agentlightning.reward.1.name": "speed",
                "agentlightning.reward.1.value": 0.25,
            },
            [],
            {"task": 1.0, "speed": 0.25},
        ),
        ({"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": 1.0}, [], {}),
        ({}, EVALUATIONS, {"relevance": 4.0, "fluency": 2.0}),
    ],
)
def test_the_last_span_with_rewards_gives_them_by_name(
    fields: dict[str, Any], events: list[dict[str, Any]], expected: dict[str, float]
) -> None:
    last = Span(
        trace_id="t", span_id="last", name="judge", start_ns=1, end_ns=9, attributes=fields, events=tuple(events)
    )
    actual = rewards.resolve_rewards({"value": None}, [last, span(0.1, 5)])
    assert (actual.by_name, actual.span_id) == (expected, "last")
    assert actual.reward == next(iter(expected.values()), 1.0)


def test_an_evaluation_sent_as_a_log_record_is_a_reward_by_its_name() -> None:
    fields = {"gen_ai.evaluation.name": "relevance", SCORE: 4.0, "log.body": None}
    record = Span(trace_id="t", span_id="log", name="gen_ai.evaluation.result", start_ns=1, end_ns=1, attributes=fields)
    assert rewards.resolve_rewards({"value": None}, [record]) == Rewards(4.0, {"relevance": 4.0}, "log")


@pytest.mark.parametrize(
    "answer",
    [{"value": None}, {"value": "9"}, {"value": float("nan")}, {"value": {"reward": "good"}}, {"reward": 1e999}],
)
def test_what_is_not_a_finite_number_is_no_reward(answer: dict[str, Any]) -> None:
    with pytest.raises(rewards.InvalidRewardError):
        rewards.resolve_rewards(answer, [])


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({"reward": {}}, "this one is empty"),
        ({"rewards": [1, 2]}, "rewards are an object of names and numbers, not '[1, 2]'"),
        ({"reward": {"a": "good"}}, "the reward 'a' is a number, not 'good'"),
        ({"reward": {"a": float("inf")}}, "the reward 'a' is a finite number, not inf"),
        ({"reward": {"a" * 65: 1}}, "the name of a reward has 1 to 64 printable characters"),
        ({"reward": {"": 1}}, "the name of a reward has 1 to 64 printable characters: ''"),
        ({"reward": {"\ud83d": 1}}, r"the name of a reward has 1 to 64 printable characters: '\ud83d'"),
        ({"reward": {str(number): 1 for number in range(65)}}, "at most 64 named rewards, not 65"),
        ({"reward": {"a": 1}, "rewards": {"b": 1}}, "not under both"),
        ({"reward": 1, "rewards": {"reward": 0}}, "the reward is 1, and among the rewards it is 0"),
        ({"reward": None, "rewards": {"b": 1}}, "a reward is a number, not 'None'"),
    ],
)
def test_wrong_named_rewards_are_a_sentence(value: dict[str, Any], sentence: str) -> None:
    with pytest.raises(rewards.InvalidRewardError, match=re.escape(sentence)):
        rewards.resolve_rewards({"value": value}, [])


LARGE = [1e39, -1e39, 3.4e38, 10**400, -(10**400), MAX_REWARD * 1.001]


@pytest.mark.parametrize("number", LARGE)
@pytest.mark.parametrize(
    "answer",
    [
        lambda number: {"value": number},
        lambda number: {"value": {"reward": number}},
        lambda number: {"value": {"reward": {"a": number}}},
        lambda number: {"value": {"reward": 1.0, "rewards": {"a": number}}},
        lambda number: {"value": 1.0, "reward": number},
        lambda number: {"value": 1.0, "reward": {"rewards": {"a": number}}},
    ],
)
def test_a_reward_beyond_the_bound_is_refused_wherever_it_stands(number: float, answer: Any) -> None:
    """float32 has no squares of it, or not even the number."""
    with pytest.raises(rewards.InvalidRewardError, match=r"lies between -1e\+12 and 1e\+12|is a finite number"):
        rewards.resolve_rewards(answer(number), [])
    assert rewards.resolve_rewards(answer(MAX_REWARD), []).reward in (1.0, MAX_REWARD)


@pytest.mark.parametrize("number", [1e39, -2e12])
def test_a_reward_beyond_the_bound_in_a_span_or_event_is_refused(number: float) -> None:
    with pytest.raises(rewards.InvalidRewardError, match="lies between"):
        rewards.resolve_rewards({"value": None}, [span(number, 1, "lightningbus.reward")])


def test_wrong_named_rewards_of_the_last_span_are_a_sentence() -> None:
    with pytest.raises(rewards.InvalidRewardError, match="the reward 'checker' is a number, not 'much'"):
        rewards.resolve_rewards({"value": None}, [span("much", 1, "lightningbus.rewards.checker")])
