"""What goes into a step, and the account of what does not."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from lightningbus.learner.batching.batch import Batch
from lightningbus.learner.batching.rollout_dispositions import (
    build_spans,
    excluded,
    find_tasks_to_replace,
    quarantine_reasons,
)
from lightningbus.learner.batching.staleness import mask_stale_tokens, max_staleness_of, token_staleness
from lightningbus.learner.dispatch.group_tasks import tasks_of_group
from lightningbus.learner.rollouts.assembler import Rollout, build_rollout
from lightningbus.learner.rollouts.groups import GroupBuffer, RolloutGroup
from lightningbus.learner.selection.task_order import TaskOrder
from lightningbus.learner.settings.algorithm import AlgorithmSettings
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.training.estimators import make_estimator
from lightningbus.learner.training.token_weights import loss_weights
from lightningbus.learner.transitions.sequences import SequenceConfig, TrainSequence, build_sequences
from lightningbus.learner.transitions.transitions import build_transitions, token_versions
from lightningbus.schemas import ids as identity
from lightningbus.schemas.audits.events import AuditVerdict
from lightningbus.schemas.spans import ModelCall, VersionSpan
from lightningbus.schemas.training import TrainingStep
from lightningbus.tasks.task_loading import TaskInput
from tests.factories import batches, group, model_call, rollout
from tests.learner.conftest import builder_for


def settings(**changes: object) -> LearnerSettings:
    return LearnerSettings.model_validate({"model_path": Path("model"), **changes})


def rewarded(task: str, *rewards: float | None, version: int = 0) -> RolloutGroup:
    return group(
        task,
        *[
            rollout(task, n, reward, outcome="ok" if reward is not None else "infra_error", version=version)
            for n, reward in enumerate(rewards)
        ],
    )


def make_batch(
    groups: list[RolloutGroup], version: int, arguments: LearnerSettings, verdicts: Sequence[AuditVerdict] = ()
) -> Batch:
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    return builder_for(arguments).build(groups, version, quarantine_reasons(rollouts, verdicts, arguments.model))


def rows(*calls: ModelCall, limit: int = 100) -> list[TrainSequence]:
    return build_sequences("r", build_transitions(calls), SequenceConfig(max_tokens=limit))[0]


def test_advantages_are_grpos() -> None:
    rewards = [1.0, 0.0, 0.0, 1.0, 1.0, 0.0]
    actual = make_estimator(AlgorithmSettings())(rewards, ["a"] * 4 + ["b"] * 2)
    for part in (slice(0, 4), slice(4, 6)):
        values = np.array(rewards[part])
        expected = (values - values.mean()) / (values.std(ddof=1) + 1e-6)
        np.testing.assert_allclose(actual[part], expected, rtol=1e-5)


@pytest.mark.parametrize("others", [[None, None], []])
def test_a_group_of_one_valid_rollout_has_no_advantage(others: list[None]) -> None:
    batch = make_batch([rewarded("a", 1.0, *others)], 0, settings())
    assert [use.advantage for use in batch.dispositions] == [0.0] * (1 + len(others))


@pytest.mark.parametrize("called", [[0.0], [1.0, 1.0]])
@pytest.mark.parametrize("method", ["identical", "reward_to_go"])
def test_a_rollout_without_a_call_has_no_part_in_the_baseline(called: list[float], method: str) -> None:
    cached = [rollout("a", sample, 1.0 - called[0], calls=()) for sample in range(len(called), 4)]
    of_model = [rollout("a", sample, reward) for sample, reward in enumerate(called)]
    arguments, mixed = settings(credit=method), group("a", *of_model, *cached)
    batch = make_batch([mixed], 0, arguments)
    assert set(batch.advantages.values()) == {0.0} and len(batch.advantages) == 2 * len(called)
    assert batch.metrics["groups/without_signal"] == 1 and not builder_for(arguments).has_signal(mixed)
    assert batch.metrics["rollouts/without_call"] == len(cached)


def test_rollouts_that_are_offered_tools_are_counted_and_those_that_call_one() -> None:
    tools = json.dumps({"messages": [], "tools": [{"type": "function", "function": {"name": "f"}}]})
    words = json.dumps({"messages": [{"role": "user", "content": 'the "tools": [{'}], "tools": []})
    called = json.dumps({"content": None, "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]})
    text = json.dumps({"content": '"tool_calls": [{'})
    calls = [(tools, called), (tools, text), (words, text), ('{"tools": [', ""), ("[]", "")]
    rollouts = [
        rollout("a", sample, 0.0, calls=[model_call(0, [5], [6], request=request, response=response)])
        for sample, (request, response) in enumerate(calls)
    ]
    metrics = make_batch([group("a", *rollouts)], 0, settings()).metrics
    assert (metrics["rollouts/offered_tools"], metrics["rollouts/called_tool"]) == (2, 1)


@pytest.mark.parametrize("name", ["gae", "reinforce_plus_plus"])
def test_groups_of_one_are_trained_where_the_estimator_compares_none(name: str) -> None:
    arguments = settings(group_size=1, algorithm={"adv_estimator": name})
    batch = make_batch([rewarded("a", 1.0), rewarded("b", 0.0), rewarded("c", None)], 0, arguments)
    first, second, masked = [use.advantage for use in batch.dispositions]
    assert first > second and masked == 0
    buffer = GroupBuffer(10.0, lambda item: item.reward is not None, (), arguments.algorithm.min_group_size)
    buffer.add(rollout("a", 0, 1.0, samples=1), 0.0)
    assert [item.task_id for item in buffer.ready] == ["a"]


def test_groups_of_one_are_refused_where_the_estimator_compares() -> None:
    with pytest.raises(ValueError, match="group_size must be at least 2: grpo compares the rollouts of a task"):
        settings(group_size=1)


def test_what_a_verdict_applies_to_is_never_trained_nor_part_of_its_group() -> None:
    verdict = AuditVerdict(
        engine_id="", version=7, failed_version=7, reason="r", num_tokens=1, evidence=30, decided_at_ns=1
    )
    quarantined = rollout("a", 3, 5.0, version=7)
    groups = [group("a", *(rollout("a", sample, float(sample == 0), version=5) for sample in range(3)), quarantined)]
    groups.append(rewarded("b", 1.0, 0.0, version=7))
    batch = make_batch(groups, 8, settings(max_staleness=9), [verdict])
    reasons = {use.rollout_id: use.exclusion_reason for use in batch.dispositions}
    assert reasons == {
        "a.0": "", "a.1": "", "a.2": "", "a.3": "quarantined: version 7",
        "b.0": "quarantined: version 7", "b.1": "quarantined: version 7",
    }  # fmt: skip
    assert {row.rollout_id for row in batch.sequences} == {"a.0", "a.1", "a.2"}
    assert batch.dispositions[0].advantage == pytest.approx((1 - 1 / 3) / np.std([1, 0, 0], ddof=1), rel=1e-4)
    assert find_tasks_to_replace(batch.dispositions) == ["b"]
    assert make_batch(groups, 8, settings(max_staleness=9)).metrics["rollouts/trained"] == 6


def test_every_rollout_is_accounted_for_and_stale_ones_are_left_out() -> None:
    groups = [rewarded("a", 1.0, 0.0, None, 0.0, version=5), rewarded("b", 1.0, 0.0, version=2)]
    batch = make_batch(groups, 5, settings(max_staleness=2, staleness={"on_exceed": "drop"}))
    assert find_tasks_to_replace(batch.dispositions) == ["b"], "which is dispatched again"
    reasons = {use.rollout_id: use.exclusion_reason for use in batch.dispositions}
    assert reasons == {"a.0": "", "a.1": "", "a.2": "infra_error", "a.3": "", "b.0": "stale", "b.1": "stale"}
    assert {row.rollout_id for row in batch.sequences} == {"a.0", "a.1", "a.3"}
    assert len(batch.sequences) == 3 and len(batch.advantages) == 6, "two calls in one row"
    # The masked rollout is no part of its group: the advantage is that of 1, 0, 0.
    assert batch.dispositions[0].advantage == pytest.approx((1 - 1 / 3) / np.std([1, 0, 0], ddof=1), rel=1e-4)
    assert batch.metrics["staleness/max"] == 0 and batch.metrics["tokens"] == 15
    assert batch.metrics["response_length/mean"] == 15 / 6, "tokens a call"


def test_a_token_is_as_stale_as_the_version_that_made_it() -> None:
    call = model_call(0, [1], [2, 3, 4, 5])
    mixed = replace(
        call, weight_versions=(VersionSpan(version=3, start=0, end=1), VersionSpan(version=4, start=1, end=4))
    )
    assert token_versions(mixed).tolist() == [3, 4, 4, 4]
    assert token_staleness(rows(mixed), 5).tolist() == [2, 1, 1, 1]
    assert max_staleness_of(rows(mixed), 5) == 2
    (masked,) = mask_stale_tokens(rows(mixed), 5, 1)
    assert masked.token_ids[masked.trained].tolist() == [3, 4, 5] and mask_stale_tokens(rows(mixed), 5, 0) == []


@pytest.mark.parametrize(
    ("on_exceed", "reasons", "tokens"),
    [
        ("drop", ["stale", ""], 5),
        ("mask", ["", ""], 8),
        ("keep", ["", ""], 10),
    ],
)
def test_staleness_policies_leave_out_rollouts_or_tokens_or_nothing(
    on_exceed: str, reasons: list[str], tokens: int
) -> None:
    first, second = (rollout("a", sample, 1.0 - sample, version=4) for sample in (0, 1))
    old = replace(first.calls[0], weight_versions=(VersionSpan(version=1, start=0, end=2),))
    groups = [group("a", dataclasses.replace(first, calls=(old, first.calls[1])), second)]
    batch = make_batch(groups, 5, settings(max_staleness=2, staleness={"on_exceed": on_exceed}))
    assert [use.exclusion_reason for use in batch.dispositions] == reasons and batch.metrics["tokens"] == tokens
    assert batch.metrics["coverage"] == 1.0


def test_versions_that_do_not_cover_the_tokens_are_an_error() -> None:
    broken = replace(model_call(0, [1], [2, 3]), weight_versions=(VersionSpan(version=3, start=0, end=1),))
    with pytest.raises(ValueError, match="do not cover"):
        token_versions(broken)


@pytest.mark.parametrize(
    "change", [{"logprobs": b"\0" * 4}, {"weight_versions": ()}, {"response_ids": b"\0" * 7}, {"prompt_ids": b"\0"}]
)
def test_a_malformed_call_leaves_its_rollout_out_and_the_batch_goes_on(change: dict[str, Any]) -> None:
    good, bad = rollout("a", 0, 1.0), rollout("a", 1, 0.0)
    bad = dataclasses.replace(bad, calls=(bad.calls[0], replace(bad.calls[1], **change)))
    batch = make_batch([RolloutGroup("a", 2, 0.0, {good.id: good, bad.id: bad})], 0, settings())
    assert {row.rollout_id for row in batch.sequences} == {good.id}
    assert [use.exclusion_reason for use in batch.dispositions] == ["", "no sequence: malformed"]


def test_over_long_calls_and_other_roles_are_left_out_and_counted() -> None:
    groups = [group("a", rollout("a", 0, 1.0), rollout("a", 1, 0.0))]
    batch = make_batch(groups, 0, settings(train_roles=["writer"]))
    assert [use.exclusion_reason for use in batch.dispositions] == ["no sequence: 2 role"] * 2
    batch = make_batch(groups, 0, settings(seq_len=16))
    assert batch.metrics["calls"] == 4 and batch.metrics["coverage"] == 1.0
    long = model_call(2, list(range(1, 20)), [3])
    groups = [group("a", rollout("a", 0, 1.0, calls=[*rollout("a", 0, 1.0).calls, long]), rollout("a", 1, 0.0))]
    batch = make_batch(groups, 0, settings(seq_len=16))
    assert batch.metrics["excluded/too long"] == 1 and batch.metrics["tokens/excluded"] == 1


@pytest.mark.parametrize("cut", ["transition", "trajectory"])
@pytest.mark.parametrize("mode", ["seq-mean-token-mean", "seq-mean-token-sum", "token-mean"])
def test_row_weights_do_not_depend_on_how_a_rollout_is_cut(mode: str, cut: Any) -> None:
    item, two = rollout("a", 0, 1.0), rollout("a", 1, 0.0)
    shape = SequenceConfig(mode=cut, max_tokens=100)
    built = [row for part in (item, two) for row in build_sequences(part.id, build_transitions(part.calls), shape)[0]]
    total = sum(weight * row.num_tokens for weight, row in zip(loss_weights(built, mode), built, strict=True))
    expected = {"seq-mean-token-mean": 1.0, "token-mean": 1.0, "seq-mean-token-sum": 5.0}
    assert total == pytest.approx(expected[mode])


@pytest.mark.parametrize("mode", ["seq-mean-token-mean", "token-mean"])
def test_a_masked_token_does_not_make_the_others_weigh_more(mode: str) -> None:
    """Of a.0 the first call's two tokens are too old."""
    calls = [model_call(0, [5, 6], [7, 8], 0), model_call(1, [5, 6, 7, 8, 9], [10, 11, 12], 4)]
    groups = [group("a", rollout("a", 0, 1.0, calls=calls), rollout("a", 1, 0.0, version=4))]
    masked = make_batch(groups, 5, settings(max_staleness=1, staleness={"on_exceed": "mask"}))
    kept = make_batch(groups, 5, settings(max_staleness=1))
    assert [batch.metrics["tokens"] for batch in (masked, kept)] == [8, 10]
    weights = [loss_weights(batch.sequences, mode, batch.num_tokens) for batch in (masked, kept)]
    assert weights[0] == weights[1] == pytest.approx([0.1, 0.1])


