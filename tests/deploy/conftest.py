"""What the tests of the manifests share."""

from pathlib import Path

import pytest

from tests.deploy.commands import Commands


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Commands:
    """Reads command lines, starts nothing."""
    monkeypatch.delenv("RANK", raising=False)
    return Commands(monkeypatch, tmp_path)
