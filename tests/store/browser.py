"""A real browser, headless, and the pages that it opens. Modules that import this are skipped without a browser."""

import asyncio
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from lightningbus.schemas.fleet import Heartbeat
from lightningbus.store.clickhouse.client import connect
from lightningbus.store.ui.client import Reader
from lightningbus.store.ui.rollouts.review_routes import Publish
from lightningbus.store.ui.run_files import RunFiles
from lightningbus.store.ui.server import UiServer, serve
from tests.polling import HANG_SECONDS

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
if CHROMIUM is None:
    pytest.skip("no chromium is installed: apt-get install chromium", allow_module_level=True)
api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")

expect = api.expect
RUN = "adding"
ROLLOUT = "t1@p4.2"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Headless Chromium."""
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def alive() -> list[Heartbeat]:
    """A fleet as its heartbeats say it."""
    detail = {"step": 12, "reward": 0.81, "waiting": "rollouts", "queue": 34}
    return [
        Heartbeat(
            role="learner", id="learner-1", run_id=RUN, state="training", version=12, status=detail, sent_at_ns=0
        ),
        Heartbeat(
            role="inference",
            id="node-0",
            state="ready",
            version=12,
            status={"inflight": 7, "broadcast": {"engine": "e1", "ranks": 1, "backends": ["gloo", "nccl"]}},
            sent_at_ns=0,
        ),
        Heartbeat(role="runner", id="runner-0", state="running", status={"busy": 4, "free": 0}, sent_at_ns=0),
        Heartbeat(role="store", id="store-1", state="inserting", status={"rows_per_s": 812.0}, sent_at_ns=0),
    ]


@contextmanager
def pages_of(
    url: str,
    reader: Reader | None = None,
    members: Callable[[], list[Heartbeat]] = alive,
    publish: Publish | None = None,
    files: RunFiles | None = None,
) -> Iterator[str]:
    """The pages, on a loop of their own in a thread: Playwright's has this one."""
    ready, stop = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()
    at: list[str] = []

    async def run() -> None:
        pages = UiServer(reader or Reader(connect(url)), "127.0.0.1", members, publish=publish, files=files)
        async with serve(pages, "127.0.0.1", 0) as address:
            at.append(address)
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()))
    thread.start()
    assert ready.wait(HANG_SECONDS)
    try:
        yield at[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(HANG_SECONDS)
        loop.close()
