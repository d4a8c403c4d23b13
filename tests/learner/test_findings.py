"""Problems of training that the metrics of its steps show."""

import re
from collections.abc import Mapping

import numpy as np
import pytest

from lightningbus.alerts.table import describe
from lightningbus.learner.batching.repetition import is_repeating
from lightningbus.learner.findings import CHECKS, find_problems

WELL = {
    "rollouts": 8.0, "reward/mean": 0.5, "reward/std": 0.4, "groups/trained": 2.0, "groups/without_signal": 0.0,
    "actor/grad_norm": 0.3, "calls": 16.0, "actor/pg_clipfrac": 0.01, "off_policy/ess": 0.97,
}  # fmt: skip
SILENT = {"groups/without_signal": 2.0, "actor/grad_norm": 0.0}
PROBLEMS: list[tuple[str, dict[str, float], str]] = [
    ("rewards_equal", {**SILENT, "reward/mean": 0.25, "reward/std": 0.0}, "all rewards of the last steps are 0.25"),
    ("tools_uncalled", {**SILENT, "rollouts/offered_tools": 8.0}, "of 8 rollouts .* none called one"),
    ("no_signal", {**SILENT, "rollouts/offered_tools": 8.0, "rollouts/called_tool": 1.0}, "had equal rewards"),
    ("no_signal", SILENT, "the rollouts of each group had equal rewards"),
    ("zero_gradient", {"actor/grad_norm": 0.0}, "the gradient of the last steps is 0"),
    ("sampling_constrained", {"truncated_share": 1.0, "truncated/tool_choice": 3.0}, "100% .* with tool_choice"),
    ("rewards_ignored", {"rewards/ignored": 3.0}, "3 calls of a step"),
    ("rollouts_without_call", {"rollouts/without_call": 6.0}, "75% of the rollouts of a step called no model"),
    ("answers_repeat", {"calls/repeating": 4.0}, "25% of the answers"),
    ("tokens_clipped", {"actor/pg_clipfrac": 0.3}, "30% of the tokens"),
    ("sample_small", {"off_policy/ess": 0.2}, "is 20%"),
]


def step(changes: Mapping[str, float] | None = None) -> dict[str, float]:
    """Metrics of a step that is well but for some changes."""
    return {**WELL, **(changes or {})}


@pytest.mark.parametrize(("rule", "changes", "words"), PROBLEMS)
def test_each_problem_is_one_alert_that_says_what_to_do(rule: str, changes: dict[str, float], words: str) -> None:
    num_steps = CHECKS[rule].num_steps
    assert not find_problems([step(changes)] * (num_steps - 1), (), 100)
    ((name, values),) = find_problems([step(changes)] * num_steps, (), 100).items()
    sentence = describe(rule, **values)
    assert name == rule
    assert re.search(words, sentence) and ";" in sentence


def test_an_alert_that_fires_holds_until_no_recent_step_has_the_problem() -> None:
    clipped, well = step({"actor/pg_clipfrac": 0.3}), step()
    assert not find_problems([clipped, clipped, well], (), 100)
    assert find_problems([clipped, well, well], {"tokens_clipped"}, 100) == {"tokens_clipped": {"share": 0.3}}
    assert not find_problems([well] * 3, {"tokens_clipped"}, 100)


def test_a_run_of_few_steps_says_that_it_learned_nothing() -> None:
    assert [*find_problems([step(SILENT)], (), 1)] == ["no_signal"]


@pytest.mark.parametrize("loss", ["actor/teacher_kl", "actor/ce_loss"])
def test_a_step_that_learns_from_more_than_rewards_needs_no_signal(loss: str) -> None:
    taught = step({"groups/without_signal": 2.0, "reward/std": 0.0, loss: 0.4})
    assert not find_problems([taught] * 3, (), 100)


def test_steps_without_rollouts_have_no_problem() -> None:
    supervised = {"rollouts": 0.0, "reward/std": 0.0, "reward/mean": 0.0, "actor/grad_norm": 0.2, "calls": 0.0}
    assert not find_problems([supervised] * 3, (), 100)


@pytest.mark.parametrize("period", [1, 7, 32])
def test_an_answer_that_ends_in_a_repetition_is_told_from_others(period: int) -> None:
    varied = np.arange(200) ** 2 % 1009
    assert is_repeating(np.concatenate([varied, np.tile(np.arange(period), 40)]))
    assert not is_repeating(varied) and not is_repeating(np.concatenate([np.tile(np.arange(period), 40), varied]))


@pytest.mark.parametrize("length", [0, 1, 31])
def test_a_short_answer_does_not_repeat(length: int) -> None:
    assert not is_repeating(np.zeros(length, np.int64))