@pytest.mark.parametrize("mode", ["seq-mean-token-mean", "seq-mean-token-sum", "token-mean"])
def test_the_windows_of_a_rollout_weigh_as_the_whole(mode: str) -> None:
    long = [model_call(0, [1, 2], list(range(3, 43)))]
    groups = [group("a", rollout("a", 0, 1.0, calls=long), rollout("a", 1, 0.0))]
    whole, cut = (make_batch(groups, 0, settings(seq_len=size, overlong="split")) for size in (100, 16))
    assert (len(whole.sequences), len(cut.sequences)) == (2, 6)
    per_token = [
        [weight for weight, row in zip(loss_weights(item.sequences, mode), item.sequences, strict=True)
         for _ in range(row.num_tokens)]
        for item in (whole, cut)
    ]  # fmt: skip
    assert per_token[0] == per_token[1]


def test_spans_of_a_step_belong_to_the_rollouts_traces() -> None:
    groups = [rewarded("a", 1.0, 0.0)]
    batch = make_batch(groups, 0, settings())
    step = TrainingStep(
        run_id="run",
        model="policy",
        step=1,
        version=1,
        epoch=1,
        started_ns=1,
        ended_ns=2,
        rollouts=tuple(batch.dispositions),
        metrics={},
        spans=(),
    )
    spans = build_spans(step, {item.id: item for item in groups[0].rollouts})
    assert [span.trace_id for span in spans] == [identity.trace_id("a.0"), identity.trace_id("a.1")]
    assert spans[0].parent_span_id == identity.root_span_id("a.0", "a.0-1")


