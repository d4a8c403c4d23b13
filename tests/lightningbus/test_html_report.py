"""The report to send to somebody: one file that loads nothing and holds no secret."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from lightningbus.common.flat_settings import without_secrets
from lightningbus.run.evaluation.pass_at_k import estimate_pass_at_k
from lightningbus.run.results.html_report import MAX_ROWS, Section, render, write_report
from lightningbus.run.run_directory.directory import RunDirectory
from tests import seed_store
from tests.lightningbus.test_cli import run as run_command
from tests.lightningbus.test_cli import says
from tests.lightningbus.test_train_job import evaluation
from tests.store.conftest import prepared

WRITTEN_AT = datetime(2026, 11, 24, tzinfo=UTC)
LOADS = re.compile(r'(?:src|href|action)="(?!data:image/png;base64,)|@import|url\(|<script|<link')


def test_text_of_others_is_escaped_and_long_tables_are_cut() -> None:
    bad = "<img src=x onerror=alert(1)>"
    rows = [(bad, index) for index in range(MAX_ROWS + 5)]
    text = render(bad, {bad: bad}, {bad: {bad: bad}}, b"", [Section(bad, bad, ([bad, "n"], rows))], WRITTEN_AT)
    assert bad not in text and "5 more rows" in text and not LOADS.search(text)


def test_evaluations_have_a_column_for_each_k_and_none_that_is_empty() -> None:
    sampled = evaluation("sampled", 4, 0.25).model_copy(
        update={"versions": {"policy": 4}, "pass_at": estimate_pass_at_k([4, 4], [1, 4])}
    )
    greedy = evaluation("greedy", 4, 0.5).model_copy(update={"pass_at": estimate_pass_at_k([1, 1], [0, 1])})
    rounds = [{"prompt": "solver", "score": 0.5}]
    results = {"evaluations": [each.model_dump(mode="json") for each in (greedy, sampled)], "prompt_rounds": rounds}
    text = render("r", results, {}, b"", [], WRITTEN_AT)
    table = text.split("<h3>Evaluations</h3>")[1].split("</table>")[0]
    heads = re.findall(r'<th scope="col">(.*?)</th>', table)
    passes = ["pass@1", "pass@2", "pass@4"]
    counts = ["num tasks", "rollouts", "ok", "num without call"]
    assert heads == ["label", "version", "mean reward", *passes, *counts, "seconds"]
    assert "<td>1.00 (0.34 to 1.00)</td>" in table and "<td>0.25 ± 0.10</td>" in table
    assert "{" not in table and "<h3>Prompt rounds</h3>" in text


def test_secrets_are_left_out() -> None:
    settings = {"store": {"url": "http://reader:hunter2@db:8123", "nested": {"api_key_file": "k", "size": 3}}}
    text = render("r", {}, settings, b"", [], WRITTEN_AT)
    assert "hunter2" not in text and "api_key_file" not in text
    assert "http://db:8123" in text and "nested.size" in text


@pytest.mark.integration
@pytest.mark.long
def test_all_reports_of_a_run_are_in_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    run = RunDirectory(tmp_path / "runs" / "one").create()
    (run.path / "results.json").write_text(json.dumps({"evaluations": [{"label": "greedy", "mean_reward": 0.987}]}))
    (run.path / "work" / "learner.json").write_text(json.dumps({"algorithm": {"group_size": 8}}))
    with prepared(tmp_path / "store") as store:
        seed_store.insert(store.sql, seed_store.run("one", steps=3, groups=2))
        write_report(tmp_path / "one.html", store.sql, "lightningbus", "one")
        assert "cannot be written" in says(
            run_command("report", "--html", tmp_path, "--run", "one", "--sql", without_secrets(store.url), cwd=tmp_path)
        )
    assert "leave the report's name out" in says(run_command("report", "outcomes", "--html", "x.html", cwd=tmp_path))
    text = (tmp_path / "one.html").read_text()
    assert not LOADS.search(text) and text.count("data:image/png;base64,") >= 5
    for part in ("Reward by weight version", "Rollouts by outcome", "<td>0.99</td>", "algorithm.group_size"):
        assert part in text
