"""What `train` says at its end, and what it warns of."""

import errno
import json
from itertools import combinations
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from types import SimpleNamespace
from typing import Any

import pytest

from lightningbus.api.evaluation_result import EvaluationResult
from lightningbus.api.train_result import TrainResult
from lightningbus.run.display.terminal import render_text
from lightningbus.run.errors import UserError
from lightningbus.run.evaluation.evaluation import Evaluation, describe_pass_notes
from lightningbus.run.evaluation.pass_at_k import estimate_pass_at_k
from lightningbus.run.results import reward_picture
from lightningbus.run.results.evaluations_table import EvaluationsTable
from lightningbus.run.results.results import Results
from lightningbus.run.results.train_result import find_warnings
from lightningbus.run.run_directory.directory import RunDirectory
from lightningbus.run.run_directory.whole_file import write_whole
from tests.lightningbus.test_train_job import evaluation, job_of

FIGURES: dict[str, Any] = {
    "rollouts": 9, "tokens_trained": 9, "weight_versions": 2, "seconds": 3.0, "rollouts_lost": 0,
    "rollouts_trained_twice": 0, "mean_staleness": 0.0, "max_staleness": 0,
}  # fmt: skip


def run_of(directory: Path, *models: str) -> Path:
    run = RunDirectory(directory / "pair").create().path
    (run / "bus" / "jetstream").mkdir()
    for model in models:
        fields = {"model": model, "task_model": models[0]}
        (run / "work" / f"learner-{model}.json").write_text(json.dumps(fields))
        (run / "work" / f"learner-{model}-first.json").write_text(json.dumps(fields))
    return run


def test_each_of_several_models_has_a_command_that_exports_it(tmp_path: Path) -> None:
    run = run_of(tmp_path, "writer", "checker")
    assert RunDirectory(run).list_export_commands() == [
        f"lightningbus weights export --run {run} --model writer pair-writer",
        f"lightningbus weights export --run {run} --model checker pair-checker",
    ]
    printed = repr(TrainResult(run, FIGURES, []))
    assert printed.count("export the model: ") == 2 and "--model checker pair-checker" in printed


def test_a_single_model_is_exported_without_its_name(tmp_path: Path) -> None:
    run = run_of(tmp_path, "policy")
    assert RunDirectory(run).list_export_commands() == [f"lightningbus weights export --run {run} pair-model"]


def test_calls_without_a_price_are_named_with_and_without_a_cost(tmp_path: Path) -> None:
    figures, sentence = FIGURES | {"num_unpriced_calls": 2}, "; 2 external model calls have no price"
    run = run_of(tmp_path, "policy")
    assert sentence in (printed := " ".join(repr(TrainResult(run, figures | {"cost": None}, [])).split()))
    assert "cost" not in printed
    assert f"; cost 1.5{sentence}" in " ".join(repr(TrainResult(run, figures | {"cost": 1.5}, [])).split())


def test_the_table_has_the_own_reward_of_each_model() -> None:
    first = {"label": "greedy", "version": 7, "mean_reward": 0.125, "standard_error": None}
    models = {"checker": {"evaluations": [first]}, "writer": {"evaluations": [{**first, "mean_reward": 0.5}]}}
    lines = render_text(EvaluationsTable([evaluation("greedy", 3, 0.5)], models, "writer")).splitlines()
    assert [line.split() for line in lines[1:]] == [
        ["model", "version", "greedy"],
        ["writer", "3", "0.50", "±", "0.10"],
        ["checker", "7", "0.12"],
    ]


def test_a_narrow_terminal_has_a_row_for_each_version_and_evaluation() -> None:
    labels = ["greedy", "sampled", "grade-school-mathematics-greedy", "grade-school-mathematics-sampled"]
    evaluations = [
        evaluation(label, version, 0.5).model_copy(update={"interval": (0.25, 0.75)})
        for version in (0, 12)
        for label in labels
    ]
    table = EvaluationsTable(evaluations, {}, "policy")
    lines = render_text(table, 80).splitlines()
    assert [line.split() for line in lines[1:]] == [
        ["version", "evaluation", "reward"],
        *([str(each.version), each.label, "0.50", "(0.25", "to", "0.75)"] for each in evaluations),
    ]
    assert render_text(table, 120).splitlines()[1].split() == ["version", *labels]


