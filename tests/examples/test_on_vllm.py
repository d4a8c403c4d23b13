"""Each workflow through the whole system: a model of its demonstrations, vLLM, its framework, a learner."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.commands import python
from tests.examples.endpoint import EXAMPLES

GROUPS, SAMPLES, HELDOUT = 3, 4, 3
WARM_START = ["--steps", "150"]
"""Enough to say what looks like a call of a tool, mostly with the wrong words in it."""
CALLED = "SELECT countIf(response LIKE '%tool_calls%') AS called, count() AS num_calls FROM raw_call_payloads"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def warm_started(example: Path, work: Path) -> None:
    """Problems, demonstrations and a model, as the example's Makefile makes them."""
    ours = {"text_to_sql": ["--tasks", work / "train.jsonl"], "math_tools": ["--records", work / "standin"]}
    theirs = ["--records", work / "train_records.jsonl", "--corpus", work / "corpus"]
    python("data.py", "--out", work, cwd=example)
    demonstrations = [example / "demonstrations.py", "--out", work / "demonstrations.jsonl"]
    if example.name in ours:
        python(*demonstrations, *ours[example.name], cwd=example)
    else:
        subprocess.run([example / ".venv/bin/python", *demonstrations, *theirs], cwd=example, check=True)
    model = EXAMPLES / "small_model" / "model.py"
    python(model, "--demonstrations", work / "demonstrations.jsonl", "--out", work / "model", *WARM_START, cwd=example)


@pytest.mark.parametrize("name", ["text_to_sql", "math_tools", "retrieval_qa"])
def test_a_workflow_is_trained_on_vllm(name: str, environment: Callable[[str], Path], tmp_path: Path) -> None:
    example, work = environment(name), tmp_path / "work"
    warm_started(example, work)
    heldout = work / "heldout.jsonl"
    heldout.write_text("".join(heldout.read_text().splitlines(keepends=True)[:HELDOUT]))
    job = yaml.safe_load((example / "small.yaml").read_text().replace("work/", f"{work}/"))
    job["runs"] = str(tmp_path / "runs")
    job["learner"] |= {"max_steps": 1, "groups_per_step": GROUPS, "group_size": SAMPLES}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    figures = json.loads(python("-m", "lightningbus", "train", "-c", tmp_path / "job.yaml", cwd=example))
    assert figures["rollouts"] >= GROUPS * SAMPLES + 2 * HELDOUT * (1 + job["eval"]["samples"])
    assert (figures["weight_versions"], figures["rollouts_lost"], figures["rollouts_trained_twice"]) == (2, 0, 0)
    (seen,) = json.loads(python("-m", "lightningbus", "query", "--json", CALLED, cwd=tmp_path))
    assert seen["num_calls"] >= figures["rollouts"]
    assert seen["called"] > 0 or name == "text_to_sql", "vLLM's parser reads calls of tools"
