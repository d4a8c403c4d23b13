"""On-policy distillation: a teacher scores each rollout once, whatever is away, and says who can be no teacher."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightningbus.learner.errors import LearnerError
from lightningbus.learner.rollouts.groups import RolloutGroup
from lightningbus.learner.rollouts.teacher_scores import TeacherScores
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.teacher.client import TeacherClient, TeacherUnreachableError
from lightningbus.learner.teacher.score_file import add_recorded_scores
from lightningbus.learner.teacher.scoring import ScoredRollout
from lightningbus.learner.teacher.teacher import Teacher
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


def scores_of(values: Any, top_k: int = 0) -> TeacherScores:
    """Scores of tokens; the likeliest tokens in each place have the next ids, and the negative value."""
    ids = values[:, None] + np.arange(top_k)
    tops = np.repeat(-values[:, None], top_k, 1)
    return TeacherScores(values.astype(np.float32), ids.astype(np.int32), tops.astype(np.float32))


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
    merged = scored.merge([scores_of(np.arange(6), top_k=2), scores_of(10 + np.arange(5), top_k=2)])
    np.testing.assert_array_equal(merged.logprobs, [2, 3, 5, 12, 13, 14, np.nan])
    np.testing.assert_array_equal(merged.top_ids[:, 1], [3, 4, 6, 13, 14, 15, 0])
    np.testing.assert_array_equal(merged.top_logprobs[:, 0], [-2, -3, -5, -12, -13, -14, -np.inf])
    others = TeacherScores.empty(7)
    others.logprobs[6] = 20
    taught_calls = add_teacher_scores(calls, {"one": merged, "other": others})
    joined = TeacherScores.join([call.teacher_scores for call in taught_calls if call.teacher_scores is not None])
    np.testing.assert_array_equal(joined.logprobs, [*merged.logprobs[:6], 20])
    np.testing.assert_array_equal(joined.top_ids, merged.top_ids)  # the other's has none
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
            assert sequence.teacher_scores is not None
            expected = server.score(sequence.token_ids.tolist())
            np.testing.assert_allclose(
                sequence.teacher_scores.logprobs[sequence.trained],
                np.array([0, *expected])[sequence.trained],
                atol=1e-5,
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


ANSWER = b'{"choices": [{"prompt_logprobs": [null, {"2": {"logprob": -1}, "4294967296": {"logprob": -0.5}}]}]}'


@pytest.mark.parametrize(
    ("status", "body", "problem"),
    [
        (403, b"<html>Forbidden</html>", "answers 403: <html>Forbidden"),
        (404, b'{"detail": "Not Found"}', "answers 404"),
        (200, b"<html>Sign in</html>", "does not answer as vLLM's OpenAI server"),
        (200, b'{"status": "ok"}', "does not answer as vLLM's OpenAI server"),
        (200, b'{"choices": [{"prompt_logprobs": [{"2": {"logprob": "\xff"}}]}]}', "does not answer as vLLM's"),
        (200, b'{"choices": []}', "of other tokens"),
        (200, ANSWER, "token ids beyond 32 bits"),
    ],
)
async def test_an_answer_of_a_proxy_before_a_teacher_is_not_the_teachers(
    teacher_path: Path, tmp_path: Path, status: int, body: bytes, problem: str
) -> None:
    async with ScriptedTeacher(teacher_path) as server:
        settings = taught(teacher_path, tmp_path, server, teacher={"top_k": 2})
        server.proxy_answer = status, body
        teacher = Teacher(settings.teachers[0], teacher_path, lambda: server.url)
        client = TeacherClient(settings.teachers[0])
        with pytest.raises(TeacherUnreachableError, match=problem):
            await client.score(server.url, [1, 2])
        waiting = asyncio.create_task(teacher.score([1, 2]))
        server.refused.clear()
        await server.refused.wait()
        server.proxy_answer = None
        scores = await waiting
        await client.close()
        await teacher.close()
    assert scores.is_scored.tolist() == [False, True] and teacher.problem == ""


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


async def test_the_likeliest_tokens_of_a_place_are_scored_once_and_kept(teacher_path: Path, tmp_path: Path) -> None:
    """Also after a restart with the teacher gone; those that the student lacks count among the rest."""
    rollouts = [rollout("a", 0, 0.0, calls=branching()), rollout("a", 1, 1.0)]
    async with ScriptedTeacher(teacher_path) as server:
        settings = taught(teacher_path, tmp_path, server, teacher={"top_k": 4})
        for address in (server.url, None):
            teacher, groups = Teachers(settings, lambda _, where=address: where), groups_of(*rollouts)  # type: ignore[misc]
            await teacher.score(groups)
            await teacher.close()
            batch = builder_for(settings, vocabulary_size=200).build(groups, 0)
            assert batch.metrics["tokens/scored"] == batch.metrics["tokens"] - 1  # sampled at another temperature
            for sequence in batch.sequences:
                scores, place = sequence.teacher_scores, sequence.trained[1:]
                if scores is None:
                    continue
                values, ids = server.log_probs(sequence.token_ids.tolist()).topk(4)
                known = (ids < 200).numpy()
                expected = np.where(known, ids, 0)[place], np.where(known, values, -np.inf)[place]
                assert (~known).any() and scores.top_logprobs[~sequence.trained].max(initial=-np.inf) == -np.inf
                np.testing.assert_array_equal(scores.top_ids[1:][place], expected[0])
                np.testing.assert_allclose(scores.top_logprobs[1:][place], expected[1], atol=1e-5)
        assert set(server.counts.values()) == {1}
    other = settings.model_copy(update={"teacher": settings.teacher.model_copy(update={"top_k": 3})})  # type: ignore[union-attr]
    replayed = groups_of(*rollouts)
    add_recorded_scores(replayed, tmp_path, other.teachers)
    assert not any(item.teacher_scores for item in replayed[0].rollouts)
    add_recorded_scores(replayed, tmp_path, settings.teachers)
    assert builder_for(settings, vocabulary_size=200).build(replayed, 0).compute_sha256() == batch.compute_sha256()


async def test_more_tokens_than_a_server_gives_are_refused_before_the_first_score(
    teacher_path: Path, tmp_path: Path
) -> None:
    async with ScriptedTeacher(teacher_path) as server:
        teacher = Teachers(taught(teacher_path, tmp_path, server, teacher={"top_k": 21}), lambda _: server.url)
        with pytest.raises(
            LearnerError, match=r"teacher\.top_k: .* gives no 21 .* start its server with --max-logprobs 21"
        ):
            await teacher.check()
        await teacher.close()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"teacher": {"url": "u", "direction": "forward"}}, "direction: forward needs top_k of at least 1"),
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
