"""What the tests of the manifests share."""

from pathlib import Path

import pytest

from lightningbus.bus.security.users import create_users
from tests.deploy.commands import Commands


@pytest.fixture(scope="session")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `bus create-users --out secrets --tls` makes, and beside it what `--out site --tls --leaf` does."""
    place = tmp_path_factory.mktemp("users") / "secrets"
    assert list(create_users(place, tls=True)) and list(
        create_users(place.parent / "site", tls=True, site=True, signing=place / "inference")
    )
    return place


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, secrets: Path) -> Commands:
    """Reads command lines, starts nothing; no run that is up here has a say."""
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.chdir(tmp_path)
    return Commands(monkeypatch, tmp_path, secrets)