def test_what_never_came_into_a_batch_keeps_its_own_reason() -> None:
    uses = excluded([rollout("a", 0, 1.0), rollout("a", 1, None, outcome="timeout")], "late", settings())
    assert [use.exclusion_reason for use in uses] == ["late", "timeout"]
    assert not any(use.trained for use in uses)


def test_dispatch_covers_every_problem_once_per_pass() -> None:
    problems = [TaskInput(str(number), number) for number in range(5)]
    request = settings(group_size=2, seed=3)
    first = [
        tasks_of_group(problems[index], f"p{number}", request) for number, index in map(TaskOrder(5, 3).at, range(10))
    ]
    for number in (0, 1):
        one_pass = first[5 * number : 5 * number + 5]
        assert sorted(tasks[0].input for tasks in one_pass) == [0, 1, 2, 3, 4]
    ids = [identity.rollout_id(task.id, task.sample_index) for tasks in first for task in tasks]
    assert len(set(ids)) == 20


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"prompt": [5, 64]},
        {"response": [2**32 - 1]},
    ],
)
def test_a_rollout_that_would_break_the_trainer_is_left_out(changes: dict[str, Any]) -> None:
    """Tokens that the model does not have, a temperature that is no number: only its own rollout is not trained on."""
    fields = {"temperature": 1.0, "prompt": [5], "response": [6], **changes}
    odd = model_call(0, fields["prompt"], fields["response"], sampling_params={"temperature": fields["temperature"]})
    members = [rollout("a", 0, 1.0, calls=[odd]), rollout("a", 1, 0.0), rollout("a", 2, 1.0)]
    batch = builder_for(settings(), vocabulary_size=64).build([group("a", *members)], 0)
    assert [use.exclusion_reason for use in batch.dispositions] == ["no sequence: malformed", "", ""]


