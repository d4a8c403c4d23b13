"""Workspaces in containers: by Docker's API and that of Kubernetes, against servers that speak them."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lightningbus.bus.client import Bus
from lightningbus.runners.agent.launcher import AgentStartError
from tests.polling import until
from tests.runners.conftest import ScriptedEngine, running
from tests.runners.test_sandbox import usable
from tests.runners.test_workspaces import FIXES, GRADE, artifacts, outcome, play, sources

__all__ = ["sources"]
ROOT = Path(__file__).parents[2]
FAKE = usable("bwrap", "--ro-bind", "/", "/", "--unshare-all", "--proc", "/proc")
REAL_SOCKET, REAL_IMAGE = os.environ.get("CONTAINER_SOCKET", ""), os.environ.get("CONTAINER_IMAGE", "")
"""A real engine, and an image there that has Python and a shell, on which this file runs instead."""

pytestmark = [pytest.mark.skipif(bool(FAKE), reason=FAKE), pytest.mark.integration]


@pytest.fixture
def docker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Settings of workspaces in Docker; with the parameter ``elsewhere`` the engine is on another machine."""
    if REAL_SOCKET:
        yield {"docker_socket": REAL_SOCKET, "image": REAL_IMAGE}
        return
    socket = tmp_path / "docker.sock"
    options = [request.param] if getattr(request, "param", "") else []
    command = [sys.executable, "-m", "tests.runners.fake_docker", str(socket), *options]
    with subprocess.Popen(command, cwd=ROOT) as server:
        until(socket.exists, True)
        yield {"docker_socket": str(socket), "image": "here:1"}
        server.kill()


@pytest.fixture
def cluster(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, Any]]:
    """Settings of workspaces in Kubernetes, for servers that speak the present protocol and that of before 1.30."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    protocol, _, is_open = request.param.partition(" ")
    if is_open:
        (tmp_path / "no-policies").touch()
    command = [sys.executable, "-m", "tests.runners.fake_kubernetes", str(tmp_path), protocol]
    with subprocess.Popen(command, cwd=ROOT) as server:
        until((tmp_path / "kubeconfig").exists, True)
        yield {"image": "here:1"}
        server.kill()


@pytest.mark.parametrize("cluster", ["v5.channel.k8s.io", "v4.channel.k8s.io"], indirect=True)
async def test_each_rollout_has_a_job_and_hidden_tests_grade_it_in_another(
    bus: Bus, engine: ScriptedEngine, sources: Path, cluster: dict[str, Any]
) -> None:
    spec = {"directory": "calc", "grade": GRADE}
    inputs = [{"fix": True, "workspace": spec}, {"workspace": {"image": "nowhere:1"}}]
    (sources.parent / "agent").mkdir()
    fixed, failed = await play(
        bus, sources, inputs, FIXES, "kubernetes", workspace=cluster, working_dir=sources.parent / "agent",
        memory_limit_gib=1,
    )  # fmt: skip
    assert outcome(fixed) == ("ok", 1.0, {"tests_passed": 1.0}, "")
    assert "-    return left - right\n+    return left + right\n" in artifacts(fixed)["workspace.diff"]
    assert outcome(failed)[0] == "infra_error" and "nowhere:1 does not start: ImagePullBackOff" in outcome(failed)[3]


@pytest.mark.long
@pytest.mark.parametrize("cluster", ["v5.channel.k8s.io without policies"], indirect=True)
async def test_a_cluster_whose_pods_have_a_network_is_refused(
    bus: Bus, engine: ScriptedEngine, tmp_path: Path, cluster: dict[str, Any]
) -> None:
    (tmp_path / "agent").mkdir()
    workspace = {"provider": "kubernetes", "directory": tmp_path / "places", **cluster}
    with pytest.raises(AgentStartError, match="does not enforce network policies"):
        async with running(bus, command=["true"], working_dir=tmp_path / "agent", workspace=workspace):
            pass


async def test_each_rollout_has_a_container_and_hidden_tests_grade_it_in_another(
    bus: Bus, engine: ScriptedEngine, sources: Path, docker: dict[str, Any]
) -> None:
    spec = {"directory": "calc", "grade": GRADE, "artifacts": ["out/*"]}
    inputs = [{"fix": True, "workspace": spec}, {"fix": False, "workspace": spec}]
    (sources.parent / "agent").mkdir()
    fixed, left = await play(
        bus, sources, inputs, FIXES, "docker", workspace=docker, working_dir=sources.parent / "agent"
    )
    assert outcome(fixed) == ("ok", 1.0, {"tests_passed": 1.0}, "")
    assert outcome(left) == ("ok", 0.0, {"tests_passed": 0.0}, "")
    assert "-    return left - right\n+    return left + right\n" in artifacts(fixed)["workspace.diff"]
    assert artifacts(fixed)["out/log.txt"] == "done" and "calc.py" not in artifacts(left)["workspace.diff"]
    assert "left - right" in (sources / "calc" / "calc.py").read_text()


READS_PROGRAM = """
program = pathlib.Path("/tmp/lightningbus/agent/node_modules/program")
try: program.write_text("changed"); is_writable = True
except OSError: is_writable = False
found = program.exists() and program.stat().st_size
result = {"reward": 1, "size": found, "is_writable": is_writable, "script": sorted(os.listdir("/tmp/lightningbus"))}
"""
PROGRAM_BYTES = 100 * 2**20
"""Size of the smallest of the coding agents' programs."""


