"""``python -m benchmarks.learner.step_cost MODEL``: seconds of a training step by part, with checkpoints in three ways.

The learner's own trainer, committer and publisher, on a broker, train on rows of random tokens. One process makes all
three ways, one after the other: a checkpoint in line after each step, one beside the next step, and by the schedule.
"""

import argparse
import asyncio
import json
import secrets
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from msgspec.structs import replace

from benchmarks.learner.__main__ import PAGE
from benchmarks.results import RESULTS, fill_page, machine
from lightningbus.bus.client import Bus
from lightningbus.bus.embedded.nats_server import nats_server
from lightningbus.common.processes import host_memory
from lightningbus.learner.batching.batch import Batch
from lightningbus.learner.checkpointing import checkpoint, step_committer
from lightningbus.learner.checkpointing.checkpoint import Checkpoints, LearnerState
from lightningbus.learner.checkpointing.step_committer import StepCommitter
from lightningbus.learner.engine import engine_state
from lightningbus.learner.publishing import delta_chain, publisher
from lightningbus.learner.publishing.publisher import WeightPublisher
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.training.verl_trainer import VerlTrainer
from lightningbus.learner.transitions.sequences import CONTEXT, TrainSequence

BEGIN, END = "<!-- step_cost: begin -->", "<!-- step_cost: end -->"
TOKENS = 64
"""Tokens of a row, two thirds of them prompt."""
WAYS = {"in line, each step": 1, "beside training, each step": 1, "beside training, by cost": None}
"""Interval of each."""
STEPS_BY_COST = 3
"""Times as many steps, for there are few checkpoints among them."""
PARTS: dict[str, tuple[tuple[Any, str], ...]] = {
    "checkpoint: copy": ((engine_state, "copy"),),
    "checkpoint: write": ((engine_state, "write"),),
    "checkpoint: digests": ((checkpoint, "write_seal"),),
    "checkpoint: flush": ((checkpoint, "_fsync_tree"),),
    "weight file": ((step_committer, "write_weights"),),
    "delta": ((delta_chain, "encode_delta"),),
    "version: fingerprint, change": ((publisher, "fingerprint"), (publisher, "estimate_change")),
}


class Shares:
    """Wall and CPU seconds of each part; those of the whole process are counted by the caller."""

    def __init__(self) -> None:
        self.wall: dict[str, float] = defaultdict(float)
        self.cpu: dict[str, float] = defaultdict(float)

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Measure each call; CPU seconds are those of the calling thread."""

        @wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            wall, cpu = time.perf_counter(), time.thread_time()
            try:
                return function(*arguments, **named)
            finally:
                self.wall[name] += time.perf_counter() - wall
                self.cpu[name] += time.thread_time() - cpu

        return call

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Measure the parts while the block runs."""
        patches = [
            patch.object(owner, attribute, self.timed(name, getattr(owner, attribute)))
            for name, places in PARTS.items()
            for owner, attribute in places
        ]
        for patched in patches:
            patched.start()
        try:
            yield
        finally:
            for patched in patches:
                patched.stop()


