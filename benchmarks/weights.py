"""``python -m benchmarks.weights``: a version's bytes, the seconds until it serves, and the pause a stream sees."""

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import kv_cache
from benchmarks.kv_cache import EXAMPLE, announce, moved, put, swapped_amid
from benchmarks.results import Result, machine, table, write
from inference.settings import InferenceSettings
from lightningbus.rundir import RunDirectory
from lightningbus.settings import BusSettings
from lightningbus.supervisor import Child
from lightningbus.up import stack

SIZES = {"0.6M": {}, "26M": {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 6}}
"""What is changed in the calculator model's configuration."""
SWAPS = 3


def made(place: Path, changes: dict[str, int]) -> Path:
    """A model of a size, with the calculator's tokenizer and random weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    small = place / "small"
    if not (small / "model.safetensors").exists():
        command = [sys.executable, str(EXAMPLE / "model.py"), "--out", str(small), "--steps", "1"]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    model = place / "-".join(["model", *map(str, changes.values())])
    if not model.exists():
        shutil.copytree(small, model)
        config = json.loads((small / "config.json").read_text())
        heads = {"num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 64} if changes else {}
        text = json.dumps({**config, **heads, **changes, "max_position_embeddings": kv_cache.CONTEXT})
        text = json.dumps({name: one for name, one in json.loads(text).items() if name != "layer_types"})
        (model / "config.json").write_text(text)
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model)).save_pretrained(model)
    return model


async def measure(name: str, model: Path, place: Path) -> list[Result]:
    """Versions published while a node answers streams."""
    from safetensors.torch import load_file

    weights = load_file(model / "model.safetensors")
    size = (model / "model.safetensors").stat().st_size
    directory = RunDirectory(place / f"run-{name}").create(fresh=True)
    found: list[tuple[float, float, float]] = []
    async with stack(directory, BusSettings(port=0), f"bench weights {name}") as at:
        settings = InferenceSettings(
            model_path=model, id="node", dtype="float32", max_model_len=kv_cache.CONTEXT,
            max_num_seqs=kv_cache.STREAMS, threads=1, work=directory.path / "node",
        )  # fmt: skip
        await at.supervisor.start(Child("node", "inference", settings))
        node = await announce(at, await put(at, directory.path, weights, 0), 0)
        for version in range(1, SWAPS + 1):
            weights = moved(weights, 1e-4, version)
            started = time.monotonic()
            await announce(at, await put(at, directory.path, weights, version), version)
            served = time.monotonic() - started
            copied = time.monotonic()
            await asyncio.to_thread(shutil.copy, directory.path / "published.safetensors", directory.path / "copy")
            found.append((served, time.monotonic() - copied, 0.0))
        _, _, pause = await swapped_amid(at, directory.path, node, moved(weights, 1e-4, 99), SWAPS + 1)
    served, copied = min(one[0] for one in found), min(one[1] for one in found)
    return [
        Result(f"{name} parameters, blob: size", size / 1e6, "MB"),
        Result(
            f"{name} parameters, blob: written to served", served, "s", copied, note="ceiling: a plain copy of the file"
        ),
        Result(f"{name} parameters, blob: longest gap in {kv_cache.STREAMS} streams", 1e3 * pause, "ms"),
    ]


def main(place: Path) -> list[Result]:
    """Measure and write."""
    results: list[Result] = []
    for name, changes in SIZES.items():
        results += asyncio.run(measure(name, made(place, changes), place))
    write("weights", results)
    print(table(one.as_json() for one in results))
    return results


def options() -> Any:
    """Of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("runs/bench-weights"))
    return parser.parse_args()


if __name__ == "__main__":
    print(machine())
    main(options().work.resolve())
