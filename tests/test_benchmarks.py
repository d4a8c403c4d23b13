"""The pages of benchmarks and experiments say what was measured."""

import ast
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks import before_after
from benchmarks.__main__ import rewrite
from benchmarks.learner import __main__ as learner
from benchmarks.rollouts import peers
from experiments.asynchrony.__main__ import find_hopeless_seeds, tables
from experiments.asynchrony.job import key_of, read, seconds_to
from experiments.credit import __main__ as credit
from experiments.credit.job import EVERY, EXAMPLES, JOBS, METHODS, job_fields, row_of, steps_to, target_of
from experiments.kv_cache import __main__ as kv_cache
from experiments.policies import __main__ as policies
from experiments.policies import job as policy_jobs
from experiments.pretrained import __main__ as pretrained
from experiments.prompts import tables as prompt_tables
from lightningbus.run.preflight.job_checks import parse_job
from lightningbus.run.settings.run_file import RunSettings, validate_settings
from tests.examples.endpoint import module
from tests.serving_faults import __main__ as serving_faults

HERE = Path(__file__).resolve().parents[1] / "benchmarks"
EXPERIMENTS = HERE.with_name("experiments")


def table_of(name: str, directory: Path = HERE) -> str:
    """The table between the marks of a benchmark or an experiment."""
    page = (directory / "README.md").read_text()
    return page.split(f"<!-- make {name}: begin -->\n")[1].split(f"\n<!-- make {name}: end -->")[0]


def test_the_tables_are_the_results() -> None:
    swaps = json.loads((EXPERIMENTS / "results" / "kv_cache.json").read_text())
    assert table_of("bench-kv", EXPERIMENTS) == kv_cache.table(swaps)
    assert table_of("serving-faults") == serving_faults.table(json.loads((HERE / "results" / "audit.json").read_text()))
    results = read(EXPERIMENTS / "results" / "async.json")
    assert table_of("bench-async", EXPERIMENTS) == tables(results)
    assert len({key_of(result) for result in results}) == len(results)
    rows = json.loads((EXPERIMENTS / "results" / "prompts.json").read_text())
    assert table_of("bench-prompts", EXPERIMENTS) == prompt_tables.tables(rows)
    assert len({prompt_tables.key_of(row) for row in rows}) == len(rows)


@pytest.mark.parametrize("size", learner.TABLES)
def test_the_table_of_the_learner_is_its_results(size: str) -> None:
    name, _ = learner.TABLES[size]
    page = (HERE / "README.md").read_text()
    assert learner.fill(page, size, read(HERE / "results" / f"{name}.json")) == page


def test_a_contender_is_compared_round_by_round() -> None:
    """A round in which the machine was slow for both counts as any other."""
    ours = {"contender": "ours", "tokens": 100, "seconds": [1.0, 10.0, 1.0], "cpu_seconds": [1.0, 1.0, 1.0]}
    peer = {"contender": "peer", "tokens": 100, "seconds": [1.5, 15.0, 9.0], "cpu_seconds": [2.0, 2.0, 2.0]}
    lines = learner.table([{**row, "peak_mib": 500.0} for row in (ours, peer)]).splitlines()
    assert lines[2] == "| ours | 100 | 100 | 500 |  |  |"
    assert lines[3] == "| peer | 11 | 50 | 500 | 1.50 | 2.00 |"


def test_rollouts_of_a_round_count_from_the_evaluation_that_has_its_prompt() -> None:
    """And those of training up to its version; evaluations themselves count nothing."""

    def evaluated(version: int, prompt: int, reward: float) -> dict[str, Any]:
        return {"label": "sampled", "version": version, "prompt_versions": {"solver": prompt}, "mean_reward": reward}

    def a_round(version: int, rollouts: int, released: int | None) -> dict[str, Any]:
        return {
            "state": "finished", "weight_versions": {"policy": version}, "rollouts": rollouts, "candidates": 2,
            "prompt_versions": {} if released is None else {"solver": released}, "is_released": released is not None,
            "before": 0.1, "after": 0.7,
        }  # fmt: skip

    evaluations = [evaluated(0, 0, 0.1), evaluated(2, 3, 0.7), evaluated(4, 3, 0.75), evaluated(4, 6, 0.9)]
    rounds = [a_round(0, 100, 3), a_round(4, 40, 6)]
    row = prompt_tables.summarize(
        {"evaluations": evaluations, "prompt_rounds": rounds, "steps": 4, "seconds": 1.0}, rollouts_per_step=64
    )
    assert row["curves"]["sampled"] == [(0, 0.1), (228, 0.7), (356, 0.75), (396, 0.9)]
    assert prompt_tables.rollouts_to(row["curves"]["sampled"], 0.72) == 356
    assert prompt_tables.rollouts_to(row["curves"]["sampled"], 0.95) is None


