"""``python -m benchmarks.weights``: a version's bytes, the seconds until it serves, and the pause a stream sees."""

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.results import Result, machine, table, write
from benchmarks.weights import transfer
from benchmarks.weights.swaps import (
    ANSWERS,
    CONTEXT,
    CPU_ENGINE,
    EXAMPLE,
    Answers,
    relative_change,
    swapped_amid,
)
from lightningbus.bus.client import Bus
from lightningbus.inference.settings import InferenceSettings
from lightningbus.learner.publishing.broadcaster import Broadcaster
from lightningbus.learner.publishing.publisher import WeightPublisher
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.run.processes.stack import LocalStack, start_stack
from lightningbus.run.processes.supervisor import ChildSpec
from lightningbus.run.run_directory.directory import RunDirectory
from lightningbus.run.settings.run_file import BusSettings
from lightningbus.schemas.fleet import Heartbeat

SERVED = {"0.6M": {}, "26M": {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 6}}
"""What is changed in the calculator model's configuration."""
ROUNDS = 3
WAYS = ("bus", "file", "s3", "file and gloo")
"""Transports; with ``gloo`` or ``nccl`` versions are broadcast too."""


def make_model(place: Path, changes: dict[str, int]) -> Path:
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
        text = json.dumps({**config, **heads, **changes, "max_position_embeddings": CONTEXT})
        text = json.dumps({name: item for name, item in json.loads(text).items() if name != "layer_types"})
        (model / "config.json").write_text(text)
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model)).save_pretrained(model)
    return model


class Steps:
    """A model that moves by small steps, written in bf16 as it would be published."""

    def __init__(self, model: Path, place: Path) -> None:
        from safetensors.torch import load_file

        self.weights = {name: tensor.float() for name, tensor in load_file(model / "model.safetensors").items()}
        self._place, self._num_written = place, -1

    def next(self) -> tuple[Path, int]:
        """The file of the next version, and its number."""
        import torch
        from safetensors.torch import save_file

        self._num_written += 1
        torch.manual_seed(self._num_written)
        self.weights = {
            name: item + transfer.STEP * (2 * torch.rand_like(item) - 1) for name, item in self.weights.items()
        }
        path = self._place / f"made-{self._num_written % 2}.safetensors"
        path.unlink(missing_ok=True)
        save_file(in_bf16(self.weights), path)
        return path, self._num_written


def in_bf16(weights: Mapping[str, Any]) -> dict[str, Any]:
    """Rounded, as they are published."""
    import torch

    return {name: item.to(torch.bfloat16) for name, item in weights.items()}


async def measure(
    name: str,
    model: Path,
    place: Path,
    engine: Mapping[str, Any] = CPU_ENGINE,
    ways: Sequence[str] = WAYS,
    answers: Answers = ANSWERS,
    report: Callable[[Result], None] = lambda _: None,
) -> list[Result]:
    """Versions published by some of `WAYS`, whole and as deltas, while a node with these settings serves.

    ``report`` has each figure as soon as it is there.
    """
    with (
        RunDirectory(place / f"run-{name.replace(' ', '-')}").lock(fresh=True) as directory,
        transfer.s3_server() if "s3" in ways else nullcontext("") as s3,
    ):
        async with start_stack(directory, BusSettings(port=0), f"bench weights {name}") as at:
            fields = {"model_path": model, "id": "node", "work_dir": directory.path / "node"}
            await at.supervisor.start(
                ChildSpec("node", "inference", InferenceSettings.model_validate({**engine, **fields}))
            )
            steps = Steps(model, directory.path)
            results: list[Result] = []
            locations = {"bus": "", "file": str(directory.path / "shared"), "s3": s3}

            def keep(*measured: Result) -> None:
                results.extend(measured)
                for result in measured:
                    report(result)

            for way in ways:
                transport, _, backend = way.partition(" and ")
                weights: dict[str, Any] = {"transport": transport, "location": locations[transport]}
                if backend:
                    weights["broadcast"] = {"backend": backend}
                keep(*await served(at, name, steps, weights, directory.path / "learner"))
            node = await at.wait_for_member(lambda beat: beat.role == "inference", "node", 60)
            before = steps.weights
            _, last = steps.next()
            change = relative_change(before, steps.weights)
            _, _, pause = await swapped_amid(at, directory.path, in_bf16(steps.weights), node, last, change, answers)
            keep(Result(f"{name}: longest gap in {answers.num_streams} streams", 1e3 * pause, "ms"))
    return results