@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
def test_a_reward_that_is_no_finite_number_is_none(reward: float) -> None:
    (whole,) = batches("a", 0, reward, parts=1)
    assert build_rollout([whole], 1, 1).reward is None


def of_two_models(task: str, sample: int, reward: float) -> Rollout:
    """Writer, checker, writer: the checker's tokens are of another version, and of no use to the writer."""
    calls = [
        model_call(0, [1, 2], [3], version=5, model="writer"),
        model_call(1, [9, 9, 9], [8], version=0, model="checker"),
        model_call(2, [1, 2, 3, 4], [5, 6], version=5, model="writer"),
    ]
    return rollout(task, sample, reward, calls=calls, rewards=[0.0, 0.25, 0.0])


def test_a_learner_trains_the_calls_of_its_own_model() -> None:
    groups = [group("a", of_two_models("a", 0, 1.0), of_two_models("a", 1, 0.0))]
    batch = make_batch(groups, 5, settings(model="writer", max_staleness=0))
    assert [disposition.trained for disposition in batch.dispositions] == [True, True]
    assert {call for _, call in batch.advantages} == {0, 2}
    assert batch.metrics["tokens"] == 2 * 3 and batch.metrics["excluded/model"] == 2
    assert batch.dispositions[0].call_advantages[1] == 0.0 and batch.dispositions[0].max_staleness == 0
    other = make_batch(groups, 0, settings(model="checker", max_staleness=0))
    assert {call for _, call in other.advantages} == {1} and other.metrics["tokens"] == 2