def test_the_table_of_one_model_does_not_name_it() -> None:
    table = render_text(EvaluationsTable([evaluation("greedy", 3, 0.5)], {"policy": {"evaluations": []}}, "policy"))
    assert "model" not in table and "policy" not in table and "0.50 ± 0.10" in table


def test_the_table_has_a_column_for_each_suite_and_for_pass_at_k() -> None:
    passes = estimate_pass_at_k([4, 4], [1, 4])
    suite = evaluation("hard-sampled", 3, 0.25).model_copy(update={"pass_at": passes})
    lines = render_text(EvaluationsTable([evaluation("greedy", 3, 0.5), suite], {}, "policy")).splitlines()
    assert lines[1].split("  ")[-1].strip() == "hard-sampled pass@4"
    assert lines[2].split() == ["3", "0.50", "±", "0.10", "0.25", "±", "0.10", "1.00", "(0.34", "to", "1.00)"]


def test_a_threshold_that_fits_the_rewards_of_no_version_is_named_below_the_table(tmp_path: Path) -> None:
    note = "none is 1 or more; rewards are 0 to 0.7"
    several = estimate_pass_at_k([4, 4], [0, 0])
    first, last = (
        evaluation("sampled", version, 0.25).model_copy(update={"pass_at": several, "pass_note": note})
        for version in (0, 5)
    )
    greedy = evaluation("greedy", 5, 0.25).model_copy(
        update={"pass_at": estimate_pass_at_k([1], [0]), "pass_note": note}
    )
    printed = " ".join(repr(TrainResult(run_of(tmp_path, "policy"), FIGURES, [first, greedy, last])).split())
    assert f"pass@k of sampled: {note}: say by eval.pass_reward which of them is a success" in printed
    assert "pass@k of greedy" not in printed
    fitting = last.model_copy(update={"pass_note": ""})
    assert describe_pass_notes([first, fitting]) == []
    suite = last.model_copy(update={"label": "hard-sampled"})
    assert describe_pass_notes([fitting, suite])[0].startswith(f"pass@k of hard-sampled: {note}: say by eval.suites.")


def test_an_evaluation_by_itself_shows_pass_at_k(tmp_path: Path) -> None:
    note = "none is 1 or more; rewards are 0 to 0.7"
    greedy = evaluation("greedy", 0, 0.5).model_copy(update={"pass_at": estimate_pass_at_k([1, 1], [0, 1])})
    sampled = evaluation("sampled", 0, 0.5).model_copy(update={"pass_at": estimate_pass_at_k([4, 4], [1, 4])})
    result = EvaluationResult(tmp_path, {"greedy": greedy, "sampled": sampled})
    table = result.table()
    assert table.column("pass@2") == [None, 0.75] and table[1]["pass@2_standard_error"] == pytest.approx(0.25)
    assert table[1]["pass@4"] == 1.0
    assert "1.00 (0.34 to 1.00)" in repr(result) and "pass@4_standard_error" not in repr(result)
    assert not [name for name in EvaluationResult(tmp_path, {"greedy": greedy}).table().columns if "pass" in name]
    doubtful = EvaluationResult(tmp_path, {"sampled": sampled.model_copy(update={"pass_note": note})})
    failed = EvaluationResult(tmp_path, {"sampled": sampled.model_copy(update={"failures": "2 of 2 rollouts failed"})})
    assert "sampled: 2 of 2 rollouts failed" in repr(failed) and "2 of 2 rollouts failed" in failed._repr_html_()
    for text in (repr(doubtful), doubtful._repr_html_()):
        assert f"pass@k of sampled: {note}: say by pass_reward which of them is a success" in text


