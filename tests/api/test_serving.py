"""Evaluations that start no engine: by an endpoint, by a run that is up, and by one that a session keeps up."""

import os
from pathlib import Path
from typing import Any

import pytest

import lightningbus as lb
from lightningbus.run.run_directory.directory import RunDirectory
from tests.api.test_training import ENGINE, HELDOUT, STORE
from tests.commands import ROOT
from tests.learner.conftest import fitting_model
from tests.runners.external import KEY, serving_endpoint

AGENTS = {"working_dir": str(ROOT / "tests" / "agents")}


@pytest.mark.e2e
async def test_an_endpoint_answers_without_an_engine_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENDPOINT_KEY", KEY)
    async with serving_endpoint() as endpoint:
        runner = {**AGENTS, "endpoints": {"policy": {"api_key_env": "ENDPOINT_KEY"}}}
        result = await lb.aevaluate(
            "steady:solve", HELDOUT, url=endpoint.url, model="gpt-9", samples=2, runners=runner, store=STORE
        )
        assert {request["model"] for request in endpoint.requests} == {"gpt-9"}
        assert {request["temperature"] for request in endpoint.requests} == {0.0, 1.0}
    assert [(name, each.ok, each.versions) for name, each in result.evaluations.items()] == [
        ("greedy", len(HELDOUT), {}),
        ("sampled", 2 * len(HELDOUT), {}),
    ]
    assert not list((tmp_path / "runs" / "evaluation" / "logs").glob("inference*"))


@pytest.mark.e2e
def test_a_session_keeps_the_engine_for_the_next_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    learner = {"engine": {"check_model": False}}
    directory = RunDirectory(tmp_path / "runs" / "evaluation")

    def roles() -> dict[str, int]:
        endpoints = directory.read_endpoints()
        return dict(endpoints.roles) if endpoints is not None else {}

    with lb.serve(
        "steady:solve", model=fitting_model(tmp_path / "model"), inference=ENGINE, store=STORE, runners=AGENTS,
        learner=learner,
    ) as session:  # fmt: skip
        before = roles()
        assert before["inference-0"] > 0
        first = session.evaluate(HELDOUT, label="first", sampling="greedy")
        second = session.evaluate(HELDOUT[:1], label="second", samples=3)
        assert [each.label for each in (*first.evaluations.values(), *second.evaluations.values())] == [
            "first-greedy", "second-greedy", "second-sampled",
        ]  # fmt: skip
        other = lb.evaluate("steady:solve", HELDOUT, run="evaluation", label="other", samples=2, runners=AGENTS)
        assert [(name, each.rollouts, each.version) for name, each in other.evaluations.items()] == [
            ("greedy", len(HELDOUT), 0),
            ("sampled", 2 * len(HELDOUT), 0),
        ]
        agents = session.query("SELECT DISTINCT agent FROM tasks ORDER BY agent").column("agent")
        assert agents[0] == "default" and agents[1].startswith("evaluation-") and len(agents) == 2
        assert roles() == before, "nothing was started again"
        with pytest.raises(lb.UserError, match="run 'evaluation' is up already"):
            lb.serve("steady:solve", run="evaluation")
        with pytest.raises(lb.UserError, match=r"runner-evaluation-\S+ ended with 2: nothing:here cannot be loaded"):
            session.evaluate(HELDOUT, agent="nothing:here", runner=AGENTS)
        session.evaluate(HELDOUT[:1], label="last", sampling="greedy")
    assert not roles() and len(session.runs()) == 6, "it reads the files afterwards"
    with pytest.raises(lb.UserError, match="run 'evaluation' is not up"):
        session.evaluate(HELDOUT)
    for pid in before.values():
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.unit
async def test_wrong_arguments_end_in_one_sentence(tmp_path: Path) -> None:
    url = "http://127.0.0.1:9/v1"
    for arguments, sentence in (
        ({"url": url}, "model: give the name by which the endpoint of url= knows the model"),
        ({"url": url, "run": "a"}, "give url= or run=, not both"),
        ({"url": url, "model": "m", "learner": {}}, "learner: leave it out, because no engine is started for url="),
        ({"url": "elsewhere", "model": "m"}, "settings: runners.0.endpoints.policy.url: it is no URL"),
        ({}, "give model='DIRECTORY', run='NAME', or url='http://HOST:PORT/v1' of an endpoint"),
    ):
        fields: dict[str, Any] = {"runs": tmp_path, **arguments}
        for call in (lb.aevaluate("agent:solve", HELDOUT, **fields), lb.aserve("agent:solve", **fields)):
            with pytest.raises(lb.UserError) as raised:
                await call
            assert str(raised.value).startswith(sentence)