async def served(at: LocalStack, name: str, steps: Steps, weights: dict[str, Any], checkpoints: Path) -> list[Result]:
    """Seconds from a version's file being there to a node that serves it, by one transport; the best of some."""
    checkpoints.mkdir(exist_ok=True)
    settings = LearnerSettings.model_validate({"model_path": "-", "checkpoint_dir": checkpoints, "weights": weights})
    took: dict[str, list[float]] = {"full": [], "delta": []}
    size: dict[str, int] = {}
    copied = []
    async with (
        Bus.connect(at.url, credentials=at.find_credentials("learner")) as learner,
        at.bus.fleet("inference") as nodes,
        Broadcaster(settings, nodes.members) as broadcaster,
    ):
        await broadcaster.wait_idle()
        for _ in range(ROUNDS):
            # Of a publisher the first version is whole, and the next a delta.
            publisher = WeightPublisher(learner, settings, broadcaster=broadcaster)
            await publisher.refresh()
            for _ in range(2):
                path, version = steps.next()
                started = time.monotonic()
                await publisher.publish(path, version=version, epoch=1, step=version)
                await at.wait_for_member(partial(_is_at, version), f"version {version}", 300)
                assert publisher.last is not None
                kind = publisher.last.kind
                took[kind].append(time.monotonic() - started)
                size[kind] = publisher.last.blobs[0].size
                started = time.monotonic()
                await asyncio.to_thread(shutil.copyfile, path, checkpoints / "copy")
                copied.append(time.monotonic() - started)
        await broadcaster.wait_idle()
        broadcast = broadcaster.num_sent
    assert broadcast == (0 if settings.weights.broadcast.backend == "off" else 2 * ROUNDS), "some were fetched"
    backend = settings.weights.broadcast.backend
    way = settings.weights.transport + (f" and {backend}" if broadcast else "")
    return [
        Result(
            f"{name}, {way}, {kind}: written to served",
            min(took[kind]) if took[kind] else None,
            "s",
            min(copied),
            note=f"{size.get(kind, 0) / 1e6:.3g} MB; ceiling: a plain copy of the whole file",
        )
        for kind in took
    ]


def _is_at(version: int, beat: Heartbeat) -> bool:
    return beat.version == version


def main(place: Path, sizes: list[str] | None = None, models: list[str] | None = None) -> list[Result]:
    """Measure and write; ``sizes`` of `transfer.SIZES` and ``models`` of `SERVED`, None: all."""
    results: list[Result] = []
    for name in transfer.SIZES if sizes is None else sizes:
        results += asyncio.run(transfer.measure(name, place / "transfer"))
        print(table(result.as_json() for result in results), flush=True)
    for name in SERVED if models is None else models:
        results += asyncio.run(measure(f"{name} parameters", make_model(place, SERVED[name]), place))
    write("weights", results, whole=sizes is None and models is None)
    print(table(result.as_json() for result in results))
    return results


def options() -> Any:
    """Of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("runs/bench-weights"))
    parser.add_argument("--sizes", help=f"some of {', '.join(transfer.SIZES)}, with commas: disk to disk, no engine")
    parser.add_argument("--models", help=f"some of {', '.join(SERVED)}: up to a vLLM that serves them")
    return parser.parse_args()


def _some(fields: str | None) -> list[str] | None:
    return None if fields is None else [name for name in fields.split(",") if name]


if __name__ == "__main__":
    from benchmarks import before_after
    from benchmarks.__main__ import PAGE, rewrite

    print(machine())
    request = options()
    main(request.work.resolve(), _some(request.sizes), _some(request.models))
    PAGE.write_text(rewrite(PAGE.read_text()))
    print(before_after.compare(["weights"]))
