"""A remote site: its runner and its node know one server, a leaf of the cluster's, and nobody else reaches them."""

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from lightningbus.bus.client import Bus
from lightningbus.bus.security.permissions import LEAF_ROLES
from lightningbus.inference.settings import InferenceSettings
from lightningbus.learner.publishing.publisher import WeightPublisher
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.run.evaluation.publishing import publish_all
from lightningbus.run.evaluation.request import expand_samples
from lightningbus.run.processes.supervisor import ChildSpec
from lightningbus.runners.settings import RunnerSettings
from lightningbus.schemas import ids
from lightningbus.tasks.task_loading import TaskInput
from tests import tensorfiles
from tests.chaos.running_system import LEASE_SECONDS, STAND_IN
from tests.chaos.tap import Tap
from tests.hosts.deployment import CLIENTS, GATEWAY, ROOT, bus_as, cluster, command, role, serve, server_file
from tests.hosts.network import Host, Network, missing

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=f"needs {missing()}"),
]
TASKS, VOCABULARY = 24, 512


def node(directory: Path, host: Host) -> ChildSpec:
    """A real node with a stand-in for vLLM."""
    settings = InferenceSettings(
        model_path=directory / "model", id="node", vllm_command=[*STAND_IN, "--token-seconds", "0.05"],
        max_model_len=256,
        work_dir=directory / "node", host="0.0.0.0", port=GATEWAY, advertise_url=f"http://{host.address}:{GATEWAY}",
    )  # fmt: skip
    return ChildSpec("node", "inference", settings)


def runner(directory: Path, host: Host) -> ChildSpec:
    """Its work and its calls stay at the site."""
    agents = ROOT / "tests" / "agents"
    settings = RunnerSettings(
        entrypoint="steady:solve", working_dir=agents, concurrency=4, id="runner", ack_wait=LEASE_SECONDS
    )
    return ChildSpec("runner", "runner", settings)


async def publish(bus: Bus, first: int) -> list[str]:
    """Tasks for whoever runs agents; the rollouts there will be."""
    problems = [TaskInput(f"q{first + n}", {"question": f"what follows {first + n}?"}) for n in range(TASKS)]
    fields = {"run_id": "site", "agent": "default", "mode": "eval", "deadline": 120.0, "max_attempts": 30}
    await publish_all(bus, expand_samples(problems, 1, **fields), timeout=60, on_done=lambda: None)
    return [ids.rollout_id(problem.id, 0) for problem in problems]


async def test_runners_of_a_far_site_know_one_server(tmp_path: Path) -> None:
    """The link to the cluster is cut for longer than a lease, and whole again: every task has its result."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps({"vocab_size": VOCABULARY}))
    async with Network() as network, Network("10.78.0") as far, cluster(network, tmp_path) as (secrets, urls, _):
        leaf = network.host("leaf")
        local = far.plug(leaf)
        await command(
            "bus",
            "create-users",
            "--out",
            "site",
            "--tls",
            "--host",
            local,
            "--leaf",
            "--signing",
            str(secrets / "inference"),
            at=tmp_path,
        )
        buses = [network.hosts[f"bus-{number}"] for number in range(3)]
        place = server_file(tmp_path / "hosts" / "leaf", "leaf.conf", tmp_path / "site", buses)
        for user in LEAF_ROLES:
            shutil.copytree(secrets / user, place / user)
        await serve(leaf, place)
        async with bus_as(secrets, "admin", urls) as bus, bus.fleet("*") as fleet, Tap(bus).listening() as tap:
            at = f"nats://{local}:{CLIENTS}"
            for name, make in (("inference", node), ("runner", runner)):
                host = far.host(name)
                await role(host, tmp_path / "hosts" / name, make(tmp_path, host), tmp_path / "site", at)
            settings = LearnerSettings(model_path=tmp_path / "model", run="site", checkpoint_dir=tmp_path)
            weights = tensorfiles.write(tmp_path / "weights.safetensors", {"a": ("F32", (64,), bytes(256))})
            async with bus_as(secrets, "learner", urls) as learner:
                await WeightPublisher(learner, settings).publish(weights, version=0, epoch=1, step=0)
            async with asyncio.timeout(60):
                while {beat.state for beat in fleet.members()} != {"ready", "running"}:
                    await fleet.wait_for_change()
                request = await publish(bus, 0)
                await tap.rollouts(TASKS // 2)
                with leaf.cut(leaf.cables[0]):
                    request += await publish(bus, TASKS)
                    await asyncio.sleep(LEASE_SECONDS + 2)  # the fault itself
                await tap.rollouts(2 * TASKS)
    ends = tap.rollout_of()
    assert {ends[rollout].outcome for rollout in request} == {"ok"} and ends.keys() == set(request)
    assert (tmp_path / "hosts" / "runner" / "runner.log").read_text().count("Traceback") == 0
