"""How much of it: a part in the ordinary suite, everything by ``make hosts``."""

import os

import pytest


@pytest.fixture(scope="session")
def full() -> bool:
    """Whether each host is cut off by itself."""
    return os.environ.get("HOSTS") == "full"
