"""The real vLLM on a host: nothing of it is reached from another one."""

import asyncio
from pathlib import Path

import pytest

from lightningbus.inference.settings import InferenceSettings
from lightningbus.run.processes.supervisor import ChildSpec
from tests.chaos.__main__ import prepare
from tests.hosts.arrows import refused
from tests.hosts.deployment import GATEWAY, HEALTH, bus_as, cluster, role
from tests.hosts.network import Network, missing

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=f"needs {missing()}"),
]


async def test_vllm_itself_is_reached_from_no_other_host(tmp_path: Path) -> None:
    """It has no port, and its processes open theirs on loopback: of all on a node, others reach the gateway alone."""
    place = tmp_path / "system"
    await asyncio.to_thread(prepare, place)
    async with Network() as network, cluster(network, place) as (secrets, urls, local):
        host = network.host("node")
        settings = InferenceSettings(
            model_path=place / "model", id="node", dtype="float32", max_model_len=128, max_num_seqs=16, cpu_threads=1,
            work_dir=place / "node", host="0.0.0.0", port=GATEWAY, advertise_url=f"http://{host.address}:{GATEWAY}",
        )  # fmt: skip
        process = await role(host, place / "hosts" / "node", ChildSpec("node", "inference", settings), secrets, urls)
        async with bus_as(secrets, "client", urls) as bus, bus.fleet("inference") as fleet, asyncio.timeout(200):
            while "awaiting_weights" not in {beat.state for beat in fleet.members()}:  # up, and without weights
                assert process.returncode is None
                await fleet.wait_for_change()
        listening = host.listening()
        print(*listening, sep="\n")
        beyond = {port for address, port, _ in listening if not address.startswith("127.")}
        assert beyond == {GATEWAY}, listening
        own_ports = {port for address, port, _ in listening if address.startswith("127.")} - {HEALTH}
        assert own_ports, "gloo of its processes listens somewhere"
        assert all(refused(local, host.address, port) for port in (*own_ports, HEALTH))
