"""Which tier a test belongs to.

``unit`` starts no process. ``integration`` starts nats-server, ClickHouse, agents or a role. ``e2e`` starts whole runs,
vLLM, network namespaces, a browser, or runs in the packages of examples and other frameworks. ``main_job`` marks the
e2e tests of ``make test``.
"""

import sys
from collections.abc import Collection
from pathlib import PurePath
from typing import Any

UNIT, INTEGRATION, E2E = "unit", "integration", "e2e"
TIERS = (UNIT, INTEGRATION, E2E)
E2E_FOLDERS = frozenset({"chaos", "environments", "examples", "hosts", "e2e"})
SERVER_FIXTURES = frozenset({"nats", "nats_url", "bus", "start_store", "store", "engine", "environment"})
"""Whoever asks for one of them starts a process."""
PROCESS_EVENTS = frozenset(
    {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "os.exec"}
)
"""Python's audit events of a process that is started."""


class ProcessStartedError(AssertionError):
    """A unit test started a process."""


def tier_of(path: PurePath, fixtures: Collection[str], markers: Collection[str]) -> str:
    """The tier of a test: what it is marked with, else by its folder below ``tests`` and its fixtures. Pure."""
    for tier in TIERS:
        if tier in markers:
            return tier
    if path.parts[0] in E2E_FOLDERS:
        return E2E
    return INTEGRATION if SERVER_FIXTURES & set(fixtures) else UNIT


class ProcessGuard:
    """Refuses to start processes while a unit test runs."""

    def __init__(self) -> None:
        self.is_active = False
        sys.addaudithook(self._check)

    def _check(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.is_active and event in PROCESS_EVENTS:
            raise ProcessStartedError(f"a unit test starts no process ({event}): mark it `integration`")
