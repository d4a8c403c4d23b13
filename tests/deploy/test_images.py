"""``make images``: built where docker or podman is. ``IMAGE_BASE`` names another image of Python 3.11 to build on.

``IMAGE_TARGETS`` (default ``runner``) are the images, ``BUILD_OPTIONS`` more options of the builder.
"""

import os
import shutil
import subprocess
import tomllib

import pytest

from tests.commands import ROOT, environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
BASE = os.environ.get("IMAGE_BASE", "python:3.11-slim")
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
TARGETS = os.environ.get("IMAGE_TARGETS", "runner").split()


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the repository's root, and wait for it."""
    return subprocess.run(words, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def engine() -> str:
    """The container engine, which has or can fetch the image to build on."""
    for name in ("docker", "podman"):
        if shutil.which(name) and run(name, "info").returncode == 0:
            if run(name, "image", "inspect", BASE).returncode and run(name, "pull", "--quiet", BASE).returncode:
                pytest.skip(f"{name} has no image {BASE}, and cannot fetch it; IMAGE_BASE names another")
            return name
    pytest.skip("neither docker nor podman runs here")


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_starts_its_role_as_nobody_in_particular(engine: str, target: str) -> None:
    done = run("make", "images", f"TARGETS={target}", f"BASE={BASE}", f"BUILDER={engine}", "IMAGE_LOCK=cpu")
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    image = f"lightningbus-{target}:{VERSION}"
    assert run(engine, "run", "--rm", image, "--version").stdout.split() == ["lightningbus", VERSION]
    assert run(engine, "run", "--rm", image, target, "--help").returncode == 0
    assert run(engine, "run", "--rm", "--entrypoint", "id", image, "-u").stdout.strip() == "10001"
