"""What tests of the examples share: their folders, their own environments, and their modules."""

import functools
import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(scope="session")
def environment() -> Callable[[str], Path]:
    """Makes an example's own environment, once, and says where its interpreter is."""

    @functools.cache
    def made(example: str) -> Path:
        make = ["make", "-C", str(EXAMPLES / example), "env", f"PYTHON={sys.executable}"]
        done = subprocess.run(make, capture_output=True, text=True)
        if "(from versions: none)" in done.stderr:
            pytest.skip(f"no package index can be reached to make the environment of {example}")
        assert done.returncode == 0, done.stderr
        return EXAMPLES / example / ".venv" / "bin" / "python"

    return made


def module_of(example: str, name: str) -> ModuleType:
    """A module of an example, whatever other examples call theirs."""
    folder, before = str(EXAMPLES / example), set(sys.modules)
    sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(folder)
        for new in set(sys.modules) - before:
            if (getattr(sys.modules[new], "__file__", None) or "").startswith(folder):
                del sys.modules[new]
