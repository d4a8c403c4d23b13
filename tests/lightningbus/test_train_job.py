"""Which versions a job evaluates, what its results hold, and when it may be resumed."""

import asyncio
import io
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from lightningbus.cli.app import app
from lightningbus.inference.settings import InferenceSettings
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.run.display.live_view import LiveView
from lightningbus.run.display.terminal import Terminal
from lightningbus.run.errors import UserError
from lightningbus.run.evaluation.evaluation import Evaluation
from lightningbus.run.evaluation.held_out import HeldOutSet, build_held_out_request, choose_due_versions
from lightningbus.run.evaluation.request import RolloutRequest
from lightningbus.run.jobs import train_job
from lightningbus.run.jobs.prompt_rounds import is_round_due, put_round
from lightningbus.run.preflight.job_checks import TrainJob, parse_job
from lightningbus.run.processes.stack import up
from lightningbus.run.processes.steps_left import check_steps_left
from lightningbus.run.results.base_files import record_base_models
from lightningbus.run.results.best_version import find_best
from lightningbus.run.results.prompt_round import PromptRound
from lightningbus.run.results.results import RESULTS, Results, compute_settings_sha256
from lightningbus.run.results.run_record import (
    check_resumable,
    describe_job,
    find_differences,
    identify_record,
    write_record,
)
from lightningbus.run.run_directory.directory import RunDirectory
from lightningbus.run.settings.evaluation import EvalSettings
from lightningbus.run.settings.optimize import OptimizeSettings
from lightningbus.run.settings.run_file import RunSettings
from lightningbus.run.settings.setting_change import SettingChange
from lightningbus.runners.settings import RunnerSettings
from lightningbus.schemas.training import TrainingStep
from lightningbus.store.settings import StoreSettings
from lightningbus.tasks.task_loading import TaskInput
from tests import seed_store
from tests.store.conftest import prepared


def job_of(directory: Path, heldout: dict[str, Any] | None = None, **learner: Any) -> tuple[RunSettings, TrainJob]:
    (directory / "model").mkdir(exist_ok=True)
    (directory / "model" / "config.json").touch()
    for name in ("train", "heldout"):
        (directory / f"{name}.jsonl").write_text(json.dumps({"id": name, "input": 1}) + "\n")
    settings = RunSettings(
        name="small",
        runs=directory / "runs",
        store=StoreSettings(),
        inference=[InferenceSettings(model_path=directory / "model")],
        runners=[RunnerSettings(entrypoint="agent:solve")],
        learner=LearnerSettings(model_path=directory / "model", tasks=directory / "train.jsonl", **learner),
        eval=EvalSettings(tasks=directory / "heldout.jsonl", **(heldout or {})),
    )
    return settings, parse_job(settings, "run.yaml")


def evaluation(label: str, version: int, mean_reward: float) -> Evaluation:
    return Evaluation(
        label=label,
        version=version,
        mean_reward=mean_reward,
        standard_error=0.1,
        num_tasks=2,
        rollouts=2,
        ok=2,
        seconds=1.0,
    )


@pytest.mark.parametrize(
    ("published", "evaluated", "due"),
    [
        ([0, 1, 2, 3], [0], []),
        ([0, 1, 2, 3, 4], [0], [4]),
        ([0, 3, 6, 9], [0], [6, 9]),
        ([0, 4, 5, 7, 8, 9], [0], [4, 8]),
        ([0, 4, 5, 8], [0, 4], [8]),
        ([0, 4, 6, 7], [0, 4], []),
    ],
    ids=["none yet", "a multiple", "published every third step", "two at once", "one is done", "numbers were skipped"],
)
def test_the_first_version_at_or_after_each_multiple_is_due(
    published: list[int], evaluated: list[int], due: list[int]
) -> None:
    assert choose_due_versions(published, evaluated, every=4) == due