def test_pass_at_k_is_the_share_of_choices_of_k_answers_with_a_right_one() -> None:
    """Counted over all choices of k answers, with tasks that have too few answers left out."""
    num_answers, num_passed = [5, 4, 1], [2, 0, 1]
    estimates = estimate_pass_at_k(num_answers, num_passed)
    assert list(estimates) == [1, 2, 4]
    for k, estimate in estimates.items():
        shares = []
        for n, c in zip(num_answers, num_passed, strict=True):
            choices = list(combinations([True] * c + [False] * (n - c), k))
            shares += [fmean(map(any, choices))] if choices else []
        assert estimate.mean == pytest.approx(fmean(shares))
        assert estimate.standard_error == pytest.approx(stdev(shares) / sqrt(len(shares)))
    assert estimate_pass_at_k([], []) == {} and estimate_pass_at_k([0], [0]) == {}
    assert estimate_pass_at_k([1], [1])[1].standard_error is None


def test_evaluations_are_a_table_and_a_data_frame_of_numbers(tmp_path: Path) -> None:
    first, last = evaluation("greedy", 0, 0.25), evaluation("hard-sampled", 5, 0.5)
    last = last.model_copy(update={"pass_at": estimate_pass_at_k([2, 2], [1, 2])})
    result = TrainResult(tmp_path, FIGURES, [first, last])
    assert [(row["evaluation"], row["version"], row["mean_reward"]) for row in result.table()] == [
        ("greedy", 0, 0.25),
        ("hard-sampled", 5, 0.5),
    ]
    frame = result.df()
    assert list(frame["pass@2"].dropna()) == [1.0] and frame["mean_reward"].dtype == float
    assert list(frame.columns) == list(result.table().columns)
    alone = EvaluationResult(tmp_path, {"greedy": first})
    assert list(alone.df()["sampling"]) == ["greedy"] and "pass@2" not in alone.df().columns
    assert TrainResult(tmp_path, FIGURES, []).df().empty


@pytest.mark.parametrize("share", [None, 0.5, 1.0])
def test_nothing_is_said_while_most_rollouts_are_trained_on(share: float | None) -> None:
    assert not list(find_warnings({"share_trained": share, "excluded": {"surplus": 3}}))


def test_reasons_are_named_when_few_rollouts_were_trained_on(tmp_path: Path) -> None:
    excluded = {"agent_error": 2, "no sequence: 1 too long": 2253, "stale": 5, "surplus": 4}
    figures = {**FIGURES, "share_trained": 0.0013, "excluded": excluded}
    sentence = (
        "0.13% of the training rollouts were trained on; "
        "left out: no sequence: 1 too long (2,253), stale (5), surplus (4)"
    )
    assert list(find_warnings(figures)) == [sentence]
    printed = " ".join(repr(TrainResult(run_of(tmp_path, "policy"), figures, [])).split())
    assert f"warning: {sentence}" in printed


def test_a_full_disk_is_said_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, job = job_of(tmp_path)
    results = Results.begin(settings, job.learners, job.eval, None)

    def fail(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fail)
    monkeypatch.setattr(Path, "write_text", fail)
    with pytest.raises(UserError, match=r"results\.json cannot be written: No space left on device"):
        results.write(tmp_path)
    with pytest.raises(UserError, match="cannot be written: No space left on device"):
        write_whole(tmp_path / "a", "text")


def test_an_evaluation_keeps_why_its_rollouts_failed() -> None:
    failed = evaluation("greedy", 0, 0.0).model_copy(update={"ok": 0, "failures": "2 of 2 rollouts failed: timeout"})
    assert Evaluation.model_validate_json(failed.model_dump_json()) == failed


async def test_a_picture_that_a_full_disk_does_not_take_is_said_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, job = job_of(tmp_path)
    point = {"version": 0, "mean_reward": 0.5, "standard_error": 0.1, "rollouts": 4}
    client: Any = SimpleNamespace(query=lambda *_, **named: SimpleNamespace(named_results=lambda: iter([point])))

    def fail(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(reward_picture, "plot_rewards", fail)
    results = Results.begin(settings, job.learners, job.eval, None)
    with pytest.raises(UserError, match=r"reward\.png cannot be written: No space left on device"):
        await reward_picture.draw_rewards(client, tmp_path, results, "policy")