def test_a_prompt_that_misses_most_of_the_gain_is_not_found() -> None:
    rewards = {"start": 0.1, "right": 0.8, "found": 0.5}
    row = {"mode": "scripted", "job": "j", "seed": 0, "rollouts": 140, "rewards": rewards}
    assert prompt_tables.tables([row]).endswith("| 0.10 | 0.80 | 0.50 | 57% | not in 140 |")


def test_the_table_of_credit_methods_is_their_results() -> None:
    results = read(EXPERIMENTS / "results" / "credit.json")
    assert table_of("bench-credit", EXPERIMENTS) == credit.table(results)


def test_the_table_of_the_retrieval_server_is_its_results() -> None:
    page = (EXAMPLES / "retrieval_qa" / "README.md").read_text()
    table = page.split("<!-- make bench: begin -->\n")[1].split("\n<!-- make bench: end -->")[0]
    measured = json.loads((HERE / "results" / "retrieval.json").read_text())
    benchmark = module("retrieval_qa", "benchmark")
    assert table == benchmark.table(measured) and measured["extrapolated"] == benchmark.extrapolate(measured)


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("method", METHODS)
def test_a_job_of_the_credit_benchmark_is_a_training_job(
    job: str, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(EXAMPLES / job)
    settings = validate_settings(RunSettings, job_fields(job, method, 3, tmp_path), "job")
    parsed = parse_job(settings, "job")
    assert (parsed.learner.credit.method, parsed.learner.seed, settings.name) == (method, 3, f"{job}-{method}-3")
    assert parsed.eval.every == EVERY and parsed.learner.max_steps >= 8 * EVERY


def test_the_target_is_near_the_best_of_identical_and_the_table_names_the_runs_that_never_reach_it() -> None:
    curves = {
        ("identical", 0): [(0, 0.2), (3, 0.6), (6, 1.0), (9, 1.0)],
        ("identical", 1): [(0, 0.2), (3, 0.8), (6, 0.9), (9, 1.0)],
        ("air", 0): [(0, 0.2), (3, 0.3), (6, 0.4), (9, 0.5)],
    }
    rows = [
        {"job": "math_tools", "method": method, "seed": seed, "curve": curve}
        for (method, seed), curve in curves.items()
    ]
    assert target_of(rows) == pytest.approx(0.2 + 0.9 * 0.8)
    assert target_of(rows[2:]) is None
    assert [steps_to(curve, 0.92) for curve in curves.values()] == [9, 9, None]
    lines = credit.table(rows).splitlines()
    assert lines[2] == "| math_tools | identical | 2 | 0.92 | 9, 9 | 9.0 | 0.20 | 1.00 |"
    assert lines[3] == "| math_tools | air | 1 | 0.92 | never | – | 0.20 | 0.50 |"


def test_a_run_is_kept_with_the_curve_of_its_versions() -> None:
    evaluations = [
        {"label": label, "version": version, "mean_reward": reward}
        for label, version, reward in (("sampled", 3, 0.5), ("greedy", 3, 0.4), ("sampled", 0, 0.1))
    ]
    figures = {"evaluations": evaluations, "steps": 3, "rollouts": 9, "share_trained": 1.0, "mean_staleness": 0.5}
    row = row_of("math_tools", "air", 1, {**figures, "seconds": 2.0, "rollouts_lost": 0})
    assert (row["job"], row["method"], row["seed"], row["curve"]) == ("math_tools", "air", 1, [(0, 0.1), (3, 0.5)])


def test_the_table_of_policies_is_the_results() -> None:
    results = policies.read(EXPERIMENTS / "results" / "policies.json")
    assert table_of("bench-policies", EXPERIMENTS) == policies.tables(results)
    assert len({policy_jobs.key_of(result) for result in results}) == len(results)


def test_the_arms_of_a_job_differ_in_who_is_trained(tmp_path: Path) -> None:
    arms: dict[str, tuple[list[str], list[str], dict[str, str]]] = {}
    for arm in policy_jobs.JOBS["text_to_sql"].arms:
        settings, job = policy_jobs.arrange(policy_jobs.JOBS["text_to_sql"], arm, 3, tmp_path / "work", tmp_path)
        trained = [learner.model for learner in job.learners]
        arms[arm] = trained, [node.model for node in settings.inference if node.frozen], settings.role_models
        assert {learner.seed for learner in job.learners} == {
            3
        } and job.learner.model_path == tmp_path / "work" / "model"
    assert arms == {
        "two policies": (["policy", "checker"], [], {"checker": "checker"}),
        "one shared policy": (["policy"], [], {}),
        "writer alone": (["policy"], ["checker"], {"checker": "checker"}),
    }


def test_the_page_of_the_store_shows_what_was_measured_last() -> None:
    page = (HERE / "README.md").read_text()
    assert page == rewrite(page)


def test_a_peer_is_compared_by_each_systems_best_run_and_what_is_lost_is_named() -> None:
    ours: dict[int, list[Any]] = {
        4: [{"rollouts": 200, "lost": 0, "seconds": 2.0}],
        8: [{"rollouts": 200, "lost": 0, "seconds": 1.0}],
    }
    theirs = {4: [{"rollouts": 100, "lost": 20, "seconds": 1.0}, {"rollouts": 100, "lost": 0, "seconds": 2.0}]}
    alone = {4: [{"rollouts": 1000, "lost": 0, "seconds": 1.0}]}
    result = peers.compare({peers.OURS: ours, peers.V0: theirs, peers.AGENTS: alone}, peers.V0)
    assert (result.value, result.peer, result.ceiling) == (200.0, 80.0, 1000.0)
    here = "here 200 to 200 with 8 processes, 0 of 400 lost"
    there = "there 50 to 80 with 4 processes, 20 of 200 lost"
    assert result.note == f"{here}; {there}; ceiling: our agents alone"
    assert peers.percent_lost({"rollouts": 200, "readable_after_kill": 50}) == 75.0
    for runs, spent in ((ours[4], 9.0), (ours[8], 4.0)):
        runs[0]["cpu_ms"] = {"agents": 1.0, "store": spent, "other": 0.01}
    cpu = peers.cpu_per_rollout(ours)
    assert (cpu.value, cpu.note) == (pytest.approx(5.01), "store 4.0, agents 1.0")


def test_figures_of_two_runs_are_compared_by_their_ratios_where_both_have_them() -> None:
    def row(case: str, value: float, **more: Any) -> dict[str, Any]:
        return {"case": case, "value": value, "unit": "s", "ratio_to_peer": None, "ratio_to_ceiling": None, **more}

    before = [row("a", 4.0, ratio_to_peer=2.0), row("b", 4.0, ratio_to_ceiling=0.5), row("c", 4.0), row("gone", 1.0)]
    after = [row("c", 1.0), row("a", 9.0, ratio_to_peer=3.0), row("b", 2.0), row("new", 1.0)]
    changes = [*before_after.find_changes(before, after)]
    assert changes == [("c", "s", 4.0, 1.0), ("a", "times the peer", 2.0, 3.0), ("b", "s", 4.0, 2.0)]
    assert before_after.render(changes[1:2]).splitlines()[-1] == "| a | times the peer | 2 | 3 | 1.5 |"


@pytest.mark.integration
def test_figures_are_compared_with_those_of_a_commit(tmp_path: Path) -> None:
    file = tmp_path / "speed.json"
    for value in (2, 3):
        file.write_text(json.dumps([{"case": "a", "value": value}]))
        for command in (["init", "-q"], ["add", "speed.json"], ["commit", "-qm", "x"]):
            identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
            subprocess.run(["git", *identity, *command], cwd=tmp_path, check=True)
    assert [row["value"] for row in before_after.read_at("HEAD~1", file)] == [2]
    assert before_after.read_at("HEAD", tmp_path / "other.json") == []


def test_the_target_is_reached_when_two_evaluations_are_there_on_average() -> None:
    assert seconds_to([(0, 0.0), (5, 0.95), (10, 0.8), (15, 1.0)], 0.9) == 15
    assert seconds_to([(0, 0.0), (5, 0.95)], 0.9) is None


def test_a_seed_that_no_mode_learns_from_tells_nothing_about_time() -> None:
    results = [
        {"seed": seed, "seconds_to_target": seconds} for seed, seconds in ((0, 5.0), (0, None), (4, None), (4, None))
    ]
    assert find_hopeless_seeds(results) == {4}


def test_every_question_of_a_benchmark_is_asked_with_its_parameters() -> None:
    """By its text: the benchmarks themselves take half an hour."""
    num_calls = 0
    for path in HERE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        questions = {
            node.targets[0].id: set(re.findall(r"\{(\w+):\w+", ast.unparse(node.value)))
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        }
        for call in ast.walk(tree):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
                continue
            statement = call.args[0] if call.args else None
            if call.func.attr in ("until", "fetch_value") and isinstance(statement, ast.Name):
                names = {keyword.arg for keyword in call.keywords} - {"seconds", None}
                if statement.id in questions:
                    num_calls += 1
                    assert names == questions[statement.id], f"{path.name} line {call.lineno}: {statement.id}"
    assert num_calls > 10


@pytest.mark.parametrize("name", [name for name, each in pretrained.EXAMPLES.items() if each.figures.exists()])
def test_figures_of_examples_are_kept_by_seed_and_described_as_in_the_readme(name: str) -> None:
    example = pretrained.EXAMPLES[name]
    results = pretrained.read(example)
    assert results and all({"seed", "sampled_before", "sampled_after", "seconds"} <= each.keys() for each in results)
    command = "make demo" if name == "demo" else name
    readme = (pretrained.ROOT / "README.md").read_text()
    rows = [row for row in readme.splitlines() if f"| `{command}`" in row or f"| [`{command}`](" in row]
    cells = [row.split("|")[-2].strip() for row in rows if "SmolLM2" in row]
    assert cells == [pretrained.describe(results)]
    if isinstance(example, pretrained.Example):
        assert "$(CONFIG)" in (example.directory / "Makefile").read_text()
