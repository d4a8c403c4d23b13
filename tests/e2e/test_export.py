"""docs/export.md: each of its commands, on a run that has stopped, and vLLM's server on what was exported."""

import re
import shlex
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from lightningbus.bus.client import Bus
from lightningbus.bus.embedded.nats_server import nats_server
from lightningbus.learner.publishing.publisher import WeightPublisher
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.run.run_directory.directory import RunDirectory
from tests.commands import ROOT, environment
from tests.e2e.conftest import CALCULATOR
from tests.lightningbus.hub import serving
from tests.polling import until

pytestmark = pytest.mark.timeout(900)
PAGE = (ROOT / "docs" / "export.md").read_text()
COMMANDS = [
    shlex.split(line)
    for block in re.findall(r"```sh\n(.*?)```", PAGE, re.S)
    for line in block.replace("\\\n", " ").splitlines()
]
SECONDS = 400.0


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The calculator's model."""
    path = tmp_path / "base"
    make = [sys.executable, CALCULATOR / "model.py", "--steps", "1", "--out", path]
    subprocess.run(make, check=True, capture_output=True)
    return path


@pytest.fixture
async def run(tmp_path: Path, model: Path) -> Path:
    """A directory with a run that has stopped, the latest, with one version of the model."""
    directory = RunDirectory(tmp_path / "runs" / "first").create()
    settings = LearnerSettings(model_path=model, run="first", checkpoint_dir=directory.path / "checkpoints")
    (directory.path / "work" / "learner.json").write_text(settings.model_dump_json())
    weights = tmp_path / "weights.safetensors"
    save_file(load_file(model / "model.safetensors"), weights)
    async with nats_server(directory.path / "bus") as server, Bus.connect(server.url) as bus:
        await bus.provision()
        await WeightPublisher(bus, settings).publish(weights, version=0, epoch=1, step=0)
    return tmp_path


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def answers(url: str) -> bool:
    """Whether a server answers."""
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def test_the_page_has_the_commands_that_are_run_here() -> None:
    assert [words[:3] for words in COMMANDS] == [
        ["lightningbus", "weights", "export"],
        ["python", "-m", "vllm.entrypoints.openai.api_server"],
        ["curl", "http://127.0.0.1:8000/v1/chat/completions", "--json"],
        ["lightningbus", "weights", "export"],
    ]


async def test_each_command_of_the_page_runs(run: Path) -> None:
    export, serve, ask, push = COMMANDS
    env = {**environment(), "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}

    def start(words: list[str], **variables: str) -> "subprocess.Popen[str]":
        program = {
            "lightningbus": [sys.executable, "-P", "-m", "lightningbus"],
            "python": [sys.executable],
        }.get(words[0], words[:1])
        log = (run / f"{words[0]}.log").open("w")
        return subprocess.Popen([*program, *words[1:]], cwd=run, env=env | variables, stdout=log, stderr=log, text=True)

    def finish(process: "subprocess.Popen[str]", words: list[str]) -> str:
        assert process.wait(SECONDS) == 0, read(words)
        return read(words)

    def read(words: list[str]) -> str:
        return (run / f"{words[0]}.log").read_text()

    assert " is in my-model" in finish(start(export), export)
    port = str(free_port())
    server = start([word.replace("8000", port) for word in serve])
    try:
        until(lambda: server.poll() is not None or answers(f"http://127.0.0.1:{port}/health"), True, SECONDS)
        assert server.poll() is None, read(serve)[-3000:]
        answer = finish(start([word.replace("8000", port) for word in ask]), ask)
        assert '"chat.completion"' in answer, answer
    finally:
        server.terminate()
        server.wait(60)

    with serving("hf_right") as hub:
        pushed = start(
            [word.replace("my-model", "another") if word == "my-model" else word for word in push],
            HF_ENDPOINT=hub.url, HF_TOKEN="hf_right", HF_HOME=str(run / "home"), HF_HUB_OFFLINE="0",
            HF_HUB_DISABLE_XET="1",
        )  # fmt: skip
        assert "uploaded to " in finish(pushed, push)
        assert {"config.json", "model.safetensors", "README.md"} <= hub.files.keys()
