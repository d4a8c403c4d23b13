"""An exported model to a Hub, by the Hub's own client in a process of its own, as it reads its address at import."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import ROOT, environment
from tests.lightningbus.hub import serving

pytestmark = pytest.mark.integration
PUSH = """
import sys
from pathlib import Path
from lightningbus.export.hub import push_to_hub
from lightningbus.run.errors import UserError
try:
    print(push_to_hub(Path(sys.argv[1]), "somebody/model", is_public=False))
except UserError as error:
    sys.exit(str(error))
"""


def push(directory: Path, url: str, token: str) -> "subprocess.CompletedProcess[str]":
    fields = {
        **environment(), "PYTHONPATH": os.pathsep.join([str(ROOT)]), "HF_ENDPOINT": url, "HF_TOKEN": token,
        "HF_HOME": str(directory.parent / "home"), "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_XET": "1",  # its binary speaks to a service of its own
    }  # fmt: skip
    return subprocess.run(
        [sys.executable, "-c", PUSH, str(directory)], env=fields, capture_output=True, text=True, check=False
    )


def test_a_model_directory_is_uploaded_and_the_token_is_never_printed(tmp_path: Path) -> None:
    contents = {
        "config.json": b"{}",
        "README.md": b"---\ntags: [x]\n---\n# m\n",
        "model.safetensors": bytes(range(256)),
    }
    directory = tmp_path / "model"
    directory.mkdir()
    for name, content in contents.items():
        (directory / name).write_bytes(content)
    with serving("hf_right") as hub:
        done = push(directory, hub.url, "hf_right")
        assert done.returncode == 0, done.stderr[-3000:]
        assert done.stdout.strip() == f"{hub.url}/somebody/model"
        assert hub.files == contents and hub.repository["visibility"] == "private"
        refused = push(directory, hub.url, "hf_wrong")
        assert refused.returncode == 1 and "the Hub answered 401; log in" in refused.stderr, refused.stderr
        assert "Traceback" not in refused.stderr
    for output in (done.stdout, done.stderr, refused.stdout, refused.stderr):
        assert "hf_right" not in output and "hf_wrong" not in output
