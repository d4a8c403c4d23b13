"""`lb.train` and what follows it, with a real learner and the stand-in for vLLM: one run for all tests here."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import lightningbus as lb
from lightningbus.run.run_data.run_overview import list_runs
from tests.commands import ROOT
from tests.learner.conftest import fitting_model
from tests.polling import until

pytestmark = pytest.mark.e2e

STEPS, GROUPS, SAMPLES = 2, 2, 2
TRAIN = [{"id": f"train-{n}", "input": {"question": f"{n}"}} for n in range(6)]
HELDOUT = [{"id": f"heldout-{n}", "input": {"question": f"{n}"}} for n in range(3)]
ENGINE = {"vllm_command": [sys.executable, str(ROOT / "tests" / "chaos" / "vllm.py")], "max_model_len": 256}
STORE = {"flush_interval_seconds": 0.1}
NOTEBOOK = '''
BONUS = 0.25


def solve(task):
    """A function of a notebook: it makes its client where it runs."""
    from openai import OpenAI

    messages = [{"role": "user", "content": task["question"]}]
    answer = OpenAI(max_retries=0).chat.completions.create(model="policy", messages=messages, max_tokens=8)
    return BONUS + len(answer.choices[0].message.content or "") % 2
'''


@dataclass(frozen=True)
class Trained:
    """A run that has ended, and the directory of the notebook."""

    directory: Path
    solve: Any
    result: lb.TrainResult


def interrupt_when(path: Path) -> None:
    """Press Ctrl-C as soon as a file is there."""
    until(path.exists, True)
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    """Trained while an event loop runs in the caller's thread, as in a notebook; stopped once, and resumed."""
    directory = tmp_path_factory.mktemp("notebook")
    fitting_model(directory / "model")
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(NOTEBOOK, names)

    async def cell(resume: bool) -> lb.TrainResult:
        return lb.train(
            names["solve"],
            directory / "model",
            TRAIN,
            HELDOUT,
            resume=resume,
            name="small",
            group_size=SAMPLES,
            groups_per_step=GROUPS,
            max_steps=STEPS,
            concurrency=2,
            inference=ENGINE,
            store=STORE,
            learner={"cpu_threads": 1, "seq_len": 128, "engine": {"check_model": False}},
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        threading.Thread(target=interrupt_when, args=[Path("runs/small/logs/learner-first.log").absolute()]).start()
        with pytest.raises(lb.RunInterrupted) as stopped:
            asyncio.run(cell(resume=False))
        assert str(stopped.value) == (
            "run 'small' is stopped and its data is kept: the same call with resume=True goes on"
        )
        yield Trained(directory, names["solve"], asyncio.run(cell(resume=True)))


def test_it_returns_what_the_command_prints(trained: Trained) -> None:
    result = trained.result
    assert result.directory == Path("runs/small") and (result.directory / "reward.png").exists()
    assert (result.figures["weight_versions"], result.figures["rollouts_lost"]) == (STEPS + 1, 0)
    assert [(each.label, each.version) for each in result.evaluations] == [
        (label, version) for version in (0, STEPS) for label in ("greedy", "sampled")
    ]
    assert all(each.standard_error is not None and each.mean_reward >= 0.25 for each in result.evaluations)
    assert "greedy" in repr(result) and "weight versions" in result._repr_html_()


def test_a_session_reads_the_files_of_the_run_and_of_the_next(trained: Trained) -> None:
    with lb.connect() as session:
        rollouts = session.rollouts(mode="train", outcome="ok", limit=1000)
        assert len(rollouts) == STEPS * GROUPS * SAMPLES and {row["run_id"] for row in rollouts} == {"small"}
        assert session.query_df("SELECT count() AS n FROM rollouts WHERE mode = 'eval'")["n"][0] == 2 * 3 * (1 + 2)
        curve = session.reward_curve()
        assert sum(curve.training.column("rollouts")) == STEPS * GROUPS * SAMPLES
        measured = [(row["evaluation"], row["version"], pytest.approx(row["mean_reward"])) for row in curve.evaluations]
        by_label = sorted((each.label, each.version, each.mean_reward) for each in trained.result.evaluations)
        assert by_label == measured
        transcript = session.transcript(rollouts[0]["rollout_id"])
        assert rollouts[0]["rollout_id"] in repr(transcript) and "assistant:" in transcript._repr_html_()
        assert "no_such_table" in str(raises(lambda: session.query("SELECT * FROM no_such_table")))
        assert raises(lambda: session.publish(TRAIN)) == "run 'small' is not up: tasks are published while it is"


def test_a_weight_version_of_the_run_is_evaluated_later(trained: Trained) -> None:
    with lb.connect("small") as session:
        num_before = len(session.rollouts(limit=1000))  # the session has the files open, and lets go of them
        result = lb.evaluate(
            trained.solve,
            [{"question": f"{n}"} for n in range(2)],
            run="small",
            version=1,
            sampling="greedy",
            label="later",
            inference=ENGINE,
            store=STORE,
        )
        assert (result["greedy"].version, result["greedy"].rollouts, result["greedy"].label) == (1, 2, "later-greedy")
        assert len(session.rollouts(limit=1000)) == num_before + 2
        assert len(session.rollouts(evaluation="later-greedy")) == 2
    assert "standard_error" in result._repr_html_()
    sentence = raises(lambda: lb.evaluate(trained.solve, TRAIN, run="small", version=9, inference=ENGINE, store=STORE))
    assert sentence == "nodes cannot load version 9: it is not on the run's bus any more; these are: 0, 1, 2"


def raises(call: Any) -> str:
    with pytest.raises(lb.UserError) as raised:
        call()
    return str(raised.value)


class Enough(lb.Callback):
    """Ends training after its second step."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.versions: list[int] = []

    def on_step(self, step: lb.Step) -> str | None:
        self.steps.append(step.step)
        return "two are enough" if step.step == 2 else None

    def on_evaluation(self, evaluation: lb.Evaluation) -> None:
        self.versions.append(evaluation.version)


def test_a_callback_ends_training_and_the_newest_version_is_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fitting_model(tmp_path / "model")
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(NOTEBOOK, names)
    callback, learner = Enough(), {"cpu_threads": 1, "seq_len": 128, "engine": {"check_model": False}}
    result = lb.train(
        names["solve"],
        tmp_path / "model",
        TRAIN,
        HELDOUT,
        callbacks=[callback],
        learner=learner,
        inference=ENGINE,
        store=STORE,
        group_size=2,
        groups_per_step=2,
        max_steps=500,
    )
    assert callback.steps == list(range(1, len(callback.steps) + 1)) and 2 <= len(callback.steps) < 500
    newest = callback.versions[-1]
    assert callback.versions == [0, 0, newest, newest] and newest >= 2
    assert result.figures["stop_reason"] == "Enough.on_step: two are enough" and result.figures["rollouts_lost"] == 0
    assert result.best_version in (0, newest)


class Slower(lb.Callback):
    """Lowers the learning rate after the second step, and asks for smaller groups after the fourth."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, float]] = []

    def on_step(self, step: lb.Step) -> lb.Change | None:
        self.steps.append((step.step, step.metrics["actor/lr"]))
        if step.step == 2:
            return lb.Change({"actor": {"optim": {"lr": 1e-7}}}, reason="two are enough")
        return lb.Change({"groups_per_step": 1}) if step.step == 4 else None


def test_a_callback_changes_settings_between_two_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fitting_model(tmp_path / "model")
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(NOTEBOOK, names)
    callback, learner = Slower(), {"cpu_threads": 1, "seq_len": 128, "engine": {"check_model": False}}
    learner |= {"actor": {"optim": {"lr": 1e-5}}, "checkpoint_interval": 100}
    job: dict[str, Any] = {"learner": learner, "inference": ENGINE, "store": STORE, "group_size": 2, "name": "slower"}
    job |= {"groups_per_step": 2, "model": tmp_path / "model", "tasks": TRAIN, "callbacks": [callback]}
    result = lb.train(names["solve"], max_steps=60, **job)
    rates = dict(callback.steps)
    assert list(rates) == list(range(1, 61)) and {rates[1], rates[2]} == {1e-5} and rates[60] == 1e-7
    figures = result.figures
    assert (figures["rollouts_lost"], figures["rollouts_trained_twice"], figures["num_starts"]) == (0, 0, 1)
    first, second = figures["changes"]
    assert first["learner"] == {"actor": {"optim": {"lr": 1e-7}}}
    assert first["reason"] == "Slower.on_step: two are enough" and second["learner"] == {"groups_per_step": 1}
    with lb.connect("slower") as session:
        rows = session.query(
            "SELECT JSONExtractUInt(settings, 'groups_per_step') AS groups, uniqExact(rollout_id) AS rollouts "
            "FROM training_steps JOIN training_rollouts USING (run_id, step) WHERE trained GROUP BY step, groups"
        )
        steps = session.query("SELECT step, metrics['actor/lr'] AS lr FROM training_steps ORDER BY step")
        losses = [
            row["loss"]
            for row in session.query("SELECT metrics['actor/loss'] AS loss FROM training_steps ORDER BY step")
        ]
        versions = session.query("SELECT version FROM training_steps ORDER BY version")
    slow = [row["step"] for row in steps if row["lr"] == 1e-7]
    assert slow == list(range(first["first_step"], 61)) and second["first_step"] >= first["first_step"] > 2
    assert {(row["groups"], row["rollouts"]) for row in rows} == {(2, 4), (1, 2)}
    assert [row["version"] for row in versions] == list(range(1, 61)), "a step was made again, or left out"
    num_replayed = second["first_step"] + 1
    command = f"steps replay --run slower --step 1 --last {num_replayed} --train offline --json"
    replayed = json.loads(subprocess.check_output([sys.executable, "-m", "lightningbus", *command.split()]))
    assert [row["loss"] for row in replayed] == losses[:num_replayed], "steps are not repeated by their own settings"
    learner["actor"] = {"optim": {"lr": 1e-5}, "entropy_coeff": 0.001}
    more = lb.train(names["solve"], max_steps=61, resume=True, **job)
    assert callback.steps[-1] == (61, 1e-7) and len(more.figures["changes"]) == 3
    assert more.figures["changes"][-1]["learner"] == {"actor": {"entropy_coeff": 0.001}}


class Fails(lb.Callback):
    """Ends the run by an error after its fourth step."""

    def on_step(self, step: lb.Step) -> None:
        if step.step == 4:
            raise RuntimeError("four are enough")


def test_a_resume_with_another_rate_makes_no_step_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps since the checkpoint are made again by the rate that they had; those after them have the other."""
    monkeypatch.chdir(tmp_path)
    fitting_model(tmp_path / "model")
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(NOTEBOOK, names)
    learner = {"cpu_threads": 1, "seq_len": 128, "engine": {"check_model": False}, "checkpoint_interval": 100}
    job: dict[str, Any] = {"learner": learner, "inference": ENGINE, "store": STORE, "group_size": 2, "name": "again"}
    job |= {"groups_per_step": 2, "model": tmp_path / "model", "tasks": TRAIN}
    sentence = raises(lambda: lb.train(names["solve"], max_steps=200, lr=1e-5, callbacks=[Fails()], **job))
    assert "four are enough" in sentence
    with lb.connect("again") as session:
        num_before = session.query("SELECT max(step) AS step FROM training_steps")[0]["step"]
    last = num_before + 3
    figures = lb.train(names["solve"], max_steps=last, lr=1e-6, resume=True, **job).figures
    assert (figures["rollouts_lost"], figures["rollouts_trained_twice"]) == (0, 0)
    with lb.connect("again") as session:
        rows = session.query("SELECT step, version, metrics['actor/lr'] AS lr FROM training_steps ORDER BY step")
    assert [(row["step"], row["version"]) for row in rows] == [(number, number) for number in range(1, last + 1)]
    (change,) = figures["changes"]
    assert change["first_step"] > num_before >= 4
    assert [row["lr"] for row in rows] == [1e-5 if row["step"] < change["first_step"] else 1e-6 for row in rows]


def test_a_job_without_held_out_tasks_is_trained_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fitting_model(tmp_path / "model")
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(NOTEBOOK, names)
    learner = {"cpu_threads": 1, "seq_len": 128, "engine": {"check_model": False}}
    job: dict[str, Any] = {"learner": learner, "inference": ENGINE, "store": STORE, "group_size": 2}
    result = lb.train(names["solve"], tmp_path / "model", TRAIN, groups_per_step=2, max_steps=2, name="bare", **job)
    assert (result.evaluations, result.best_version) == ([], None)
    assert result.figures["weight_versions"] == 3 and result.figures["rollouts_lost"] == 0
    assert "held-out" not in repr(result) and result.df().empty
    more = lb.train(resume="bare", max_steps=3)
    assert more.figures["weight_versions"] == 4 and more.figures["rollouts_trained_twice"] == 0
    more.export(tmp_path / "newest")
    assert (tmp_path / "newest" / "model.safetensors").exists()


def test_a_budget_ends_training_and_a_larger_one_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second costs 1; both starts count."""
    monkeypatch.chdir(tmp_path)
    fitting_model(tmp_path / "model")
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(NOTEBOOK, names)

    def train(resume: bool, **budget: float) -> dict[str, Any]:
        return lb.train(
            names["solve"],
            tmp_path / "model",
            TRAIN,
            HELDOUT,
            resume=resume,
            budget={"hour_price": 3600.0, **budget},
            learner={"cpu_threads": 1, "seq_len": 128, "engine": {"check_model": False}},
            inference=ENGINE,
            store=STORE,
            group_size=2,
            groups_per_step=2,
            max_steps=2,
        ).figures

    first = train(False, cost=1.0)  # spent before the first step
    assert first["stop_reason"].endswith("of 1 is spent (budget.cost)") and first["steps"] == 0
    assert first["cost"] == pytest.approx(first["seconds"], abs=2.0)
    second = train(True, hours=100.0)
    assert (second["stop_reason"], second["steps"], second["num_starts"]) == ("", 2, 2)
    assert second["cost"] == pytest.approx(second["seconds"], abs=2.0) and second["cost"] > first["cost"]


def test_a_loop_over_steps_is_left_and_a_resume_has_the_next_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fitting_model(tmp_path / "model")
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(NOTEBOOK, names)

    async def iterate(resume: bool, max_steps: int, last: int) -> tuple[list[int], lb.TrainingSteps]:
        numbers = []
        async with lb.atrain_steps(
            names["solve"],
            tmp_path / "model",
            TRAIN,
            HELDOUT,
            resume=resume,
            learner={"cpu_threads": 1, "seq_len": 128, "engine": {"check_model": False}},
            inference=ENGINE,
            store=STORE,
            group_size=2,
            groups_per_step=2,
            max_steps=max_steps,
        ) as steps:
            async for step in steps:
                assert step.version == step.step and step.reward == step.metrics["reward/mean"] >= 0.25
                numbers.append(step.step)
                if step.step == last:
                    break
        return numbers, steps

    numbers, steps = asyncio.run(iterate(resume=False, max_steps=500, last=1))
    assert numbers == [1] and "has not reached its end" in raises(lambda: steps.result)
    assert [(run.name, run.state) for run in list_runs()] == [("run", "stopped")], "its processes have ended"
    with lb.connect() as session:
        num_made = session.query("SELECT max(step) AS n FROM training_steps")[0]["n"]
    assert 1 <= num_made < 500
    end = num_made + 2
    following, steps = asyncio.run(iterate(resume=True, max_steps=end, last=end + 1))
    assert following == list(range(following[0], end + 1)) and following[0] > 1
    assert (steps.result.figures["steps"], steps.result.figures["rollouts_trained_twice"]) == (end, 0)
    (run,) = list_runs()
    assert (run.state, run.steps, run.reward) == ("finished", end, steps.result.figures["reward"])
    greedy = {each.version: each.mean_reward for each in steps.result.evaluations if each.label == "greedy"}
    assert run.heldout == pytest.approx(greedy[end])


@pytest.mark.unit
def test_wrong_callbacks_are_refused_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for callbacks, sentence in (
        (lb.Callback(), "give a list, such as [Callback(...)]"),
        ([lb.Callback], "give an object, Callback(), in place of its class"),
        ([print], "write a subclass of lightningbus.Callback"),
    ):
        with pytest.raises(lb.UserError) as raised:
            lb.train("agent:solve", "model", HELDOUT, HELDOUT, callbacks=callbacks)  # type: ignore[arg-type]
        assert sentence in str(raised.value) and not list(tmp_path.iterdir())


def test_an_agent_that_fails_is_told_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fitting_model(tmp_path / "model")
    names: dict[str, Any] = {"__name__": "__main__"}
    exec("def solve(task):\n    raise RuntimeError('the tool is not installed')\n", names)
    sentence = raises(lambda: lb.train(names["solve"], tmp_path / "model", TRAIN, HELDOUT, inference=ENGINE))
    assert "RuntimeError: the tool is not installed" in sentence
    assert not (tmp_path / "runs" / "latest").exists()


def test_a_run_whose_rollouts_all_fail_ends_with_the_reasons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent succeeds on the task of the trial alone."""
    monkeypatch.chdir(tmp_path)
    fitting_model(tmp_path / "model")
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(
        NOTEBOOK.replace("    from openai", "    assert task['question'] == '0', 'an odd task'\n    from openai"), names
    )
    job = {"inference": ENGINE, "store": STORE, "group_size": 2, "groups_per_step": 2, "max_steps": 2}
    learner = {"cpu_threads": 1, "seq_len": 128, "engine": {"check_model": False}, "max_failed_groups": 2}
    sentence = raises(lambda: lb.train(names["solve"], tmp_path / "model", TRAIN, HELDOUT[:1], learner=learner, **job))
    assert "gave nothing to train on" in sentence and "an odd task" in sentence
    assert "correct that and resume the run, or raise max_failed_groups" in sentence
