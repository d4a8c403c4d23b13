"""Rollouts that are wanted: their tasks, which of them are missing, and when they are given up."""

import pytest

from lightningbus.run.errors import UserError
from lightningbus.run.evaluation.batch import RolloutBatch
from lightningbus.run.evaluation.batch_progress import BatchProgress
from lightningbus.run.evaluation.publishing import build_tasks
from lightningbus.run.evaluation.request import SAMPLINGS, RolloutRequest
from lightningbus.tasks.task_loading import TaskInput

PROBLEMS = [TaskInput("a", {"n": 1}, {"difficulty": "hard"}), TaskInput("b", {"n": 2})]


def test_a_request_becomes_samples_of_each_task_under_its_conditions() -> None:
    request = RolloutRequest(
        run="small", agent="notes", evaluation="greedy", model="writer", role_models={"checker": "small"},
        weight_versions={"writer": 3}, prompt_versions={"solver": 2}, samples=2, sampling={"temperature": 0.5},
        rollout_timeout=7.0, id_parts=("greedy", "", "v3"),
    )  # fmt: skip
    batch = RolloutBatch(request, PROBLEMS)
    assert list(batch.tasks) == [f"{id}@small-greedy-v3.{sample}" for id in "ab" for sample in (0, 1)]
    task = batch.tasks["a@small-greedy-v3.1"]
    assert (task.input, task.labels, task.sample_index, task.group_size) == ({"n": 1}, {"difficulty": "hard"}, 1, 2)
    assert (task.run_id, task.agent, task.mode, task.evaluation) == ("small", "notes", "eval", "greedy")
    assert (task.model, task.role_models, task.deadline) == ("writer", {"checker": "small"}, 7.0)
    assert (task.weight_versions, task.prompt_versions) == ({"writer": 3}, {"solver": 2})
    assert task.sampling_params == {"temperature": 0.5}


def test_a_sampling_names_the_evaluation_and_greedy_answers_are_single() -> None:
    request = RolloutRequest(samples=3)
    greedy, sampled = (request.with_sampling(name) for name in SAMPLINGS)
    assert [(each.evaluation, each.samples, each.sampling["temperature"]) for each in (greedy, sampled)] == [
        ("greedy", 1, 0.0),
        ("sampled", 3, 1.0),
    ]
    assert RolloutRequest(evaluation="early").with_sampling("greedy").evaluation == "early-greedy"


def test_what_has_not_ended_is_missing_and_rollouts_of_others_do_not_count() -> None:
    progress = BatchProgress(["a", "b", "c"], patience=10.0, now=0.0)
    assert (progress.num_ended, progress.missing) == (0, {"a", "b", "c"})
    progress.update(["b", "of another batch"], now=1.0)
    assert (progress.num_ended, progress.missing) == (1, {"a", "c"})
    assert not progress.count(3, now=2.0) and progress.num_ended == 2, "one more has ended"
    assert progress.count(4, now=3.0), "all may have"
    progress.update(["b", "c", "of another batch", "of a third"], now=4.0)
    assert (progress.num_ended, progress.missing) == (2, {"a"}), "one of them was of another batch"
    assert not progress.count(4, now=5.0) and progress.count(5, now=6.0)
    progress.update(["a", "b", "c", "of another batch", "of a third"], now=7.0)
    assert (progress.num_ended, progress.missing) == (3, set())


def test_ids_are_read_at_the_end_alone_however_large_the_batch_is() -> None:
    ids = [f"task.{number}" for number in range(1000)]
    progress, num_reads = BatchProgress(ids, patience=10.0, now=0.0), 0
    for num_ended in range(1001):
        if progress.count(num_ended, now=float(num_ended)):
            num_reads += 1
            progress.update(ids[:num_ended], now=float(num_ended))
    assert (num_reads, progress.missing) == (1, set())


def test_it_is_given_up_when_no_rollout_has_ended_within_its_patience() -> None:
    progress = BatchProgress(["a", "b"], patience=10.0, now=0.0)
    assert progress.gives_up_at == 10.0
    progress.update(["of another batch"], now=4.0)
    assert progress.gives_up_at == 10.0, "an end of another is none of these"
    progress.update(["a"], now=6.0)
    assert progress.gives_up_at == 16.0
    progress.update(["a"], now=9.0)
    assert not progress.count(1, now=9.0) and progress.gives_up_at == 16.0, "the same end is no news"
    progress.restart(now=12.0)
    assert (progress.gives_up_at, progress.num_ended) == (22.0, 1)
    assert RolloutRequest(deadline=30.0, rollout_timeout=12.0).patience == 42.0


def test_published_tasks_are_training_unless_they_belong_to_an_evaluation() -> None:
    (task, _) = build_tasks(PROBLEMS)
    assert (task.id, task.mode, task.run_id, task.sampling_params, task.deadline) == ("a@run", "train", "run", {}, 60.0)
    (task, _) = build_tasks(PROBLEMS, evaluation="mine", pass_name="second", temperature=0.5, deadline=3.0)
    assert (task.id, task.mode, task.evaluation) == ("a@run-mine-second", "eval", "mine")
    assert (task.sampling_params, task.deadline) == ({"temperature": 0.5}, 3.0)
    (task, _) = build_tasks(PROBLEMS, mode="eval")
    assert (task.mode, task.evaluation) == ("eval", "")
    with pytest.raises(UserError, match="--evaluation names an evaluation, and --mode train publishes training tasks"):
        build_tasks(PROBLEMS, option_prefix="--", evaluation="mine", mode="train")
    with pytest.raises(UserError, match="--run: '' is not a name"):
        build_tasks(PROBLEMS, option_prefix="--", run="")
