"""Credit and advantages: each method against its formula, worked by hand."""

import math
import sys
from math import nan
from pathlib import Path
from types import ModuleType
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import assume, given
from msgspec.structs import replace

from lightningbus.learner.batching import credit
from lightningbus.learner.batching.credit import Episode
from lightningbus.learner.rollouts.intermediate_rewards import intermediate_rewards
from lightningbus.learner.settings.algorithm import AirRule, AlgorithmSettings, CreditSettings
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.training.estimators import make_estimator
from lightningbus.learner.training.token_weights import loss_weights
from lightningbus.schemas.semconv.rewards import MAX_REWARD
from lightningbus.schemas.spans import Span
from tests.factories import group, model_call, rollout
from tests.learner.conftest import builder_for

GRPO = make_estimator(AlgorithmSettings())
EPSILON = 1e-6


def episode(reward: float, *rewards: float, task: str = "a", states: str = "") -> Episode:
    keys = tuple(states or [str(at) for at in range(len(rewards))])
    return Episode(task, reward, rewards, keys, (2,) * len(rewards))


def by(method: str, *episodes: Episode, estimate: credit.Estimate = GRPO, **options: Any) -> list[list[Any]]:
    return [
        list(values)
        for values in credit.resolve_credit_fn(method)(episodes, estimate, CreditSettings(method=method, **options))
    ]


WON, LOST = episode(1.0, 0.0, 0.0), episode(0.0, 0.0, 0.0, 0.0)
A = 0.5 / (np.std([1, 0], ddof=1) + EPSILON)  # of the winner; the loser's is its negative


@pytest.mark.parametrize(
    ("method", "options", "expected"),
    [
        ("identical", {}, [[A, A], [-A, -A, -A]]),
        ("last_call", {}, [[nan, A], [nan, nan, -A]]),
        ("discounted", {"gamma": 0.5}, [[A / 2, A], [-A / 4, -A / 2, -A]]),
        ("reward_to_go", {}, [[A, A], [-A, -A, -A]]),
        ("air", {}, [[A, A], [-A, -A, -A]]),
        ("gigpo", {"gigpo_step_weight": 0.0}, [[A, A], [-A, -A, -A]]),
        ("gigpo", {}, [[2 * A, 2 * A], [-2 * A, -2 * A, -A]]),  # the third state was one rollout's alone
    ],
    ids=["identical", "last_call", "discounted", "reward_to_go", "air", "gigpo off", "gigpo"],
)
def test_credit_is_its_formula(method: str, options: dict[str, Any], expected: list[list[float]]) -> None:
    for actual, wanted in zip(by(method, WON, LOST, **options), expected, strict=True):
        np.testing.assert_allclose(np.array(actual, dtype=float), wanted, rtol=1e-5)  # None, not trained, is nan there


def test_reward_to_go_judges_a_call_by_what_came_after_it() -> None:
    """Returns 1.5, 1 and 0, 0; the others of the group count once, with the mean of their returns."""
    actual = by("reward_to_go", episode(1.0, 0.5, 0.0), episode(0.0, 0.0, 0.0))
    mine, other = 1.25, 0.0
    for value, advantage in zip([1.5, 1.0], actual[0], strict=True):
        pair = np.array([value, other])
        assert advantage == pytest.approx((value - pair.mean()) / (pair.std(ddof=1) + EPSILON), rel=1e-5)
    pair = np.array([mine, 0.0])
    assert actual[1] == pytest.approx([(0 - pair.mean()) / (pair.std(ddof=1) + EPSILON)] * 2, rel=1e-5)
    plain = [float(x) for x in (1.5, 1.0)]
    raw = by("reward_to_go", episode(1.0, 0.5, 0.0), estimate=make_estimator(AlgorithmSettings(adv_estimator="gae")))
    assert raw == [plain], "with a critic it is the return itself"


