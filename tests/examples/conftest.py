"""The examples' own environments, made once per session as their readers make them."""

import functools
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.examples.endpoint import EXAMPLES
from tests.examples.sql import make


@pytest.fixture(scope="session")
def environment() -> Callable[[str], Path]:
    """From an example's name to its folder, with its environment made; skips where no package index is reachable."""

    @functools.cache
    def made(example: str) -> Path:
        make = subprocess.run(["make", "-C", str(EXAMPLES / example), "env"], capture_output=True, text=True)
        if "Retrying" in make.stderr and "(from versions: none)" in make.stderr:  # pip's words for it
            pytest.skip(f"no package index is reachable to make the environment of {example}")
        assert make.returncode == 0, make.stdout + make.stderr
        return EXAMPLES / example

    return made


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the problems of text to SQL, as its reader makes them."""
    out = tmp_path_factory.mktemp("sql")
    assert make(out).returncode == 0
    return out
