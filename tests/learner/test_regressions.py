"""The known defects of Agent Lightning's training (v0.x and v1.0), each shown not to be ours.

The numbers are those of its defects; the ones of its queues and stores stand in `tests/runners/test_regressions.py`.
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from lightningbus.learner.batching.batch import Batch
from lightningbus.learner.batching.credit import resolve_credit_fn
from lightningbus.learner.rollouts import groups as groups_module
from lightningbus.learner.rollouts.groups import GroupBuffer, RolloutGroup
from lightningbus.learner.selection.task_order import TaskOrder
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.training.token_weights import loss_weights
from lightningbus.learner.transitions.sequences import SequenceConfig, build_sequences
from lightningbus.learner.transitions.transitions import build_transitions
from lightningbus.schemas.spans import VersionSpan
from tests.factories import group, model_call, rollout
from tests.learner.conftest import builder_for
from tests.learner.test_trainer import Start, batch_of, conversations, gradient_of, sampled_by


def settings(**changes: Any) -> LearnerSettings:
    return LearnerSettings.model_validate({"model_path": Path("m"), **changes})


def make_batch(*groups: RolloutGroup, version: int = 0, **changes: Any) -> Batch:
    return builder_for(settings(**changes)).build(list(groups), version)


def test_01_advantages_are_taken_over_whole_groups_before_anything_is_dropped() -> None:
    """Dropping the stale rollout first would make the baseline 1/2 rather than 1/3, and leave one of a pair alone."""
    stale = rollout("a", 0, 0.0, version=0)
    fresh = [rollout("a", sample, float(sample == 1), version=9) for sample in (1, 2)]
    drop = {"max_staleness": 1, "staleness": {"on_exceed": "drop"}}
    batch = make_batch(group("a", stale, *fresh), version=9, **drop)
    assert [use.exclusion_reason for use in batch.dispositions] == ["stale", "", ""]
    assert batch.dispositions[1].advantage == pytest.approx((1 - 1 / 3) / np.std([0, 1, 0], ddof=1), rel=1e-4)
    pair = make_batch(group("a", stale, dataclasses.replace(fresh[0], reward=5.0)), version=9, **drop)
    assert pair.dispositions[1].advantage == pytest.approx(2.5 / np.std([0, 5], ddof=1), rel=1e-4)
    alone = make_batch(group("a", fresh[0], rollout("a", 3, None, outcome="infra_error")), version=9)
    assert alone.dispositions[0].advantage == 0.0, "and not its raw reward"


def test_02_the_loss_is_a_mean_over_rollouts_not_rows() -> None:
    """However many rows rollouts become, their weights add up to 1."""
    broken = [model_call(0, [1], [2]), model_call(1, [3], [4]), model_call(2, [5], [6])]
    for calls in (None, broken):
        batch = make_batch(group("a", rollout("a", 0, 1.0, calls=calls), rollout("a", 1, 0.0)))
        weights = loss_weights(batch.sequences, "seq-mean-token-mean")
        total = sum(weight * row.num_tokens for weight, row in zip(weights, batch.sequences, strict=True))
        assert total == pytest.approx(1.0)


def test_03_calls_with_the_same_prompt_are_all_trained() -> None:
    """Best-of-n, voting, and the choices of ``n > 1``."""
    votes = [model_call(index, [1, 2], [3 + index]) for index in range(3)]
    batch = make_batch(group("a", rollout("a", 0, 1.0, calls=votes), rollout("a", 1, 0.0, calls=votes)))
    assert batch.metrics["coverage"] == 1.0
    assert sorted(row.token_ids[row.trained].tolist() for row in batch.sequences[:3]) == [[3], [4], [5]]


def test_04_interleaved_agents_merge_into_a_row_each() -> None:
    calls = [
        model_call(0, [1], [2]),
        model_call(1, [11], [12]),
        model_call(2, [1, 2, 3], [4]),
        model_call(3, [11, 12, 13], [14]),
    ]
    batch = make_batch(group("a", rollout("a", 0, 1.0, calls=calls), rollout("a", 1, 0.0)))
    sequences = [row for row in batch.sequences if row.rollout_id == "a.0"]
    assert [row.token_ids.tolist() for row in sequences] == [[1, 2, 3, 4], [11, 12, 13, 14]]


def test_05_what_is_too_long_after_a_break_is_counted_and_never_silently_dropped() -> None:
    long = [*rollout("a", 0, 1.0).calls, model_call(2, list(range(20, 40)), [41, 42])]
    groups = group("a", rollout("a", 0, 1.0, calls=long), rollout("a", 1, 0.0))
    masked = make_batch(groups, seq_len=16)
    assert masked.metrics["excluded/too long"] == 1 and masked.metrics["tokens/excluded"] == 2
    assert masked.dispositions[0].trained, "the rest of it is trained"
    split = make_batch(groups, seq_len=16, overlong="split")
    assert split.metrics["coverage"] == 1.0 and split.metrics["tokens"] == masked.metrics["tokens"] + 2


def test_06_making_a_batch_twice_gives_the_same_batch() -> None:
    groups = group("a", rollout("a", 0, 1.0), rollout("a", 1, 0.0))
    maker = builder_for(settings())
    first = maker.build([groups], 0).compute_sha256()
    assert maker.build([groups], 0).compute_sha256() == first == make_batch(groups).compute_sha256()


def test_07_a_call_without_log_probabilities_takes_only_its_own_rollout_out() -> None:
    bad = rollout("a", 1, 0.0)
    bad = dataclasses.replace(bad, calls=(replace(bad.calls[0], logprobs=b""), bad.calls[1]))
    batch = make_batch(group("a", rollout("a", 0, 1.0), bad, rollout("a", 2, 0.0)))
    assert [use.exclusion_reason for use in batch.dispositions] == ["", "no sequence: malformed", ""]
    assert all((row.logprobs[row.trained] == -1.0).all() for row in batch.sequences), "importance weights stay possible"


def test_08_the_version_is_the_engines_per_token_and_the_lag_is_bounded() -> None:
    mixed = replace(
        model_call(0, [1], [2, 3]),
        weight_versions=(VersionSpan(version=3, start=0, end=1), VersionSpan(version=4, start=1, end=2)),
    )
    groups = group("a", rollout("a", 0, 1.0, calls=[mixed]), rollout("a", 1, 0.0, version=5))
    batch = make_batch(groups, version=5, max_staleness=2)
    assert batch.sequences[0].weight_versions[batch.sequences[0].trained].tolist() == [3, 4]
    assert batch.metrics["staleness/max"] == 2 and batch.dispositions[0].trained
    beyond = make_batch(groups, version=6, max_staleness=2, staleness={"on_exceed": "drop"})
    assert beyond.dispositions[0].exclusion_reason == "stale"


def test_10_a_learner_that_starts_again_dispatches_what_it_would_have() -> None:
    """Position in the stream, groups in the making and place in the tasks come back; see also `test_intake`."""
    whole = [*map(TaskOrder(7, 5).at, range(20))]
    assert [*map(TaskOrder(7, 5).at, range(9, 20))] == whole[9:]
    buffer = GroupBuffer(60.0, lambda item: item.reward is not None, closed=["a"])
    buffer.add(rollout("a", 0, 1.0), 0.0)
    assert buffer.late_attempts and not buffer.ready, "what was used before the restart is not used again"


def test_12_what_has_ended_is_not_remembered_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups_module, "MAX_CLOSED_GROUPS", 10)
    buffer = GroupBuffer(60.0, lambda item: item.reward is not None)
    for number in range(100):
        for sample in range(2):
            buffer.add(rollout(f"t{number}", sample, 1.0, samples=2), 0.0)
        buffer.pop_ready(1)
    assert len(buffer.closed) == 10 and not list(buffer.pending_rollouts())


@pytest.mark.parametrize("estimator", ["gae", "grpo"])
def test_13_rollouts_of_several_rows_train_with_a_critic_and_with_unequal_rewards(start: Start, estimator: str) -> None:
    trainer = start(algorithm={"adv_estimator": estimator}, credit={"method": "reward_to_go"})
    rollouts = [
        dataclasses.replace(item, rewards=tuple(0.1 * place for place in range(len(item.calls))))
        for item in sampled_by(trainer, conversations(), shift=0.1)
    ]
    metrics, (gradient,) = gradient_of(trainer, batch_of(trainer, rollouts))
    assert np.isfinite(metrics["actor/loss"]) and any(float(part.abs().max()) > 0 for part in gradient.values())


@pytest.mark.parametrize("length", [30, 8, 7])
def test_14_windows_of_a_long_call_train_its_response_and_nothing_of_its_prompt(length: int) -> None:
    (call,) = build_transitions([model_call(0, list(range(1, length)), list(range(100, 119)))])
    rows, _ = build_sequences("r", [call], SequenceConfig(max_tokens=8, overlong="split"))
    assert [int(token) for row in rows for token in row.token_ids[row.trained]] == list(range(100, 119))
    for row in rows:
        assert len(row.token_ids) == len(row.call_index) == len(row.logprobs) == len(row.weight_versions) <= 8


def test_15_a_call_that_adds_no_tokens_is_merged_without_its_prompt_twice() -> None:
    calls = [model_call(0, [1, 2], [3, 4]), model_call(1, [1, 2, 3, 4], [5])]
    rows, _ = build_sequences("r", build_transitions(calls), SequenceConfig(max_tokens=16))
    assert [row.token_ids.tolist() for row in rows] == [[1, 2, 3, 4, 5]]
    assert rows[0].call_index.tolist() == [-1, -1, 0, 0, 1]


def test_18_no_state_is_compared_with_a_name_that_does_not_exist() -> None:
    """Names are closed sets that are checked: a misspelt one is an error where it stands, not a branch never taken."""
    with pytest.raises(ValueError, match="is not known"):
        resolve_credit_fn("identicall")
    for wrong in (
        {"staleness": {"on_exceed": "dropp"}},
        {"sequence_mode": "transitions"},
        {"failed_rollouts": "masked"},
    ):
        with pytest.raises(ValueError, match="Input should be"):
            settings(**wrong)
