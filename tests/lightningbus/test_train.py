"""`lightningbus train`: a job from its first evaluation to its last, with a real learner and the stand-in for vLLM."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.commands import ROOT, python
from tests.learner.conftest import tiny_model

pytestmark = [pytest.mark.e2e, pytest.mark.main_job]

STEPS, GROUPS, SAMPLES, HELDOUT = 2, 2, 2, 3


def job(directory: Path) -> dict[str, Any]:
    for name, count in (("train", 6), ("heldout", HELDOUT)):
        lines = [json.dumps({"id": f"{name}-{n}", "input": {"question": f"{n}"}}) + "\n" for n in range(count)]
        (directory / f"{name}.jsonl").write_text("".join(lines))
    engine = [sys.executable, str(ROOT / "tests" / "chaos" / "vllm.py")]
    return {
        "name": "small",
        "bus": {"port": 0},
        "store": {"http_port": 0, "flush_interval_seconds": 0.1},
        "inference": [{"model_path": "model", "vllm_command": engine, "max_model_len": 256}],
        "runners": [{"entrypoint": "steady:solve", "working_dir": str(ROOT / "tests" / "agents"), "concurrency": 2}],
        "learner": {
            "model_path": "model",
            "tasks": "train.jsonl",
            "group_size": SAMPLES,
            "groups_per_step": GROUPS,
            "max_steps": STEPS,
            "cpu_threads": 1,
            "seq_len": 128,
        },
        "eval": {"tasks": "heldout.jsonl", "samples": 2},
    }


@pytest.mark.timeout(280)
def test_a_job_ends_with_figures_and_a_picture(tmp_path: Path) -> None:
    tiny_model(tmp_path / "model")
    (tmp_path / "train.yaml").write_text(yaml.safe_dump(job(tmp_path)))
    figures = json.loads(python("-m", "lightningbus", "train", "-c", "train.yaml", cwd=tmp_path))
    run = tmp_path / "runs" / "small"
    assert json.loads((run / "results.json").read_text()) == figures
    assert all(0 <= figures[f"{how}_{when}"] <= 1 for how in ("greedy", "sampled") for when in ("before", "after"))
    evaluated = 2 * HELDOUT * (1 + 2)
    assert figures["rollouts"] == STEPS * GROUPS * SAMPLES + evaluated
    assert figures["weight_versions"] == STEPS + 1
    assert (figures["rollouts_lost"], figures["rollouts_trained_twice"], figures["max_reward"]) == (0, 0, 1.0)
    assert figures["tokens_trained"] > 0
    assert (run / "reward.png").read_bytes().startswith(b"\x89PNG")
