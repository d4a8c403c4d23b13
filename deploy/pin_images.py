"""Write beside each image of others in this directory the digest that its tag has in its registry now.

``python deploy/pin_images.py`` wants docker with buildx, and a network. Run it again after a tag was changed.
"""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

DEPLOY = Path(__file__).parent
IMAGE = re.compile(r"^(\s*(?:- )?image: |ARG BASE=)(?!lightningbus-)([\w./-]+:[\w.-]+)(@sha256:[0-9a-f]{64})?$", re.M)


def pinned(text: str, digest_of: Callable[[str], str]) -> str:
    """Write each image of a file as ``name:tag@digest``, replacing an older digest."""
    return IMAGE.sub(lambda match: f"{match[1]}{match[2]}@{digest_of(match[2])}", text)


def files() -> list[Path]:
    """List the files of this directory that name images."""
    return [DEPLOY / "Dockerfile", *sorted(DEPLOY.rglob("*.yaml"))]


def digest(image: str) -> str:
    """Look up the digest of a tag; with several platforms, that of their list."""
    command = ["docker", "buildx", "imagetools", "inspect", image, "--format", "{{.Manifest.Digest}}"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except FileNotFoundError:
        sys.exit("docker is not installed: images are pinned where it is")
    except subprocess.CalledProcessError as error:
        sys.exit(f"the digest of {image} was not found: {error.stderr.strip()}")


if __name__ == "__main__":
    changed = {file: pinned(file.read_text(), digest) for file in files()}
    for file, text in changed.items():
        file.write_text(text)