def test_calls_of_others_do_not_change_the_batch() -> None:
    """Whether the other model is trained, frozen or an endpoint without tokens: the digest is the same."""
    whole = [group("a", of_two_models("a", 0, 1.0), of_two_models("a", 1, 0.0))]
    foreign = {"model": "checker", "prompt_ids": b"", "response_ids": b"", "logprobs": b"", "weight_versions": ()}
    changed = [
        group(
            "a",
            *(
                dataclasses.replace(
                    member, calls=(member.calls[0], replace(member.calls[1], **foreign), member.calls[2])
                )
                for member in whole[0].rollouts
            ),
        )
    ]
    arguments = settings(model="writer")
    digests = {make_batch(groups, 5, arguments).compute_sha256() for groups in (whole, changed)}
    assert len(digests) == 1


def test_a_rollout_without_a_call_of_the_model_says_so() -> None:
    groups = [group("a", of_two_models("a", 0, 1.0), of_two_models("a", 1, 0.0))]
    batch = make_batch(groups, 5, settings(model="judge"))
    assert {disposition.exclusion_reason for disposition in batch.dispositions} == {"no sequence: 3 model"}


def test_a_verdict_is_on_the_tokens_of_its_own_model() -> None:
    verdict = AuditVerdict(version=0, failed_version=0, reason="", num_tokens=1, evidence=9.0, decided_at_ns=1)
    member = of_two_models("a", 0, 1.0)
    assert quarantine_reasons([member], [verdict], "writer") == {}
    assert quarantine_reasons([member], [verdict], "checker") == {member.id: "quarantined: version 0"}
