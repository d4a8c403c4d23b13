"""A finished run's directory with a store full of rollouts."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import seed_store
from tests.store.conftest import prepared
from tests.store.conftest import start_store as start_store


@pytest.fixture(scope="session")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory of runs; ``first`` is the only run in it, and the latest."""
    runs = tmp_path_factory.mktemp("runs")
    (runs / "first" / "store").mkdir(parents=True)
    with prepared(runs / "first" / "store") as store:
        seed_store.insert(store.sql, seed_store.run("first"))
    (runs / "latest").symlink_to("first")
    yield runs
