"""Training jobs of `examples/prompts_math`: weights alone, in turns with prompts, and with the right prompt."""

import asyncio
import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from experiments.prompts.tables import Row, summarize

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "prompts_math"
MODES = ("right", "turns", "weights")
"""The right prompt from the beginning, and no training; prompts and weights in turns; weights alone."""
STEPS = 14
"""Of each job that trains, at most. In turns it is stopped by the same number."""
WARM_START = ("120", "480")


async def run_python(*arguments: str | Path, cwd: Path) -> None:
    """A script that ends well, quietly."""
    quiet = os.environ | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "PYTHONPATH": str(ROOT)}
    process = await asyncio.create_subprocess_exec(sys.executable, *map(str, arguments), cwd=cwd, env=quiet)
    if await process.wait():
        raise SystemExit(f"{arguments[0]} ended with {process.returncode}")


async def make_model(work: Path) -> None:
    """Problems and a small model, which all runs have; what is there stays."""
    if (work / "model" / "model.safetensors").exists():
        return
    await run_python(EXAMPLE / "problems.py", "--out", work, cwd=ROOT)
    lots = [work / "able.jsonl", work / "habit.jsonl"]
    script = EXAMPLE.parent / "small_model" / "model.py"
    await run_python(script, "--demonstrations", *lots, "--steps", *WARM_START, "--out", work / "model", cwd=ROOT)


@contextmanager
def reflecting(seed: int) -> Iterator[str]:
    """The URL of the example's reflecting model while the block runs."""
    sys.path.append(str(EXAMPLE))
    try:
        import reflecting as example  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(EXAMPLE))
    server = example.make_server(0, seed)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()


def run_file(mode: str, seed: int, work: Path, url: str) -> dict[str, Any]:
    """The example's run file, for one mode and seed."""
    fields: dict[str, Any] = yaml.safe_load((EXAMPLE / "train.yaml").read_text())
    fields |= {"name": f"{mode}-{seed}", "runs": str(work / "runs")}
    for node in fields["inference"]:
        node["model_path"] = str(work / "model")
    for runner in fields["runners"]:
        runner["working_dir"] = str(EXAMPLE)
        if mode == "right":
            runner["env"] = {"SYSTEM_FILE": str(work / "right.txt")}
    fields["learner"] |= {
        "model_path": str(work / "model"), "tasks": str(work / "train.jsonl"), "seed": seed,
        "max_steps": 1 if mode == "right" else STEPS,
    }  # fmt: skip
    fields["eval"]["tasks"] = str(work / "heldout.jsonl")
    optimize = fields["optimize"]
    optimize["tasks"], optimize["heldout"] = str(work / "tried.jsonl"), str(work / "compared.jsonl")
    optimize["prompts"]["solver"]["file"] = str(EXAMPLE / "system.txt")
    optimize["reflection"]["url"], optimize["seed"] = url, seed
    if mode != "turns":
        del fields["optimize"]
    return fields


async def measure(mode: str, seed: int, work: Path) -> Row:
    """Run one job to its end, and read its row from its results; a job that was stopped goes on."""
    work.mkdir(parents=True, exist_ok=True)
    await make_model(work)
    rule = (EXAMPLE / "rule.py").read_text().split('RULE = "')[1].split('"')[0]
    (work / "right.txt").write_text(f"{(EXAMPLE / 'system.txt').read_text()} {rule}")
    with reflecting(seed) as url:
        fields = run_file(mode, seed, work, url)
        path = work / f"{mode}-{seed}.yaml"
        path.write_text(yaml.safe_dump(fields))
        results = work / "runs" / fields["name"] / "results.json"
        options = ["--resume"] if results.exists() else []
        await run_python("-m", "lightningbus", "train", "-c", path, *options, cwd=work)
    size = fields["learner"]["group_size"] * fields["learner"]["groups_per_step"]
    return {"mode": mode, "job": "math_tools", "seed": seed, **summarize(json.loads(results.read_text()), size)}
