"""A learner whose ranks are on two hosts, and goes on with one."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from lightningbus.bus.client import Bus
from lightningbus.schemas import subjects
from lightningbus.schemas.weights.events import WeightManifest
from tests.factories import batches
from tests.hosts.deployment import HEALTH, LIGHTNINGBUS, bus_as, cluster, command_environment
from tests.hosts.network import Host, Network, missing
from tests.learner.conftest import tiny_model

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=f"needs {missing()}"),
]
MASTER = 29400
STEPS, SAMPLES = 2, 4


def torchrun(rank: int, first: Host) -> list[object]:
    """As docs/deployment.md has it, one rank a host."""
    return [
        sys.executable, "-P", "-m", "torch.distributed.run", "--nnodes", 2, "--node-rank", rank, "--nproc-per-node", 1,
        "--master-addr", first.address, "--master-port", MASTER, "-m", "lightningbus",
    ]  # fmt: skip


async def rollouts(bus: Bus, *tasks: str) -> None:
    """What runners would publish of these tasks."""
    for task in tasks:
        for sample in range(SAMPLES):
            for part in batches(task, sample, reward=float(sample % 2), samples=SAMPLES):
                msg_id = f"{task}:{sample}:{part.sequence}"
                await bus.publish(subjects.rollout("train"), part, msg_id=msg_id, timeout=60)


async def trained(bus: Bus, processes: "list[asyncio.subprocess.Process]", logs: list[Path]) -> int:
    """The version they have published when they have ended."""
    async with asyncio.timeout(150):
        codes = await asyncio.gather(*(process.wait() for process in processes))
    assert codes == [0] * len(codes), "\n".join(log.read_text()[-3000:] for log in logs)
    last = await bus.get_last(subjects.WEIGHTS, subjects.weights("policy"), WeightManifest)
    assert last is not None
    return last[0].version


async def test_two_ranks_on_two_hosts_train_and_one_goes_on(tmp_path: Path) -> None:
    settings = {
        "model_path": str(tiny_model(tmp_path / "model")), "group_size": SAMPLES, "groups_per_step": 1,
        "max_staleness": 3,
        "checkpoint_dir": str(tmp_path / "checkpoints"), "seq_len": 64, "cpu_threads": 1,
    }  # fmt: skip
    (tmp_path / "learner.json").write_text(json.dumps(settings))
    words = ["learner", "--settings", tmp_path / "learner.json", "--health-address", HEALTH]
    async with Network() as network, cluster(network, tmp_path) as (secrets, urls, _):
        ranks = [network.host(f"learner-{number}") for number in range(2)]
        env = command_environment(GLOO_SOCKET_IFNAME="eth0", OMP_NUM_THREADS="1")
        fields = ["--credentials", secrets / "learner", *words, "--bus", urls]
        processes = [
            await host.start(
                "ranks", *torchrun(rank, ranks[0]), *fields, "--max-steps", STEPS, at=tmp_path, environment=env
            )
            for rank, host in enumerate(ranks)
        ]
        async with bus_as(secrets, "admin", urls) as bus:
            await rollouts(bus, "a", "b")
            assert await trained(bus, processes, [tmp_path / "ranks.log"]) == STEPS
            alone = await ranks[1].start(
                "alone",
                *LIGHTNINGBUS,
                *fields,
                "--max-steps",
                STEPS + 1,
                at=tmp_path,
                environment=command_environment(),
            )
            await rollouts(bus, "c")
            assert await trained(bus, [alone], [tmp_path / "alone.log"]) == STEPS + 1
    assert f"resumed at step {STEPS}" in (tmp_path / "alone.log").read_text()
