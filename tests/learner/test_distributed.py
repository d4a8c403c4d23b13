"""``torchrun -m lightningbus learner``: the first rank reads the bus, the other does what it does, and both end."""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from lightningbus.bus.client import Bus
from lightningbus.schemas import subjects
from lightningbus.schemas.weights.events import WeightManifest
from tests.factories import batches
from tests.polling import HANG_SECONDS

pytestmark = pytest.mark.e2e

STEPS, SAMPLES = 2, 4


async def test_a_learner_of_two_ranks_trains_and_publishes(bus: Bus, model_path: Path, tmp_path: Path) -> None:
    settings = {
        "model_path": str(model_path),
        "group_size": SAMPLES,
        "groups_per_step": 1,
        "max_steps": STEPS,
        "max_staleness": STEPS,
        "checkpoint_dir": str(tmp_path / "checkpoints"),
        "seq_len": 64,
        "weights": {"broadcast": {"backend": "gloo"}},  # with nobody to take part
        "max_mismatch": None,  # no engine sampled these rollouts
    }
    (tmp_path / "learner.json").write_text(json.dumps(settings))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = ["-m", "lightningbus", "learner", "--bus", bus.nc.connected_url.geturl(), "--settings", "learner.json"]
    process = await asyncio.create_subprocess_exec(
        *torchrun, *command, cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=asyncio.subprocess.PIPE
    )
    for task in "ab":
        for sample in range(SAMPLES):
            for part in batches(task, sample, reward=float(sample % 2), samples=SAMPLES):
                msg_id = f"{task}:{sample}:{part.sequence}"
                await bus.publish(subjects.rollout("train"), part, msg_id=msg_id, timeout=HANG_SECONDS)
    async with asyncio.timeout(HANG_SECONDS):
        _, text = await process.communicate()
    assert process.returncode == 0, text.decode()[-3000:]
    last = await bus.get_last(subjects.WEIGHTS, subjects.weights("policy"), WeightManifest)
    assert last is not None and last[0].version == STEPS
    saved = {path.name for path in (tmp_path / "checkpoints" / "latest" / "trainer").iterdir()}
    assert {f"__{rank}_0.distcp" for rank in range(2)} <= saved