def draw_batch(rng: np.random.Generator, num_rows: int, vocabulary: int) -> Batch:
    """Rows of random tokens, whose advantages sum to nothing."""
    calls = np.where(np.arange(TOKENS) < TOKENS * 2 // 3, CONTEXT, 0)
    log_probs = np.where(calls == CONTEXT, 0, -10).astype(np.float32)
    rows = [
        TrainSequence(str(number), 1.0, rng.integers(1, vocabulary, TOKENS), calls, log_probs, np.zeros(TOKENS, int))
        for number in range(num_rows)
    ]
    return Batch(rows, {(str(number), 0): (-1.0, 1.0)[number % 2] for number in range(num_rows)})


async def measure(model: Path, steps: int, num_rows: int) -> list[dict[str, Any]]:
    """Measure each way in turn, with one trainer."""
    vocabulary = json.loads((model / "config.json").read_text())["vocab_size"]
    rng, thread = np.random.default_rng(0), ThreadPoolExecutor(1)

    async def in_thread(work: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(thread, work, *arguments)

    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        trainer: VerlTrainer | None = None
        for number, (way, interval) in enumerate(WAYS.items()):
            settings = LearnerSettings.model_validate(
                {
                    "model_path": model, "model": f"way{number}", "seq_len": 256, "cpu_threads": 1,
                    "checkpoint_dir": place / str(number), "checkpoint_interval": interval, "max_steps": 10**6,
                    "actor": {"optim": {"lr": 1e-6}, "ppo_max_token_len_per_gpu": 2048, "old_log_prob_interval": 10**6},
                    "engine": {"check_model": False},
                }
            )  # fmt: skip
            if trainer is None:
                trainer = await in_thread(VerlTrainer, settings)
                await in_thread(trainer.step, draw_batch(rng, num_rows, vocabulary))  # its moments are made
            async with nats_server(place / f"nats{number}") as server, Bus.connect(server.url) as bus:
                await bus.provision()
                num_steps = steps if interval else STEPS_BY_COST * steps
                measured = await _measure_way(
                    bus, settings, trainer, in_thread, way.startswith("in line"),
                    lambda: draw_batch(rng, num_rows, vocabulary), num_steps,
                )  # fmt: skip
            rows.append({"way": way, "tokens": num_rows * TOKENS, **measured})
            print(json.dumps(rows[-1]), flush=True)
    return rows


async def _measure_way(
    bus: Bus, settings: LearnerSettings, trainer: Any, in_thread: Any, is_in_line: bool, draw: Any, num_steps: int
) -> dict[str, Any]:
    shares, checkpoints, written = Shares(), Checkpoints(settings.checkpoint_dir), list[int]()
    weights = WeightPublisher(bus, settings)
    await weights.refresh()
    with checkpoints.locked():
        committer = StepCommitter(settings, trainer, weights, checkpoints, in_thread)
        state = LearnerState(run_id="run", model=settings.model, journal_mark=checkpoints.journal.add_mark())
        state = await committer.claim_epoch(await committer.write_initial_checkpoint(state), None, state)

        async def acknowledge(position: int) -> None:
            written.append(position)

        share = 0.0 if is_in_line else host_memory.SHARE  # without room for a copy a checkpoint is written in line
        with shares.measured(), patch.object(host_memory, "SHARE", share):
            began, cpu = time.perf_counter(), time.process_time()
            for step in range(1, num_steps + 1):
                started = time.perf_counter()
                await in_thread(shares.timed("training", trainer.step), draw())
                committer.schedule.add_step(time.perf_counter() - started)
                mark = checkpoints.journal.add_mark()
                nonce = secrets.token_hex(8)
                state = replace(state, step=step, version=step, nonce=nonce, journal_mark=mark)
                is_due = committer.is_checkpoint_due(step, is_filling=False)
                await committer.commit(state, acknowledge if is_due else None)
                if is_in_line:
                    await committer.writer.wait()
            seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu
            await committer.writer.wait()
    parts = ["training", *PARTS]
    return {
        "steps": num_steps,
        "checkpoints": len(written),
        "seconds": round(seconds / num_steps, 2),
        "cpu_seconds": round(cpu_seconds / num_steps, 2),
        "wall": {name: round(shares.wall[name] / num_steps, 2) for name in parts},
        "cpu": {name: round(shares.cpu[name] / num_steps, 2) for name in parts},
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: a line for each part, wall and CPU seconds of a step in each way."""
    ways = [row["way"] for row in rows]
    lines = [f"| seconds of a step (CPU) | {' | '.join(ways)} |", "|---" * (len(rows) + 1) + "|"]
    for name in rows[0]["wall"]:
        cells = [f"{row['wall'][name]:.2f} ({row['cpu'][name]:.2f})" for row in rows]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    whole = [f"{row['seconds']:.2f} ({row['cpu_seconds']:.2f})" for row in rows]
    ratios = [f"{row['seconds'] / row['wall']['training']:.2f}" for row in rows]
    lines.append(f"| **a step** | {' | '.join(whole)} |")
    lines.append(f"| a step / its training | {' | '.join(ratios)} |")
    counts = [f"{row['checkpoints']} / {row['steps']}" for row in rows]
    lines.append(f"| checkpoints / steps | {' | '.join(counts)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="folder of a model, such as SmolLM2-135M-Instruct")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--write", action="store_true", help="write results/step_cost.json and the page")
    options = parser.parse_args()
    print(machine())
    rows = asyncio.run(measure(options.model, options.steps, options.rows))
    print(table(rows))
    if options.write:
        (RESULTS / "step_cost.json").write_text(json.dumps(rows, indent=1) + "\n")
        PAGE.write_text(fill_page(PAGE.read_text(), BEGIN, table(rows), END))


if __name__ == "__main__":
    main()