def test_gigpo_compares_calls_from_the_same_state_only() -> None:
    """States x of both rollouts, y of the first, z of the second, twice x in the second."""
    item, two = episode(1.0, 0.0, 0.0, states="xy"), episode(0.0, 0.25, 0.0, 0.0, states="xzx")
    actual = by("gigpo", item, two, gamma=1.0, gigpo_step_weight=2.0)
    outcome = by("identical", item, two)
    returns = np.array([1.0, 0.25, 0.0])  # in state x
    step = (returns - returns.mean()) / (returns.std(ddof=1) + EPSILON)
    np.testing.assert_allclose(actual[0], np.add(outcome[0], [2 * step[0], 0]), rtol=1e-5)
    np.testing.assert_allclose(actual[1], np.add(outcome[1], [2 * step[1], 0, 2 * step[2]]), rtol=1e-5)


def test_gigpo_compares_whole_prompts_and_not_what_a_call_added() -> None:
    """A call is recorded as what it adds to earlier ones."""

    def played(sample: int, reward: float, first: int) -> Any:
        second = model_call(1, [5], [6], prompt_prefix_refs=((0, 1),), prompt_sha256=bytes([first]))
        return rollout("a", sample, reward, calls=(model_call(0, [first], [3]), second))

    pair = group("a", played(0, 1.0, 1), played(1, 0.0, 2))
    advantages = [
        builder_for(LearnerSettings.model_validate({"model_path": Path("m"), "credit": {"method": method}}))
        .build([pair], 0)
        .dispositions[0]
        .call_advantages
        for method in ("identical", "gigpo")
    ]
    assert advantages[0] == advantages[1], "no state was shared"


@pytest.mark.parametrize(
    "method", ["identical", "last_call", "discounted", "reward_to_go", "air", "gigpo", "compaction"]
)
@pytest.mark.parametrize("name", ["grpo", "rloo", "reinforce_plus_plus_baseline", "opo", "gpg", "grpo_passk"])
def test_credit_of_a_group_does_not_depend_on_the_others_or_their_order(method: str, name: str) -> None:
    estimate = make_estimator(AlgorithmSettings(adv_estimator=name))
    other = [episode(3.0, 1.0, task="b"), episode(0.0, 0.0, 2.0, task="b")]
    alone = by(method, WON, LOST, estimate=estimate)
    among = by(method, other[0], LOST, other[1], WON, estimate=estimate)
    if name != "reinforce_plus_plus_baseline" and name != "gpg":  # these scale by the whole batch
        for actual, wanted in zip([among[3], among[1]], alone, strict=True):
            np.testing.assert_allclose(np.array(actual, dtype=float), np.array(wanted, dtype=float), rtol=1e-5)
    assert min(value or 0 for value in among[3]) >= 0 >= max(value or 0 for value in among[1])


@pytest.mark.parametrize("name", ["grpo", "opo", "gpg", "gdpo", "reinforce_plus_plus", "reinforce_plus_plus_baseline"])
def test_without_step_rewards_reward_to_go_is_identical_for_every_estimator(name: str) -> None:
    """However many calls a rollout has."""
    estimate = make_estimator(AlgorithmSettings(adv_estimator=name))
    many = episode(0.5, *[0.0] * 7, task="b")
    episodes = [WON, LOST, many, episode(0.0, 0.0, task="b")]
    expected = by("identical", *episodes, estimate=estimate)
    for actual, wanted in zip(by("reward_to_go", *episodes, estimate=estimate), expected, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-5)


def test_a_batch_of_one_rollout_has_no_whitened_advantage() -> None:
    assert make_estimator(AlgorithmSettings(adv_estimator="reinforce_plus_plus"))([1.0], ["a"]) == [0.0]


def test_the_baseline_of_opo_weighs_rollouts_by_their_tokens() -> None:
    """arXiv:2505.23585, equation 8: sum of length times score over sum of lengths."""
    estimate = make_estimator(AlgorithmSettings(adv_estimator="opo"))
    long = Episode("a", 1.0, (0.0, 0.0), ("x", "y"), (20, 10))
    short = Episode("a", 0.0, (0.0,), ("x",), (10,))
    (first, second), (other,) = by("identical", long, short, estimate=estimate)
    assert first == second == pytest.approx(1 - 30 / 40) and other == pytest.approx(-30 / 40)
    with pytest.raises(ValueError, match="'opo' needs the number of tokens of each score"):
        estimate([1.0, 0.0], ["a", "a"])


