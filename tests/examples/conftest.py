"""The examples' own environments, made once per session as their readers make them."""

import functools
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.examples.endpoint import EXAMPLES

UNREACHABLE = (
    "Temporary failure in name resolution",
    "Failed to establish a new connection",
    "Network is unreachable",
    "EAI_AGAIN",
    "ENOTFOUND",
    "ECONNREFUSED",
)


@pytest.fixture(scope="session")
def environment() -> Callable[[str], Path]:
    """From an example's name to its folder, with its environment made; skips where no package index is reachable."""

    @functools.cache
    def made(example: str) -> Path:
        make = subprocess.run(
            ["make", "-C", str(EXAMPLES / example), "env"], capture_output=True, text=True, check=False
        )
        if make.returncode and any(sign in make.stderr for sign in UNREACHABLE):
            pytest.skip(f"no package index is reachable to make the environment of {example}")
        assert make.returncode == 0, make.stdout + make.stderr
        return EXAMPLES / example

    return made