@pytest.mark.parametrize(("sampling", "is_complete"), [(["sampled"], True), (["greedy", "sampled"], False)])
def test_a_version_is_complete_once_it_was_evaluated_in_the_ways_that_are_set(
    sampling: list[str], is_complete: bool
) -> None:
    settings = EvalSettings.model_validate({"tasks": "heldout.jsonl", "sampling": sampling})
    ended = evaluation("sampled", 3, 0.5).model_copy(update={"versions": {"policy": 3}})
    held_out = HeldOutSet(RolloutRequest(), settings, [], [ended])
    assert held_out.is_complete({"policy": 3}) == is_complete and not held_out.is_complete({"policy": 4})


def test_suites_are_due_by_their_own_count_and_apart_from_each_other() -> None:
    settings = EvalSettings.model_validate(
        {
            "tasks": "a.jsonl", "every": 4, "sampling": ["greedy"],
            "suites": [
                {"name": "hard", "tasks": "b.jsonl", "every": 2, "sampling": ["sampled"]},
                {"name": "end", "tasks": "c.jsonl"},
            ],
        }
    )  # fmt: skip
    ended = [
        evaluation(label, version, 0.5).model_copy(update={"versions": {"policy": version}})
        for label, version in (("greedy", 0), ("hard-sampled", 0), ("hard-sampled", 2))
    ]
    main, hard, end = (HeldOutSet(RolloutRequest(), each, [], ended) for each in settings.sets)
    assert main.choose_due(range(6), "policy") == [4] and hard.choose_due(range(6), "policy") == [4]
    assert end.choose_due(range(6), "policy") == [] and settings.has_turns
    assert [each.is_past_due(3, "policy") for each in (main, hard, end)] == [True, True, True]
    assert [each.is_past_due(4, "policy") for each in (main, hard, end)] == [False, False, True]
    assert hard.is_complete({"policy": 2}) and not main.is_complete({"policy": 2})


def test_a_suite_has_its_own_reward_agent_and_names(tmp_path: Path) -> None:
    suites: list[dict[str, Any]] = [
        {"name": "hard", "tasks": str(tmp_path / "heldout.jsonl"), "reward": "exact", "samples": 4, "pass_reward": 0.5},
        {"name": "same", "tasks": str(tmp_path / "heldout.jsonl")},
    ]
    settings, job = job_of(tmp_path, {"suites": suites, "best_by": "hard-sampled"}, reward="partial")
    main, hard, same = (build_held_out_request(settings, each, job.learner) for each in job.eval.sets)
    assert (main.reward, hard.reward, same.reward) == ("partial", "exact", "partial")
    names = [next(each.tasks([TaskInput("a", 1)])).reward_name for each in (main, hard)]
    assert names == ["partial", "exact"], "reports count with the reward of the suite"
    assert (hard.samples, hard.pass_reward, main.pass_reward) == (4, 0.5, 1.0)
    names = [each.with_sampling("greedy").evaluation for each in (main, hard, same)]
    assert names == ["greedy", "hard-greedy", "same-greedy"] and list(job.eval.suites[0].labels) == [
        "hard-greedy",
        "hard-sampled",
    ]
    suites[0]["agent"] = "other"
    with pytest.raises(UserError, match=r"eval\.suites\.0\.agent: no runner here takes tasks of 'other'"):
        job_of(tmp_path, {"suites": suites})


def test_suites_with_one_name_and_an_unknown_best_are_refused() -> None:
    suites = [{"name": "hard", "tasks": "b.jsonl"}] * 2
    with pytest.raises(ValueError, match="suites: two have the name 'hard'"):
        EvalSettings.model_validate({"tasks": "a.jsonl", "suites": suites})
    with pytest.raises(ValueError, match="String should match pattern"):
        EvalSettings.model_validate({"tasks": "a.jsonl", "suites": [{"name": "n" * 57, "tasks": "b.jsonl"}]})
    with pytest.raises(ValueError, match="best_by: there is no evaluation 'hard', but greedy, sampled, hard-greedy"):
        EvalSettings.model_validate({"tasks": "a.jsonl", "suites": suites[:1], "best_by": "hard"})
    with pytest.raises(ValueError, match="patience counts evaluations during training"):
        EvalSettings.model_validate(
            {"tasks": "a.jsonl", "every": 2, "suites": suites[:1], "best_by": "hard-greedy", "patience": 2}
        )