def test_the_last_call_alone_counts_in_the_weights_where_it_alone_is_trained() -> None:
    settings = LearnerSettings.model_validate({"model_path": Path("m"), "credit": "last_call"})
    batch = builder_for(settings).build([group("a", rollout("a", 0, 1.0), rollout("a", 1, 0.0))], 0)
    assert [row.num_tokens for row in batch.sequences] == [3, 3] and batch.metrics["excluded/credit"] == 2
    assert loss_weights(batch.sequences, "seq-mean-token-mean", batch.num_tokens) == pytest.approx([1 / 6, 1 / 6])
    assert batch.dispositions[0].call_advantages[0] == 0 < batch.dispositions[0].call_advantages[1]


def test_a_discount_per_token_is_refused_where_it_has_no_effect() -> None:
    with pytest.raises(ValueError, match="gamma and lam are for gae: 'reinforce_plus_plus' gives all tokens"):
        AlgorithmSettings(adv_estimator="reinforce_plus_plus", gamma=0.9)
    assert AlgorithmSettings(adv_estimator="gae", gamma=0.9).gamma == 0.9


def test_a_users_own_estimator_is_found_by_its_import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("mine")
    module.above = lambda scores, groups, num_tokens, settings: [
        settings.gamma * score / length for score, length in zip(scores, num_tokens, strict=True)
    ]
    module.wrong = lambda scores, groups, num_tokens, settings: scores[1:]
    monkeypatch.setitem(sys.modules, "mine", module)
    algorithm = {"adv_estimator": "mine:above", "gamma": 0.5}
    settings = LearnerSettings.model_validate({"model_path": Path("m"), "algorithm": algorithm, "group_size": 1})
    batch = builder_for(settings).build([group("a", rollout("a", 0, 1.0))], 0)
    assert batch.dispositions[0].call_advantages == pytest.approx((0.1, 0.1)), "five tokens in two calls"
    with pytest.raises(ValueError, match=r"adv_estimator: mine:wrong returned 1 values for 2 scores"):
        make_estimator(AlgorithmSettings(adv_estimator="mine:wrong"))([1.0, 0.0], ["a", "a"])
    with pytest.raises(ValueError, match="adv_estimator: 'mine:no' cannot be imported"):
        make_estimator(AlgorithmSettings(adv_estimator="mine:no"))


