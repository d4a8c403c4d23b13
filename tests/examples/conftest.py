"""The examples' own environments, set up once per session as their readers make them."""

import functools
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

from tests.examples.endpoint import EXAMPLES
from tests.examples.sql import make as make_problems

UNREACHABLE = (
    "Temporary failure in name resolution",
    "Failed to establish a new connection",
    "Network is unreachable",
    "EAI_AGAIN",
    "ENOTFOUND",
    "ECONNREFUSED",
)

LARGE = {"math_crewai": "1 GB"}
"""Environments that are tested where their reader has set them up."""


@pytest.fixture(scope="session")
def environment() -> Callable[[str], Path]:
    """From an example's name to its folder, with its environment set up; skips where no package index is reachable."""

    @functools.cache
    def set_up(example: str) -> Path:
        if example in LARGE and not (EXAMPLES / example / ".venv" / ".ready").exists():
            pytest.skip(
                f"the environment of {example} is {LARGE[example]} and not set up: make -C examples/{example} env"
            )
        with FileLock(EXAMPLES / example / ".venv.lock"):  # files of tests run side by side
            make = subprocess.run(
                ["make", "-C", str(EXAMPLES / example), "env"], capture_output=True, text=True, check=False
            )
        if make.returncode and any(sign in make.stderr for sign in UNREACHABLE):
            pytest.skip(f"no package index is reachable to make the environment of {example}")
        assert make.returncode == 0, make.stdout + make.stderr
        return EXAMPLES / example

    return set_up


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the problems of text to SQL, as its reader makes them."""
    out = tmp_path_factory.mktemp("sql")
    assert make_problems(out).returncode == 0
    return out
