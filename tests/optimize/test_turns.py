"""`lightningbus train` with prompts and weights in turns: a real learner, and the stand-in for vLLM."""

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from lightningbus.store.clickhouse.client import connect
from lightningbus.store.embedded.serving import serve_embedded
from tests.agents.ruled import RULE, SYSTEM
from tests.commands import ROOT, environment
from tests.examples.endpoint import Endpoint
from tests.learner.conftest import fitting_model

pytestmark = [pytest.mark.e2e, pytest.mark.main_job]

STEPS, GROUPS, SAMPLES, EVERY = 4, 2, 2, 2
TASKS, HELDOUT, EVALUATED = 4, 2, 2


def reflect(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """One rule more: the right one where the feedback says so."""
    request = messages[-1]["content"]
    prompt = request.split("```")[1].strip()
    rule = RULE if "it does not say which rule it is" in request else "Be brief."
    return {"role": "assistant", "content": f"```\n{prompt} {rule}\n```"}


def write_tasks(path: Path, count: int) -> str:
    lines = [{"id": f"{path.stem}-{n}", "input": {"question": f"{n}"}} for n in range(count)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path.name


def write_job(directory: Path, reflecting: str) -> None:
    """The run file of a job with prompts and weights in turns."""
    fitting_model(directory / "model")
    engine = [sys.executable, str(ROOT / "tests" / "chaos" / "vllm.py")]
    job = {
        "name": "turns",
        "bus": {"port": 0},
        "store": {"http_port": 0, "flush_interval_seconds": 0.1},
        "inference": [{"model_path": "model", "vllm_command": engine, "max_model_len": 256}],
        "runners": [{"entrypoint": "ruled:solve", "working_dir": str(ROOT / "tests" / "agents"), "concurrency": 2}],
        "learner": {
            "model_path": "model",
            "tasks": write_tasks(directory / "train.jsonl", 6),
            "group_size": SAMPLES,
            "groups_per_step": GROUPS,
            "max_steps": STEPS,
            "max_staleness": 1,
            "cpu_threads": 1,
            "seq_len": 128,
        },
        "eval": {"tasks": write_tasks(directory / "evaluated.jsonl", EVALUATED), "samples": 1},
        "optimize": {
            "every": EVERY,
            "prompts": {"solver": {"text": SYSTEM}},
            "tasks": write_tasks(directory / "tried.jsonl", TASKS),
            "heldout": write_tasks(directory / "heldout.jsonl", HELDOUT),
            "minibatch": 2,
            "max_iterations": 2,
            "round_budget": 30,
            "budget": 200,
            "temperature": 0,
            "reflection": {"url": f"{reflecting}/v1", "model": "reader"},
        },
    }
    (directory / "train.yaml").write_text(yaml.safe_dump(job))


async def start(directory: Path, *options: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "lightningbus", "train", "-c", "train.yaml", *options,
        cwd=directory, env={**environment(), "PYTHONPATH": str(ROOT)},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip


@pytest.mark.long
async def test_prompts_and_weights_are_trained_in_turns_and_a_killed_job_goes_on(tmp_path: Path) -> None:
    """It is killed, with all its processes, amid a round: as the reflecting model is asked for the second time."""
    asked_twice = asyncio.Event()

    def reflect_and_tell(messages: list[dict[str, Any]]) -> dict[str, Any] | int:
        if len(reflecting.requests) == 2:
            asked_twice.set()
            return 400  # the job is killed before it could give up
        return reflect(messages)

    async with Endpoint(reflect_and_tell).serving() as reflecting:
        write_job(tmp_path, reflecting.url)
        first = await start(tmp_path)
        ending = asyncio.create_task(first.communicate())
        waiting = asyncio.create_task(asked_twice.wait())
        await asyncio.wait({ending, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if ending.done():
            raise AssertionError(ending.result()[1].decode()[-3000:])
        first.kill()
        await ending
        assert first.returncode == -signal.SIGKILL
        results = tmp_path / "runs" / "turns" / "results.json"
        (begun,) = json.loads(results.read_text())["prompt_rounds"]
        assert (begun["state"], begun["weight_versions"]) == ("begun", {"policy": 0})
        second = await start(tmp_path, "--resume")
        out, errors = await second.communicate()
    assert second.returncode == 0, errors.decode()[-4000:]
    figures = json.loads(out)
    assert figures == json.loads(results.read_text()) and figures["is_finished"] and figures["steps"] == STEPS

    rounds = figures["prompt_rounds"]
    assert [each["state"] for each in rounds] == ["finished"] * len(rounds)
    versions = [each["weight_versions"]["policy"] for each in rounds]
    assert versions[0] == 0 and len(versions) > 1, "one before training, and more amid it"
    assert len({version // EVERY for version in versions}) == len(versions), "one for each multiple"
    assert rounds[0]["is_released"] and rounds[0]["after"] - rounds[0]["before"] > 0.4
    released = rounds[0]["prompt_versions"]
    assert not any(each["is_released"] and each["prompt_versions"] == released for each in rounds[1:])

    # The text that is in use at the end lies in the run's directory.
    kept = figures["prompts"]["solver"]
    assert kept["version"] == figures["evaluations"][-1]["prompt_versions"]["solver"]
    assert (results.parent / kept["file"]).read_text() != SYSTEM
    assert f"text of prompt solver, version {kept['version']}: runs/turns/prompts/solver.txt" in errors.decode()

    # Evaluations have the prompts of their time, beside their weights.
    evaluated = [(each["version"], each["prompt_versions"]) for each in figures["evaluations"]]
    assert evaluated[:2] == [(0, {"solver": 0})] * 2 and evaluated[-1][0] == STEPS
    assert evaluated[-1][1]["solver"] >= released["solver"]
    assert figures["greedy_after"] - figures["greedy_before"] > 0.4

    async with serve_embedded(tmp_path / "runs" / "turns" / "store") as (_, url):
        client = await asyncio.to_thread(connect, url)

        async def read(sql: str) -> list[tuple[Any, ...]]:
            return [tuple(row) for row in (await asyncio.to_thread(client.query, sql)).result_rows]

        tasks = await read(
            "SELECT evaluation, weight_versions['policy'], count() FROM tasks WHERE startsWith(evaluation, 'optimize') "
            "GROUP BY ALL ORDER BY 2"
        )
        assert tasks == [
            (f"optimize-v{version}", version, each["rollouts"]) for version, each in zip(versions, rounds, strict=True)
        ]
        # Every call of a round was answered by its weights, and every training call has a prompt in use at that time.
        others = await read(
            "SELECT count() FROM model_calls AS c INNER JOIN completions AS p USING (run_id, execution_id, call) "
            "INNER JOIN tasks AS t ON t.run_id = c.run_id AND t.rollout_id = c.rollout_id "
            "WHERE startsWith(t.evaluation, 'optimize') AND "
            "(p.token_versions[1] != t.weight_versions['policy'] OR c.prompt_versions != t.prompt_versions)"
        )
        assert others == [(0,)]
        trained = await read(
            "SELECT DISTINCT c.prompt_versions['solver'] FROM model_calls AS c INNER JOIN tasks AS t "
            "ON t.run_id = c.run_id AND t.rollout_id = c.rollout_id WHERE t.mode = 'train'"
        )
        in_use = {(each["prompt_versions"]["solver"],) for each in rounds if each["is_released"]}
        assert trained and set(trained) <= in_use, "training had what the first round released"