def test_rloo_and_reinforce_plus_plus_are_verls() -> None:
    rloo = make_estimator(AlgorithmSettings(adv_estimator="rloo"))([1.0, 0.0, 0.0], ["a"] * 3)
    np.testing.assert_allclose(rloo, [1.0, -0.5, -0.5], rtol=1e-6)  # against the mean of the others
    plus = make_estimator(AlgorithmSettings(adv_estimator="reinforce_plus_plus"))([1.0, 0.0, 0.0, 1.0], list("aabb"))
    assert np.mean(plus) == pytest.approx(0, abs=1e-6) and plus[0] == plus[3] > 0 > plus[1] == plus[2]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("guess", "adv_estimator: 'guess' is not known; known: gae, gdpo, gpg"),
        ("remax", "'remax' needs reward_baselines"),
    ],
)
def test_an_estimator_that_cannot_be_used_is_refused_with_a_sentence(name: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make_estimator(AlgorithmSettings(adv_estimator=name))


def test_a_users_own_credit_is_found_by_its_import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("mine")
    module.first = lambda episodes, estimate, settings: [
        [1.0] + [0.0] * (episode.num_calls - 1) for episode in episodes
    ]
    module.wrong = lambda episodes, estimate, settings: [[float("nan")] for _ in episodes]
    monkeypatch.setitem(sys.modules, "mine", module)
    settings = LearnerSettings.model_validate({"model_path": Path("m"), "credit": "mine:first"})
    batch = builder_for(settings).build([group("a", rollout("a", 0, 1.0), rollout("a", 1, 0.0))], 0)
    assert batch.dispositions[0].call_advantages == (1.0, 0.0)
    wrong = LearnerSettings.model_validate({"model_path": Path("m"), "credit": "mine:wrong"})
    with pytest.raises(ValueError, match=r"credit.method: mine:wrong returned 1 values for 2 calls"):
        builder_for(wrong).build([group("a", rollout("a", 0, 1.0), rollout("a", 1, 0.0))], 0)
    for name, sentence in (("guess", "known: identical, last"), ("mine:no", "cannot be imported")):
        with pytest.raises(ValueError, match=sentence):
            credit.resolve_credit_fn(name)


def span(name: str, start: int, end: int, **fields: Any) -> Span:
    return Span(trace_id="t", span_id=name, name=name, start_ns=start, end_ns=end, **fields)


CALLS = [
    span("c0", 0, 10, call=model_call(0, [1], [2], response='{"tool_calls": [{"id": "x"}]}')),
    span("c1", 20, 30, call=model_call(1, [1], [2])),
]
TOOL = {"gen_ai.operation.name": "execute_tool"}
RULES = [AirRule(attributes=TOOL, status="error", reward=-0.5), AirRule(name="search *", reward=0.25)]


def test_rules_reward_the_call_before_a_span_or_the_one_that_asked_for_the_tool() -> None:
    spans = [
        *CALLS,
        span("early", -5, -1, attributes=TOOL, status="error"),  # before any call: nobody's
        span("tool", 12, 15, attributes=TOOL, status="error"),
        span("search web", 32, 40, attributes=TOOL, status="ok"),
        span("late answer", 33, 41, attributes={**TOOL, "gen_ai.tool.call.id": "x"}, status="error"),
    ]
    assert intermediate_rewards(spans, "", RULES) == (-1.0, 0.25)
    assert intermediate_rewards(spans, "", []) == (0.0, 0.0)


@pytest.mark.parametrize(
    "text",
    [
        TOOL,  # opentelemetry-instrumentation-genai-langchain and -genai-openai-agents 1.3b0, AutoGen 0.7.5
        {**TOOL, "traceloop.span.kind": "tool"},  # OpenLLMetry 0.62.4: -langchain and -openai-agents
        {"openinference.span.kind": "TOOL"},  # openinference -langchain 0.1.80, -openai-agents 2.6.0
        {**TOOL, "langsmith.span.kind": "tool"},  # langsmith 0.15.0
    ],
)
def test_by_default_a_tool_that_failed_costs_its_call_something_whoever_made_its_span(text: dict[str, str]) -> None:
    rules = CreditSettings(method="air").rules_in_force
    failed = span("add", 12, 15, attributes=text, status="error")
    assert intermediate_rewards([*CALLS, failed], "", rules) == (-0.1, 0.0)
    fine = [replace(failed, status="ok"), span("chain", 12, 15, attributes={"openinference.span.kind": "CHAIN"})]
    assert intermediate_rewards([*CALLS, *fine, replace(fine[1], status="error")], "", rules) == (0.0, 0.0)


def test_a_reward_belongs_to_the_call_it_links() -> None:
    """As agentlightning 0.3.0 links, by ``make_link_attributes``; of its dimensions the first counts."""
    requests = [replace(call, attributes={"gen_ai.response.id": f"chatcmpl-{call.name}"}) for call in CALLS]
    fields = {
        "agentlightning.reward.0.name": "task",
        "agentlightning.reward.0.value": 0.5,
        "agentlightning.reward.1.name": "speed",
        "agentlightning.reward.1.value": 9.0,
        "agentlightning.link.0.key_match": "gen_ai.response.id",
        "agentlightning.link.0.value_match": "chatcmpl-c0",
    }
    late = span("agentlightning.annotation", 40, 40, attributes=fields)
    assert intermediate_rewards([*requests, late], "", []) == (0.5, 0.0)


def test_reward_spans_are_intermediate_rewards_but_for_the_one_that_is_the_outcome() -> None:
    spans = [
        *CALLS,
        span("good", 12, 12, attributes={"lightningbus.reward": 0.5}),
        span("as text, as the store has it", 13, 13, attributes={"agentlightning.reward.0.value": "0.25"}),
        span("nonsense", 14, 14, attributes={"lightningbus.reward": "much"}),
        span("outcome", 40, 40, attributes={"lightningbus.reward": 1.0}),
        span("root", 0, 50, attributes={"lightningbus.reward": 1.0, "lightningbus.outcome": "ok"}),
    ]
    assert intermediate_rewards(spans, "outcome", []) == (0.75, 0.0)
    named = {"lightningbus.rewards.writer": 0.125, "lightningbus.rewards.checker": 9.0}
    assert intermediate_rewards([*spans, span("named", 15, 15, attributes=named)], "outcome", []) == (0.875, 0.0)
    assert intermediate_rewards([*spans, span("named", 15, 15, attributes=named)], "named", []) == (0.75, 1.0)
    assert intermediate_rewards([replace(item, parent_span_id="p") for item in spans], "", []) == (0.75, 1.0)


def test_a_reward_after_anothers_call_goes_to_the_own_call_before_it() -> None:
    states = ["s0", "s1", "s2", "s3"]
    episode = Episode.of_calls("a", 1.0, [0.5, 0.25, 0.125, 1.0], states, [1, 3], [10, 20, 30, 40])
    assert episode.num_tokens == (20, 40)
    assert episode.rewards == (0.375, 1.0) and episode.states == ("s1", "s3")
    assert Episode.of_calls("a", 1.0, [0.5], ["s0"], [], [10]).num_calls == 0


COMPARING = (
    "grpo", "grpo_vectorized", "rloo", "rloo_vectorized", "reinforce_plus_plus_baseline", "opo", "gpg", "gdpo",
    "grpo_passk",
)  # fmt: skip
NOISY = ([0.1] * 8, [0.1 + 0.2, 0.3] * 4, [sum([0.1] * 10), 1.0] * 4, [0.1 + 0.2 - 0.3, 0.0] * 4, [1e12 / 3] * 8)


@pytest.mark.parametrize("divided", [True, False])
@pytest.mark.parametrize("name", COMPARING)
def test_rewards_that_are_equal_up_to_the_error_of_a_sum_have_no_advantage(name: str, divided: bool) -> None:
    """Beside a group whose rewards differ, which has its own as before."""
    estimate = make_estimator(AlgorithmSettings(adv_estimator=name, norm_adv_by_std_in_grpo=divided))
    for noisy in NOISY:
        groups, lengths = ["equal"] * 8 + ["other"] * 4, [3, 5, 1, 2] * 3
        advantages = estimate([*noisy, 1.0, 0.0, 0.0, 0.5], groups, lengths)
        assert advantages[:8] == [0.0] * 8 and any(advantages[8:])


def test_a_batch_of_equal_rewards_has_no_advantage_where_no_task_is_compared() -> None:
    estimate = make_estimator(AlgorithmSettings(adv_estimator="reinforce_plus_plus"))
    assert estimate([0.1 + 0.2, 0.3, 0.3], ["a", "b", "c"]) == [0.0] * 3
    assert estimate([0.31, 0.3, 0.3], ["a", "b", "c"])[0] > 0


@given(
    st.sampled_from(COMPARING), st.booleans(),
    st.lists(st.floats(-MAX_REWARD, MAX_REWARD), min_size=2, max_size=12),
)  # fmt: skip
def test_every_reward_there_may_be_has_a_finite_advantage(name: str, divided: bool, rewards: list[float]) -> None:
    estimate = make_estimator(AlgorithmSettings(adv_estimator=name, norm_adv_by_std_in_grpo=divided))
    advantages = estimate(rewards, ["a"] * len(rewards), [1] * len(rewards))
    assert all(math.isfinite(np.float32(advantage)) for advantage in advantages)


@given(st.floats(-1e6, 1e6), st.floats(1e-4, 1e3), st.integers(2, 8))
def test_a_difference_that_counts_is_kept(reward: float, difference: float, size: int) -> None:
    """A hundredth of a per mille, say: only what float32 could not tell is equal."""
    assume(difference > 1e-6 * (abs(reward) + difference))
    estimate = make_estimator(AlgorithmSettings())
    advantages = estimate([reward + difference, *[reward] * size], ["a"] * (size + 1))
    assert advantages[0] > 0 > advantages[1]
