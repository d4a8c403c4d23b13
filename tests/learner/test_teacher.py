"""On-policy distillation: a teacher scores each rollout once, whatever is away, and says who can be no teacher."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightningbus.learner.errors import LearnerError
from lightningbus.learner.rollouts.groups import RolloutGroup
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.teacher.score_file import add_recorded_scores
from lightningbus.learner.teacher.scoring import ScoredRollout
from lightningbus.learner.teacher.teachers import Teachers
from lightningbus.learner.transitions.transitions import add_teacher_scores, build_transitions
from tests.factories import group, model_call, rollout
from tests.learner.conftest import builder_for, settings_for, tiny_model, tiny_tokenizer
from tests.learner.scripted_teacher import ScriptedTeacher


@pytest.fixture(scope="module")
def teacher_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("teacher"), vocab_size=320)


def branching() -> list[Any]:
    """Two calls that extend each other, one beside them, and one at another temperature."""
    first = model_call(0, [1, 2], [3, 4])
    return [
        first,
        model_call(1, [1, 2, 3, 4, 5], [6]),
        model_call(2, [1, 2], [7, 8, 9]),
        model_call(3, [9, 9], [8], sampling_params={"temperature": 0.5}),
    ]


def groups_of(*rollouts: Any) -> list[RolloutGroup]:
    tasks = dict.fromkeys(item.task_id for item in rollouts)
    return [group(task, *(item for item in rollouts if item.task_id == task)) for task in tasks]


def taught(model_path: Path, directory: Path, server: ScriptedTeacher, **changes: Any) -> LearnerSettings:
    """Settings of a learner with this teacher."""
    fields = {"url": server.url, **changes.pop("teacher", {})}
    return settings_for(model_path, checkpoint_dir=directory, teacher=fields, **changes)


def test_scores_of_sequences_are_those_of_calls() -> None:
    """A sequence is asked once for the calls that it holds; what cannot be compared has no score."""
    calls = build_transitions(branching())
    scored = ScoredRollout.of_calls("r", calls, range(4))
    assert [sequence.token_ids.tolist() for sequence in scored.sequences] == [[1, 2, 3, 4, 5, 6], [1, 2, 7, 8, 9]]
    merged = scored.merge([np.arange(6, dtype=np.float32), 10 + np.arange(5, dtype=np.float32)])
    np.testing.assert_array_equal(merged, [2, 3, 5, 12, 13, 14, np.nan])
    others = np.full(7, np.nan, np.float32)
    others[6] = 20
    taught_calls = add_teacher_scores(calls, {"one": merged, "other": others})
    np.testing.assert_array_equal(np.concatenate([call.teacher_logprobs for call in taught_calls]), [*merged[:6], 20])  # type: ignore[misc]
    assert [call.teacher for call in taught_calls] == ["one", "one", "one", "other"]
    with pytest.raises(ValueError, match="scores are of other calls"):
        add_teacher_scores(calls, {"one": merged[:-1]})


async def test_each_token_gets_the_teachers_log_probability_and_is_asked_once(
    teacher_path: Path, tmp_path: Path
) -> None:
    rollouts = [rollout("a", 0, 0.0, calls=branching()[:3]), rollout("a", 1, 1.0)]
    async with ScriptedTeacher(teacher_path) as server:
        settings = taught(teacher_path, tmp_path, server)
        teacher = Teachers(settings, lambda _: server.url)
        teacher.begin(rollouts[0])
        groups = groups_of(*rollouts)
        await teacher.score(groups)
        await teacher.score(groups_of(*rollouts))
        await teacher.close()
        again = Teachers(settings, lambda _: None)  # after a restart, with the teacher gone
        await again.score(groups_of(*rollouts))
        await again.close()
        assert set(server.counts.values()) == {1}
        batch = builder_for(settings).build(groups, 0)
        for sequence in batch.sequences:
            assert sequence.teacher_logprobs is not None
            expected = server.score(sequence.token_ids.tolist())
            np.testing.assert_allclose(
                sequence.teacher_logprobs[sequence.trained], np.array([0, *expected])[sequence.trained], atol=1e-5
            )
    assert batch.metrics["tokens/scored"] == batch.metrics["tokens"]
    replayed = groups_of(*rollouts)
    add_recorded_scores(replayed, tmp_path, settings.teachers)
    assert builder_for(settings).build(replayed, 0).compute_sha256() == batch.compute_sha256()
    assert builder_for(settings).build(groups_of(*rollouts), 0).compute_sha256() != batch.compute_sha256()


async def test_a_teacher_that_is_away_is_waited_for_and_asked_a_few_at_once(teacher_path: Path, tmp_path: Path) -> None:
    rollouts = [
        rollout("a", number, 1.0, samples=6, calls=[model_call(0, [1, 2], [3, 4 + number])]) for number in range(6)
    ]
    async with ScriptedTeacher(teacher_path) as server:
        server.is_away = True
        teacher = Teachers(taught(teacher_path, tmp_path, server, teacher={"max_requests": 2}), lambda _: server.url)
        groups = groups_of(*rollouts)
        waiting = asyncio.create_task(teacher.score(groups))
        await server.refused.wait()
        server.is_away = False
        await waiting
        await teacher.close()
    assert set(server.counts.values()) == {1} and len(server.counts) == 6 and server.most_open <= 2
    assert all(item.teacher_scores for item in groups[0].rollouts)
    assert teacher.problem == ""


async def test_a_rollout_beyond_the_teachers_context_is_trained_without_it(teacher_path: Path, tmp_path: Path) -> None:
    long = rollout("a", 0, 1.0, calls=[model_call(0, list(range(1, 20)), [3])])
    short = rollout("a", 1, 0.0, calls=[model_call(0, [1, 2], [3])])
    async with ScriptedTeacher(teacher_path, max_model_len=16) as server:
        settings = taught(teacher_path, tmp_path, server)
        teacher, groups = Teachers(settings, lambda _: server.url), groups_of(long, short)
        await teacher.score(groups)
        await teacher.close()
    batch = builder_for(settings).build(groups, 0)
    assert (batch.metrics["tokens"], batch.metrics["tokens/scored"]) == (2, 1)


async def test_a_teacher_with_other_tokens_is_refused(teacher_path: Path, tmp_path: Path) -> None:
    other = tiny_model(tmp_path / "other", vocab_size=330)
    tokenizer = tiny_tokenizer(other)
    tokenizer.add_tokens(["def", "x**2"])
    tokenizer.save_pretrained(other)
    async with ScriptedTeacher(other) as server:
        teacher = Teachers(taught(teacher_path, tmp_path / "c", server), lambda _: server.url)
        with pytest.raises(LearnerError, match=r"has another tokenizer than .*: it reads a text of .* first to differ"):
            await teacher.score(groups_of(rollout("a", 0, 1.0)))
        await teacher.close()
    assert not server.counts


async def test_a_wrong_key_and_a_server_that_is_no_vllm_are_refused(teacher_path: Path, tmp_path: Path) -> None:
    async with ScriptedTeacher(teacher_path, key="right") as server:
        (tmp_path / "key").write_text("wrong\n")
        settings = taught(teacher_path, tmp_path / "c", server, teacher={"api_key_file": tmp_path / "key"})
        teacher = Teachers(settings, lambda _: server.url)
        with pytest.raises(LearnerError, match="answers 401"):
            await teacher.score(groups_of(rollout("a", 0, 1.0)))
        (tmp_path / "key").write_text("right\n")
        teacher = Teachers(settings, lambda _: server.url)
        await teacher.score(groups := groups_of(rollout("a", 0, 1.0)))
        await teacher.close()
    assert groups[0].rollouts[0].teacher_scores
    missing = settings.model_copy(
        update={"teacher": settings.teacher.model_copy(update={"api_key_file": tmp_path / "no"})}  # type: ignore[union-attr]
    )
    with pytest.raises(LearnerError, match=r"teacher.api_key_file: .* cannot be read"):
        Teachers(missing, lambda _: None)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"teacher": {}}, "name the teacher by `url`, or by `model`"),
        ({"teacher": {"url": "u", "model": "m"}}, "name the teacher by `url`, or by `model`"),
        ({"teacher": {"model": "policy"}}, "'policy' is the model that is trained"),
        ({"teacher": {"url": "u"}, "sampling_params": {"temperature": 0.7}}, "needs sampling_params.temperature 1"),
        ({"loss_weights": {"rl": 0}}, "leaves nothing to learn from"),
    ],
)
def test_settings_of_no_teacher_are_refused(changes: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        LearnerSettings.model_validate({"model_path": "m", **changes})
