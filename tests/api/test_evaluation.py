"""`lb.evaluate` of a model directory, with the stand-in for vLLM."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

import lightningbus as lb
from lightningbus.api.evaluation_job import _build_policies
from lightningbus.api.evaluation_result import EvaluationResult
from lightningbus.api.sessions.options import build_evaluation_job
from lightningbus.inference.settings import InferenceSettings
from lightningbus.run.errors import UserError
from lightningbus.run.evaluation.evaluation import Evaluation
from lightningbus.run.results.run_record import write_record
from lightningbus.run.run_directory.directory import RunDirectory
from lightningbus.tasks.task_loading import TaskInput
from tests.api.test_training import ENGINE, HELDOUT, STORE
from tests.commands import ROOT
from tests.learner.conftest import fitting_model
from tests.lightningbus.test_cli import run as run_command


@pytest.mark.e2e
def test_a_model_directory_is_evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runner = {"working_dir": str(ROOT / "tests" / "agents")}
    result = lb.evaluate(
        "steady:solve", HELDOUT, model=fitting_model(tmp_path / "model"), samples=3, inference=ENGINE, store=STORE,
        runners=runner, learner={"engine": {"check_model": False}},
    )  # fmt: skip
    assert [(name, each.version, each.rollouts) for name, each in result.evaluations.items()] == [
        ("greedy", 0, len(HELDOUT)),
        ("sampled", 0, 3 * len(HELDOUT)),
    ]
    assert all(0 <= each.mean_reward <= 1 and each.standard_error is not None for each in result.evaluations.values())
    with lb.connect() as session:
        assert session.reward_curve().evaluations.column("evaluation") == ["greedy", "sampled"]
        frame = session.reward_curve().df()
        assert list(frame["mode"]) == ["eval", "eval"] and list(frame["evaluation"]) == ["greedy", "sampled"]


@pytest.mark.e2e
def test_the_command_takes_what_it_needs_from_a_run_file(tmp_path: Path) -> None:
    (tmp_path / "heldout.jsonl").write_text("".join(json.dumps(row) + "\n" for row in HELDOUT))
    (tmp_path / "run.yaml").write_text(
        json.dumps(
            {
                "name": "first",
                "inference": [ENGINE],
                "store": STORE,
                "learner": {
                    "model_path": str(fitting_model(tmp_path / "model")),
                    "tasks": "nowhere.jsonl",
                    "engine": {"check_model": False},
                },
                "runners": [{"entrypoint": "steady:solve", "working_dir": str(ROOT / "tests" / "agents")}],
                "eval": {"tasks": "heldout.jsonl", "sampling": ["sampled"], "samples": 2},
            }
        )
    )
    done = run_command("evaluate", "-c", "run.yaml", "--samples", "4", "--pass-reward", "0.5", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    (sampled,) = figures["evaluations"]
    assert (figures["run"], sampled["label"], sampled["rollouts"]) == ("evaluation", "sampled", 4 * len(HELDOUT))
    assert list(sampled["pass_at"]) == ["1", "2", "4"]
    assert "pass@4" in done.stderr and not (tmp_path / "runs" / "first").exists()


@pytest.mark.unit
async def test_wrong_arguments_end_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    write_record(tmp_path / "b", {"eval": {}, "eval.suites.gsm8k": {"samples": 2}, "learner": {}})
    suite = "label: 'gsm8k' is a suite of run 'b': its rewards would be averaged with these, so give another one"
    for arguments, sentence in (
        ({}, "give model='DIRECTORY', run='NAME', or url='http://HOST:PORT/v1' of an endpoint"),
        ({"sampling": "best", "model": "m"}, "sampling: 'best' is none of greedy, sampled"),
        ({"run": "a", "name": "b"}, "name: leave it out, because run= names the run"),
        ({"run": "a"}, f"there is no run 'a'; there is no run in {tmp_path}"),
        ({"run": "b", "label": "gsm8k"}, suite),
        ({"run": "b", "label": "gsm"}, "there is no run 'b'"),
        ({"model": "m", "max_steps": 3}, "max_steps: no such setting"),
        ({"model": "m", "tasks": None}, "tasks: give the tasks to answer, or a run file with eval.tasks"),
        ({"model": "m", "agent": None}, "agent: give 'module:function', or a run file with runners"),
    ):
        with pytest.raises(lb.UserError) as raised:
            await lb.aevaluate(**{"agent": "agent:solve", "tasks": HELDOUT, "runs": tmp_path, **arguments})  # type: ignore[arg-type]
        assert str(raised.value).startswith(sentence)
    with pytest.raises(lb.UserError) as raised:
        build_evaluation_job(RunDirectory(tmp_path / "b"), [], {"label": "gsm8k"})
    assert str(raised.value) == suite
    (tmp_path / "b" / "job.json").write_text("{")
    with pytest.raises(lb.UserError, match=r"job\.json cannot be read"):
        build_evaluation_job(RunDirectory(tmp_path / "b"), [], {"label": "gsm8k"})


@pytest.mark.unit
@pytest.mark.parametrize("is_given", [False, True], ids=["of the file", "given"])
async def test_suites_of_a_run_file_are_left_out_with_a_word(
    is_given: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "heldout.jsonl").write_text("".join(json.dumps(row) + "\n" for row in HELDOUT))
    monkeypatch.setattr("lightningbus.run.jobs.evaluate_job.run", AsyncMock(return_value={}))
    suites = [{"name": name, "tasks": f"{name}.jsonl"} for name in ("gsm8k", "format")]
    file = {"runners": [{"entrypoint": "steady:solve"}], "eval": {"tasks": "heldout.jsonl", "suites": suites}}
    tasks = HELDOUT if is_given else None
    await lb.aevaluate("steady:solve", tasks, url="http://127.0.0.1:1/v1", model="m", settings=file)
    sentence = (
        "only eval.tasks is evaluated, without eval.suites (gsm8k, format): for a suite, give its agent and its tasks, "
        "as by `lightningbus evaluate AGENT TASKS -c RUN_FILE`"
    )
    assert caplog.messages == ([] if is_given else [sentence])
    del file["eval"]["tasks"]  # type: ignore[attr-defined]
    if not is_given:
        with pytest.raises(UserError, match=r"eval.tasks; those of eval.suites \(gsm8k, format\) are for training"):
            await lb.aevaluate("steady:solve", url="http://127.0.0.1:1/v1", model="m", settings=file)


@pytest.mark.unit
def test_a_label_gives_no_results_of_other_agents_or_tasks(tmp_path: Path) -> None:
    """An evaluation that was cut off goes on; one of other tasks, settings or code begins, also under its label."""
    (tmp_path / "b").mkdir()

    def conditions(num_tasks: int, **options: Any) -> Sequence[str]:
        tasks = [TaskInput(str(number), {"question": number}) for number in range(num_tasks)]
        job = build_evaluation_job(RunDirectory(tmp_path / "b"), tasks, {"label": "p", **options})
        return job.build_requests(job.request)["sampled"].id_parts

    assert conditions(2) == conditions(2) == conditions(2, deadline=999.0, pass_reward=0.5) != ()
    different = [conditions(2), conditions(3), conditions(2, agent="other"), conditions(2, samples=3)]
    different += [conditions(2, agent="agent:solve") for _ in range(2)]  # its code may have changed in between
    assert len(set(different)) == len(different)


@pytest.mark.unit
def test_a_result_says_how_many_rollouts_were_on_record() -> None:
    fields = {"version": 3, "mean_reward": 0.5, "standard_error": None, "num_tasks": 4, "ok": 4, "seconds": 1.0}
    evaluations = {
        label: Evaluation(label=label, rollouts=4, num_recorded=num, **fields)  # type: ignore[arg-type]
        for label, num in {"greedy": 0, "sampled": 3, "other": 4}.items()
    }
    notes = repr(EvaluationResult(Path("r"), evaluations)).splitlines()[-2:]
    assert notes == [
        "sampled: 3 of 4 rollouts were on record already: another label answers all tasks anew",
        "other: all 4 rollouts were on record already: another label answers all tasks anew",
    ]


def test_an_evaluation_of_an_ended_run_computes_as_its_nodes_did(tmp_path: Path) -> None:
    """The addresses of nodes and their directories are not taken over."""
    run = RunDirectory(tmp_path / "ended").create()
    node = InferenceSettings(
        model_path=Path("model"), dtype="float32", max_model_len=64, port=8123, tool_parser="hermes"
    )
    (run.path / "work" / "inference-0.json").write_text(node.model_dump_json())
    (run.path / "work" / "learner.json").write_text(json.dumps({"model": "policy", "reward": "right"}))
    (nodes, learner) = _build_policies(tmp_path, "ended", "model", "tasks.jsonl").values()
    assert nodes[0].items() >= {"dtype": "float32", "max_model_len": 64, "tool_parser": "hermes"}.items()
    assert "port" not in nodes[0] and "work_dir" not in nodes[0] and learner["reward"] == "right"