@pytest.mark.parametrize("docker", ["", "elsewhere"], indirect=True)
async def test_a_container_reads_the_agents_program_whatever_its_size(
    request: pytest.FixtureRequest, bus: Bus, engine: ScriptedEngine, sources: Path, docker: dict[str, Any]
) -> None:
    """It is mounted where the engine sees it, so no agent can change it, else copied."""
    program = sources.parent / "agent" / "node_modules" / "program"
    program.parent.mkdir(parents=True)
    with program.open("wb") as file:
        file.truncate(PROGRAM_BYTES)
    program.chmod(0o700)
    (batch,) = await play(
        bus, sources, [{"workspace": {}}], READS_PROGRAM, "docker", workspace=docker,
        working_dir=sources.parent / "agent",
    )  # fmt: skip
    assert batch.end is not None and batch.end.outcome == "ok", batch.end
    is_elsewhere = request.node.callspec.params["docker"] == "elsewhere"
    expected = {
        "size": 7 if is_elsewhere else PROGRAM_BYTES,
        "is_writable": is_elsewhere,
        "script": ["agent", "worker"],
    }
    assert {name: value for name, value in json.loads(batch.end.result).items() if name in expected} == expected


CALLS = """
import urllib.request, socket
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", method="POST")
request.add_header("Authorization", "Bearer " + os.environ["OPENAI_API_KEY"])
request.add_header("Content-Type", "application/json")
body = json.dumps({"model": "policy", "messages": [{"role": "user", "content": "x" * 200_000}]}).encode()
answers = [json.load(urllib.request.urlopen(request, body)) for _ in range(2)]
try: socket.create_connection(("192.0.2.1", 443), 1); network = True
except OSError: network = False
result = {"reward": 1, "said": [answer["choices"][0]["message"]["content"] for answer in answers], "network": network}
print(" " * 300_000)
"""


async def test_an_agent_in_a_container_reaches_the_gateway_alone(
    bus: Bus, engine: ScriptedEngine, sources: Path, docker: dict[str, Any]
) -> None:
    (sources.parent / "agent").mkdir()
    (batch,) = await play(
        bus, sources, [{"workspace": {}}], CALLS, "docker", workspace=docker, working_dir=sources.parent / "agent"
    )
    assert batch.end is not None and batch.end.outcome == "ok", batch.end
    result = json.loads(batch.end.result)
    assert (result["said"], result["network"]) == (["xx", "xx"], False)
    assert len([span for span in batch.spans if span.call is not None]) == 2


async def test_a_function_runs_in_a_container_with_its_modules(
    bus: Bus, engine: ScriptedEngine, sources: Path, docker: dict[str, Any]
) -> None:
    agent = sources.parent / "agent"
    agent.mkdir()
    (agent / "solver.py").write_text(
        "import os\ndef solve(task):\n    return {'reward': 1, 'files': sorted(os.listdir()), 'task': task}\n"
    )
    inputs = [{"n": 1, "workspace": {"directory": "calc"}}]
    (batch,) = await play(
        bus, sources, inputs, "", "docker", command=None, entrypoint="solver:solve", working_dir=agent, workspace=docker
    )
    assert batch.end is not None and batch.end.outcome == "ok", batch.end
    assert json.loads(batch.end.result) == {"reward": 1, "files": ["calc.py", "tests"], "task": {"n": 1}}


KILLS = """
for pid in filter(str.isdecimal, os.listdir('/proc')):
    if pid not in ('1', str(os.getpid())): os.kill(int(pid), 9)
import time; time.sleep(600)
"""


@pytest.mark.parametrize(
    ("code", "workspace", "expected", "sentence"),
    [
        ("sys.exit('I give up')", {"directory": "calc"}, "agent_error", "ended with 1"),
        (KILLS, {"directory": "calc"}, "agent_error", "the agent ended the process that runs it"),
        ("result = 1", {"image": "nowhere:1"}, "poison", "there is no image nowhere:1"),
        ("result = 1", {"image": "bad image"}, "poison", "names the image 'bad image', which is none"),
        ("result = 1", {"workdir": "tmp"}, "poison", "workdir is an absolute path"),
    ],
)
@pytest.mark.skipif(bool(REAL_SOCKET), reason="images of the fake")
async def test_a_failure_is_charged_to_whose_it_is(
    bus: Bus, engine: ScriptedEngine, sources: Path, docker: dict[str, Any],
    code: str, workspace: dict[str, Any], expected: str, sentence: str,
) -> None:  # fmt: skip
    (sources.parent / "agent").mkdir()
    (batch,) = await play(
        bus, sources, [{"workspace": workspace}], code, "docker", workspace=docker,
        working_dir=sources.parent / "agent",
    )  # fmt: skip
    got, reward, _, error = outcome(batch)
    assert (got, reward) == (expected, None) and sentence in error, error


@pytest.mark.parametrize("what", ["none", "silent"])
async def test_a_dead_daemon_is_found_out_at_start(bus: Bus, engine: ScriptedEngine, tmp_path: Path, what: str) -> None:
    socket = tmp_path / "docker.sock"
    server = (
        await asyncio.start_unix_server(lambda reader, writer: writer.close(), socket) if what == "silent" else None
    )
    workspace = {"provider": "docker", "docker_socket": socket, "image": "here:1", "directory": tmp_path / "places"}
    with pytest.raises(AgentStartError, match=r"the container engine at .* does not answer"):
        async with running(bus, command=["true"], working_dir=tmp_path, workspace=workspace):
            pass
    if server is not None:
        server.close()
