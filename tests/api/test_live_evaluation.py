"""A version of a run that is up, evaluated by its own nodes and runners; the engine is the stand-in for vLLM."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import lightningbus as lb
from lightningbus.bus.weights.registry import WeightRegistry
from lightningbus.run.processes.stack import LocalStack, child_specs, learner_names, start_stack
from lightningbus.run.run_directory.directory import RunDirectory
from lightningbus.run.settings.run_file import RunSettings
from lightningbus.schemas.weights.release_policy import find_pin
from tests.api.test_training import ENGINE, HELDOUT, STORE
from tests.commands import ROOT
from tests.learner.conftest import fitting_model
from tests.polling import HANG_SECONDS

pytestmark = pytest.mark.e2e


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[LocalStack]:
    """A run that is up, with versions 0 and 1; nodes serve version 1."""
    model = fitting_model(tmp_path / "model")
    (tmp_path / "tasks.jsonl").write_text('{"id": "a", "input": {"question": "1"}}\n')
    settings = RunSettings.model_validate(
        {
            "name": "small",
            "runs": tmp_path / "runs",
            "bus": {"port": 0},
            "store": {"http_port": 0, **STORE},
            "inference": [{"model_path": model, **ENGINE}],
            "runners": [{"entrypoint": "steady:solve", "working_dir": ROOT / "tests" / "agents", "concurrency": 2}],
            "learner": {
                "model_path": model, "tasks": tmp_path / "tasks.jsonl", "max_steps": 1, "group_size": 2,
                "groups_per_step": 1, "cpu_threads": 1, "seq_len": 128, "engine": {"check_model": False},
            },
        }
    )  # fmt: skip
    with RunDirectory(settings.runs / settings.name).lock() as directory:
        async with start_stack(directory, settings.bus, "a test") as stack:
            for child in child_specs(settings, directory.path):
                await stack.supervisor.start(child)
            store = await stack.wait_for_member(lambda beat: beat.role == "store", "store", HANG_SECONDS)
            stack.write_endpoints(store.address)
            await stack.or_child_failure(stack.supervisor.wait_finished("learner"))
            yield stack


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[LocalStack]:
    """A run of two models that is up, with versions 0 and 1 of each."""
    model = fitting_model(tmp_path / "model")
    (tmp_path / "tasks.jsonl").write_text('{"id": "a", "input": {"question": "1"}}\n')
    learner = {
        "model_path": model, "tasks": tmp_path / "tasks.jsonl", "max_steps": 1, "group_size": 2, "groups_per_step": 1,
        "cpu_threads": 1, "seq_len": 128, "engine": {"check_model": False},
    }  # fmt: skip
    settings = RunSettings.model_validate(
        {
            "name": "pair",
            "runs": tmp_path / "runs",
            "bus": {"port": 0},
            "store": {"http_port": 0, **STORE},
            "inference": [{"model": name, "model_path": model, **ENGINE} for name in ("policy", "checker")],
            "runners": [{"entrypoint": "pair:solve", "working_dir": ROOT / "tests" / "agents", "concurrency": 2}],
            "learners": [{**learner, "model": name} for name in ("policy", "checker")],
            "role_models": {"checker": "checker"},
        }
    )
    with RunDirectory(settings.runs / settings.name).lock() as directory:
        async with start_stack(directory, settings.bus, "a test", settings.policies) as stack:
            for child in child_specs(settings, directory.path):
                await stack.supervisor.start(child)
            store = await stack.wait_for_member(lambda beat: beat.role == "store", "store", HANG_SECONDS)
            stack.write_endpoints(store.address)
            for name in learner_names(settings):
                await stack.or_child_failure(stack.supervisor.wait_finished(name))
            yield stack


async def test_versions_of_several_models_are_evaluated_together(pair: LocalStack, tmp_path: Path) -> None:
    async with await lb.aconnect("pair", runs=tmp_path / "runs") as session:
        with pytest.raises(lb.UserError, match="the run trains no model 'writer'; it trains policy, checker"):
            await session.evaluate(HELDOUT, version={"writer": 0})
        result = await session.evaluate(HELDOUT, version={"policy": 0}, label="early", sampling="greedy", deadline=90.0)
        assert result["greedy"].versions == {"policy": 0, "checker": 1}, "the newest of the other model"
        rows = await session.query(
            "SELECT DISTINCT model, max_weight_version FROM model_calls WHERE mode = 'eval' ORDER BY model"
        )
        assert [tuple(row.values()) for row in rows] == [("checker", 1), ("policy", 0)]
        curve = await session.reward_curve()
        assert {(row["model"], row["version"]) for row in curve.evaluations} == {("checker", 1), ("policy", 0)}
        for model in ("policy", "checker"):
            assert (await WeightRegistry(pair.bus, model).refresh()).pinned is None


async def test_a_version_of_a_run_that_is_up_is_evaluated(stack: LocalStack, tmp_path: Path) -> None:
    registry = WeightRegistry(stack.bus, "policy")
    async with await lb.aconnect("small", runs=tmp_path / "runs") as session:
        result = await session.evaluate(HELDOUT, version=0, label="early", samples=3, deadline=90.0)
        assert [(each.label, each.version, each.rollouts) for each in result.evaluations.values()] == [
            ("early-greedy", 0, len(HELDOUT)),
            ("early-sampled", 0, 3 * len(HELDOUT)),
        ]
        rows = await session.rollouts(evaluation="early-sampled", limit=1000)
        assert len(rows) == 3 * len(HELDOUT)
        assert {(row["min_weight_version"], row["max_weight_version"]) for row in rows} == {(0, 0)}
        release = await registry.refresh()
        assert [(each.action, each.version) for each in release.decisions] == [("pinned", 0), ("unpinned", 0)]

        await registry.append_decision("pinned", 1, actor="ann", reason="")
        with pytest.raises(lb.UserError, match="version 1 is pinned by ann: evaluate that one, or unpin it"):
            await session.evaluate(HELDOUT, version=0)
        newest = await session.evaluate(HELDOUT[:1], sampling="greedy", deadline=90.0)
        assert newest["greedy"].version == 1
        pin = find_pin(await registry.refresh())
        assert pin is not None and (pin.version, pin.actor) == (1, "ann"), "a pin of somebody else stays"
        with pytest.raises(lb.UserError, match="nodes cannot load version 7"):
            await session.evaluate(HELDOUT, version=7)
    with pytest.raises(lb.UserError, match="learner: leave it out, because run 'small' is up and has its own"):
        await lb.aevaluate("steady:solve", HELDOUT, run="small", runs=tmp_path / "runs", learner={})