def test_a_resume_may_add_a_suite_but_not_change_one(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    directory.mkdir()
    suite = {"name": "hard", "tasks": str(tmp_path / "heldout.jsonl")}
    _, plain = job_of(tmp_path)
    _, with_suite = job_of(tmp_path, {"suites": [suite]})
    _, changed = job_of(tmp_path, {"suites": [suite | {"samples": 7}]})
    write_record(directory, describe_job(plain.learners, plain.eval))
    check_resumable(directory, describe_job(with_suite.learners, with_suite.eval), 4)
    write_record(directory, describe_job(with_suite.learners, with_suite.eval))
    check_resumable(directory, describe_job(plain.learners, plain.eval), 4)
    with pytest.raises(UserError, match=r"eval\.suites\.hard\.samples was 2 and is 7 now"):
        check_resumable(directory, describe_job(changed.learners, changed.eval), 4)


def test_a_learner_keeps_every_version_that_may_be_evaluated(tmp_path: Path) -> None:
    assert job_of(tmp_path, max_staleness=8)[1].learner.keep_weight_versions == 4
    assert job_of(tmp_path, {"every": 2}, max_staleness=8)[1].learner.keep_weight_versions == 11
    with pytest.raises(UserError, match=r"eval\.every: it needs staleness\.admission bounded"):
        job_of(tmp_path, {"every": 2}, staleness={"admission": "unbounded"})


def prompts(directory: Path, **changes: Any) -> OptimizeSettings:
    fields = {"prompts": {"solver": {"text": "Add."}}, "budget": 90, "every": 2}
    reflection = {"url": "http://127.0.0.1:1/v1", "model": "m"}
    files = {"tasks": directory / "train.jsonl", "heldout": directory / "heldout.jsonl"}
    return OptimizeSettings.model_validate({**fields, **files, "reflection": reflection, **changes})


def optimized(directory: Path, **changes: Any) -> TrainJob:
    settings, _ = job_of(directory, max_staleness=8)
    return parse_job(settings.model_copy(update={"optimize": prompts(directory, **changes)}), "run.yaml")


def test_a_job_that_optimises_prompts_too_keeps_every_version_of_a_round(tmp_path: Path) -> None:
    assert optimized(tmp_path, every=None).learner.keep_weight_versions == 4
    assert optimized(tmp_path).learner.keep_weight_versions == 11
    with pytest.raises(UserError, match=r"optimize\.agent: no runner here takes tasks of 'other'"):
        optimized(tmp_path, agent="other")
    with pytest.raises(UserError, match=r"optimize\.model: agents of this job call 'policy'"):
        optimized(tmp_path, model="other")
    settings, _ = job_of(tmp_path)
    unbounded = LearnerSettings.model_validate(
        settings.learner.model_dump() | {"staleness": {"admission": "unbounded"}}  # type: ignore[union-attr]
    )
    changes = {"optimize": prompts(tmp_path), "learner": unbounded}
    with pytest.raises(UserError, match=r"optimize\.every: it needs staleness\.admission bounded"):
        parse_job(settings.model_copy(update=changes), "run.yaml")


def test_a_job_that_optimises_prompts_goes_on_with_the_same_ones(tmp_path: Path) -> None:
    _, job = job_of(tmp_path)
    begun = describe_job(job.learners, job.eval, prompts(tmp_path))
    assert not list(
        find_differences(begun, describe_job(job.learners, job.eval, prompts(tmp_path, budget=200, every=5)))
    )
    (difference,) = find_differences(begun, describe_job(job.learners, job.eval, prompts(tmp_path, minibatch=5)))
    assert difference == ("optimize.minibatch", 3, 5)


def test_a_job_goes_on_with_the_same_teachers_for_the_same_calls(tmp_path: Path) -> None:
    def described(teacher: Any) -> dict[str, Any]:
        _, job = job_of(tmp_path, teacher=teacher)
        return describe_job(job.learners, job.eval)["learner"]["teacher"]  # type: ignore[no-any-return]

    alone = {"url": "http://t"}
    assert described(alone) == described({**alone, "max_requests": 3}) == {"model": None, "served_model": None}
    both = [{**alone, "name": "a", "roles": ["writer"]}, {**alone, "name": "b"}]
    assert described([{**both[0], "url": "http://u"}, both[1]]) == described(both)
    assert described([{**both[0], "roles": ["reader"]}, both[1]]) != described(both)
    assert described({**alone, "top_k": 2}) != described(alone)


def a_round(version: int, state: str = "finished") -> PromptRound:
    return PromptRound.model_validate({"state": state, "weight_versions": {"policy": version}})


@pytest.mark.parametrize(
    ("begun", "newest", "due"),
    [([], 0, True), ([0], 3, False), ([0], 4, True), ([0, 5], 7, False), ([0, 5], 9, True), ([0], 9, True)],
    ids=["before training", "not yet", "a multiple", "it was late", "the next multiple", "one was missed"],
)
def test_a_round_is_due_before_training_and_at_each_multiple(begun: list[int], newest: int, due: bool) -> None:
    rounds = [a_round(version) for version in begun]
    assert is_round_due(rounds, "policy", {"policy": newest}, every=4) == due


def test_a_round_that_ends_takes_the_place_of_itself() -> None:
    rounds = put_round(put_round([], a_round(0)), a_round(4, "begun"))
    assert put_round(rounds, a_round(4)) == [a_round(0), a_round(4)]


def test_the_best_of_equal_versions_is_the_better_one_in_the_other_evaluations() -> None:
    sampled = [evaluation("sampled", version, reward) for version, reward in ((1, 0.7), (2, 0.6))]
    greedy = [evaluation("greedy", version, reward) for version, reward in ((1, 0.9), (2, 0.9), (3, 0.9), (4, 0.1))]
    best = [find_best(each) for each in (greedy + sampled, greedy)]
    assert [each.version for each in best if each is not None] == [1, 3]
    assert find_best(greedy, "sampled") is find_best([]) is None
    suite = [evaluation("suite-greedy", version, reward) for version, reward in ((1, 0.0), (2, 0.2))]
    best = [find_best(each) for each in (greedy + sampled + suite, greedy + sampled + suite[1:], greedy + suite[1:])]
    assert [each.version for each in best if each is not None] == [2, 1, 2], "a reward that one lacks does not count"
    apart = find_best(greedy + sampled[:1] + suite[1:])
    assert apart is not None and apart.version == 2, "they share none: the newest that has some"


def test_a_job_is_resumed_with_what_it_began_with_and_nothing_else(tmp_path: Path) -> None:
    _, job = job_of(tmp_path)
    directory = tmp_path / "runs" / "small"
    with pytest.raises(UserError, match="holds no training job to resume: start it without --resume"):
        check_resumable(directory, describe_job(job.learners, job.eval), job.learner.max_steps)
    assert not directory.exists()
    directory.mkdir(parents=True)
    write_record(directory, describe_job(job.learners, job.eval))
    assert (directory / "job.json").stat().st_mode & 0o077 == 0

    def resume(heldout: dict[str, Any] | None = None, **learner: Any) -> list[SettingChange]:
        _, job = job_of(tmp_path, heldout, **learner)
        return check_resumable(directory, describe_job(job.learners, job.eval), job.learner.max_steps)

    assert resume() == []
    assert resume({"every": 5, "deadline": 9}, max_steps=400, checkpoint_interval=7) == []
    assert resume(weights={"keep_best": False}) == []
    (change,) = resume(actor={"optim": {"lr": 1e-3}}, max_staleness=3)
    assert change.learner == {"actor": {"optim": {"lr": 1e-3}}, "max_staleness": 3}
    assert (change.model, change.first_step) == ("policy", None)
    assert change.before == {"actor": {"optim": {"lr": 1e-6}}, "max_staleness": 2}
    with pytest.raises(UserError, match=r"learner\.seed was 0 and is 7 now"):
        resume(seed=7)
    with pytest.raises(UserError, match=r"learner\.algorithm\.adv_estimator was \"grpo\" and is \"rloo\" now"):
        resume(algorithm={"adv_estimator": "rloo"})
    with pytest.raises(UserError, match=r"eval\.samples was 2 and is 3 now; or start it without --resume"):
        resume({"samples": 3})
    _, job = job_of(tmp_path)
    (tmp_path / "heldout.jsonl").write_text('{"id": "another", "input": 1}\n')
    with pytest.raises(UserError, match=r"eval\.tasks holds other tasks than before"):
        check_resumable(directory, describe_job(job.learners, job.eval), 100)


def test_a_resume_after_a_change_by_a_callback_records_the_settings_in_force(tmp_path: Path) -> None:
    settings, job = job_of(tmp_path)
    directory = tmp_path / "runs" / "small"
    directory.mkdir(parents=True)
    write_record(directory, describe_job(job.learners, job.eval))
    results = Results.begin(settings, job.learners, job.eval, None)
    by_callback = {"actor": {"optim": {"lr": 8e-4}}}
    results.changes = [
        SettingChange(model="policy", learner=by_callback, reason="faster", changed_at=datetime.now(UTC))
    ]
    results.write(directory)
    _, job = job_of(tmp_path, actor={"optim": {"lr": 1e-4}})
    (change,) = check_resumable(directory, describe_job(job.learners, job.eval), job.learner.max_steps)
    assert (change.before, change.learner) == (by_callback, {"actor": {"optim": {"lr": 1e-4}}})


async def test_a_resume_lists_the_code_that_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    settings, job = job_of(tmp_path)
    settings = settings.model_copy(update={"runners": [RunnerSettings(entrypoint="agent:solve")]})
    for text in ("import helper", "import helper  # as before"):
        (tmp_path / "agent.py").write_text(text)
        (tmp_path / "helper.py").write_text("")
        await train_job._record_code(tmp_path, settings, job)
    await train_job._record_code(tmp_path, settings, job)
    assert capsys.readouterr().err == "code changed since the last start: agent.py\n"


def test_a_job_that_was_moved_with_its_model_is_resumed_there(tmp_path: Path) -> None:
    """Other files of the model, or checkpoints outside the run's directory, are no move."""
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    _, job = job_of(before)
    directory = before / "runs" / "small"
    directory.mkdir(parents=True)
    write_record(directory, describe_job(job.learners, job.eval))
    record_base_models(directory, job.learners)
    record = identify_record(directory)
    shutil.move(before, after)

    def resume(**learner: Any) -> list[SettingChange]:
        _, job = job_of(after, **learner)
        return check_resumable(after / "runs" / "small", describe_job(job.learners, job.eval), job.learner.max_steps)

    assert resume() == []
    with pytest.raises(UserError, match=r"learner\.checkpoint_dir was "):
        resume(checkpoint_dir=after / "checkpoints")
    (after / "model" / "config.json").write_text('{"hidden_size": 4}')
    with pytest.raises(UserError, match=r"learner\.model_path was "):
        resume()
    _, job = job_of(after)
    write_record(after / "runs" / "small", describe_job(job.learners, job.eval))
    assert identify_record(after / "runs" / "small") == record, "it is the same job, which began when it did"


def test_a_finished_job_is_resumed_for_more_steps_only(tmp_path: Path) -> None:
    settings, job = job_of(tmp_path, max_steps=3)
    directory = tmp_path / "runs" / "small"
    directory.mkdir(parents=True)
    write_record(directory, describe_job(job.learners, job.eval))
    results = Results.begin(settings, job.learners, job.eval, None)
    results.is_finished, results.steps = True, 3
    results.write(directory)
    with pytest.raises(UserError, match=r"has all its 3 steps; raise learner\.max_steps to go on"):
        check_resumable(directory, describe_job(job.learners, job.eval), 3)
    check_resumable(directory, describe_job(job.learners, job.eval), 4)


async def test_a_run_that_has_made_its_steps_is_not_started_to_stop_again(tmp_path: Path) -> None:
    settings, job = job_of(tmp_path, max_steps=3)
    check_steps_left("small", job.learners)
    (job.learner.checkpoint_dir / "step-3-1").mkdir(parents=True)
    sentence = "run 'small' has all its 3 steps; raise learner.max_steps to go on"
    with pytest.raises(UserError) as raised:
        check_steps_left("small", job.learners)
    assert str(raised.value) == sentence
    with pytest.raises(UserError, match=sentence):
        await up(settings)
    check_steps_left("small", [job.learner.model_copy(update={"max_steps": 4})])
    check_steps_left("small", [job.learner.model_copy(update={"max_steps": 0})])


def test_the_command_says_in_one_sentence_why_it_cannot_resume(tmp_path: Path) -> None:
    settings, _ = job_of(tmp_path)
    (tmp_path / "run.yaml").write_text(json.dumps(settings.model_dump(mode="json", exclude_unset=True)))
    result = CliRunner().invoke(app, ["train", "--resume", "-c", str(tmp_path / "run.yaml")])
    sentence = f"{tmp_path}/runs/small holds no training job to resume: start it without --resume"
    assert (result.exit_code, sentence in result.stderr) == (2, True), result.output
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("stopped_in", ["_check", "start_stack"])
def test_a_stop_advises_to_resume_only_what_is_on_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped_in: str
) -> None:
    """The checks come first: an earlier run of the name stays as it is until they have ended."""
    settings, job = job_of(tmp_path)
    (tmp_path / "run.yaml").write_text(json.dumps(settings.model_dump(mode="json", exclude_unset=True)))
    RunDirectory(tmp_path / "runs" / "small").create()
    write_record(tmp_path / "runs" / "small", describe_job(job.learners, job.eval))

    async def end_at_once(*_: Any) -> None:
        pass

    async def be_stopped(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()

    monkeypatch.setattr(train_job, "_check", be_stopped if stopped_in == "_check" else end_at_once)
    monkeypatch.setattr(train_job, "start_stack", asynccontextmanager(stopped_context(be_stopped)))
    result = CliRunner().invoke(app, ["train", "-c", str(tmp_path / "run.yaml")])
    has_started = stopped_in == "start_stack"
    sentence = f"lightningbus train --resume -c {tmp_path}/run.yaml goes on" if has_started else "nothing had started"
    assert (result.exit_code, f"stopped before the end: {sentence}" in result.stderr) == (2, True), result.output
    assert len(list((tmp_path / "runs").glob("small*"))) == 1 + has_started, "the earlier one is moved aside"


def stopped_context(stop: Callable[[], Awaitable[None]]) -> Callable[..., AsyncIterator[None]]:
    async def enter(*_: Any) -> AsyncIterator[None]:
        await stop()
        yield

    return enter


def test_settings_differ_by_their_dotted_path() -> None:
    before = {"a": {"b": 1, "c": [1]}, "d": None}
    assert list(find_differences(before, {"a": {"b": 2, "c": [1]}, "e": 3})) == [("a.b", 1, 2), ("e", None, 3)]


def test_results_go_on_from_those_of_the_start_before(tmp_path: Path) -> None:
    settings, job = job_of(tmp_path, seed=7)
    first = Results.begin(settings, job.learners, job.eval, Results.read(tmp_path))
    for each in (evaluation("greedy", 0, 0.25), evaluation("sampled", 0, 0.5), evaluation("greedy", 4, 0.75)):
        first.add_evaluation(each)
    first.add_seconds("training", 10.04)
    first.write(tmp_path)
    second = Results.begin(settings, job.learners, job.eval, Results.read(tmp_path))
    second.add_seconds("training", 5.0)
    second.add_evaluation(evaluation("greedy", 4, 0.8))
    figures = second.to_figures()
    assert (figures["num_starts"], figures["seed"], figures["seconds_by_phase"]) == (2, 7, {"training": 15.0})
    assert [(each["label"], each["version"], each["mean_reward"]) for each in figures["evaluations"]] == [
        ("greedy", 0, 0.25),
        ("sampled", 0, 0.5),
        ("greedy", 4, 0.8),
    ]
    assert (figures["greedy_before"], figures["greedy_after"], figures["sampled_after"]) == (0.25, 0.8, None)
    assert figures["packages"]["torch"] and figures["hardware"]["num_cores"] > 0
    (tmp_path / RESULTS).write_text("{")
    with pytest.raises(UserError, match=r"results\.json cannot be read"):
        Results.read(tmp_path)


def test_equal_settings_have_equal_digests(tmp_path: Path) -> None:
    digests = []
    for name, seed in (("first", 0), ("second", 0), ("second", 1)):
        settings, job = job_of(tmp_path, seed=seed)
        digests.append(compute_settings_sha256(settings.model_copy(update={"name": name}), job.learners, job.eval))
    assert digests[0] == digests[1] != digests[2]


def rewarded_steps() -> list[TrainingStep]:
    """Three steps, each with an eighth more of mean reward."""
    return [
        replace(event, metrics={**event.metrics, "reward/mean": event.step / 8})
        for event in seed_store.run("small", steps=3)
        if isinstance(event, TrainingStep)
    ]


@pytest.mark.integration
@pytest.mark.parametrize("num_starts", [1, 2])
async def test_the_rewards_on_record_are_in_view_after_a_resume_alone(tmp_path: Path, num_starts: int) -> None:
    settings, job = job_of(tmp_path)
    with prepared(tmp_path / "store") as store:
        seed_store.insert(store.sql, rewarded_steps())
        fleet, directory = Mock(members=list), RunDirectory(tmp_path / "small").create()
        for _ in range(num_starts - 1):
            Results.begin(settings, job.learners, job.eval, None).write(directory.path)
        view = LiveView(fleet, "train", Terminal(file=io.StringIO(), width=160))
        stack = Mock(directory=directory, view=view)
        training = train_job._Training(stack, settings, job.learners, job.eval, None, ())
        training._client = store.sql
        await training._show_earlier_rewards()
    assert view._rewards == ({"policy": {1: 0.125, 2: 0.25, 3: 0.375}} if num_starts > 1 else {})


@pytest.mark.integration
def test_steps_and_the_last_reward_are_counted_while_a_job_runs_and_kept_by_a_resume(tmp_path: Path) -> None:
    settings, job = job_of(tmp_path)
    heldout = job.eval.model_copy(update={"max_reward": 1.5})
    results = Results.begin(settings, job.learners, heldout, None)
    assert results.to_figures()["perfect_reward"] == 1.5, "a setting, under a name that is no measurement's"
    with prepared(tmp_path / "store") as store:
        results.count_steps(store.sql)
        assert (results.steps, results.reward) == (0, None)
        seed_store.insert(store.sql, rewarded_steps())
        results.count_steps(store.sql)
    assert (results.steps, results.reward) == (3, 0.375)
    model = results.model
    assert results.models[model].steps == 3, "a job that is interrupted now has the steps of each model"
    results.rollouts, results.excluded, results.models[model].tokens_trained = 24, {"late": 1}, 96
    resumed = Results.begin(settings, job.learners, job.eval, results)
    assert (resumed.num_starts, resumed.steps, resumed.reward) == (2, 3, 0.375)
    assert (resumed.rollouts, resumed.excluded, resumed.models[model].tokens_trained) == (24, {"late": 1}, 96)
    assert resumed.models[model].steps == 3
