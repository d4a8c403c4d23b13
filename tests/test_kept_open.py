"""An async context manager that a thread keeps open: opened once, closed once, and given up while it opens."""

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import CancelledError
from contextlib import asynccontextmanager

import pytest

from lightningbus.common.kept_open import KeptOpen


@asynccontextmanager
async def noting(events: list[str], opening: asyncio.Event | None = None, fault: str = "") -> AsyncIterator[str]:
    try:
        events.append("opens")
        if opening is not None:
            await opening.wait()
        if fault:
            raise ValueError(fault)
        yield threading.current_thread().name
    finally:
        await asyncio.sleep(0)
        events.append("closed")


def test_it_is_open_until_it_is_closed() -> None:
    events: list[str] = []
    kept = KeptOpen(noting(events))
    assert kept.wait() == kept.wait() == "lightningbus" and events == ["opens"]
    kept.close()
    kept.close()
    assert events == ["opens", "closed"]


def test_what_opening_raises_is_raised() -> None:
    events: list[str] = []
    kept = KeptOpen(noting(events, fault="no"))
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            kept.wait()
    kept.close()
    assert events == ["opens", "closed"]


def test_an_event_loop_that_does_not_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(work: Coroutine[None, None, None]) -> None:
        work.close()
        raise OSError("too many open files")

    monkeypatch.setattr("asyncio.run", fail)
    with pytest.raises(OSError, match="too many open files"):
        KeptOpen(noting([]))


def test_the_opening_is_given_up() -> None:
    events: list[str] = []
    kept = KeptOpen(noting(events, asyncio.Event()))
    kept.close()
    assert events in ([], ["opens", "closed"])
    with pytest.raises(CancelledError):
        kept.wait()


def test_one_that_nobody_refers_to_is_closed() -> None:
    events: list[str] = []
    kept = KeptOpen(noting(events))
    kept.wait()
    del kept
    gc.collect()
    assert events == ["opens", "closed"]


async def test_what_closes_it_is_raised_to_whoever_waits_in_another_loop() -> None:
    events: list[str] = []
    fails = threading.Event()

    async def fail(_: str) -> None:
        await asyncio.to_thread(fails.wait)
        raise ValueError("it died")

    kept = KeptOpen(noting(events), fail)
    assert kept.wait() == "lightningbus"
    waiting = asyncio.create_task(kept.wait_ended())
    other = asyncio.create_task(kept.wait_ended())
    await asyncio.sleep(0)
    other.cancel()
    fails.set()
    with pytest.raises(ValueError, match="it died"):
        await waiting
    assert events == ["opens", "closed"]
    kept.close()
    with pytest.raises(ValueError, match="it died"):
        await kept.wait_ended()


async def test_nobody_waits_for_one_that_is_closed() -> None:
    kept = KeptOpen(noting([]))
    kept.wait()
    await asyncio.to_thread(kept.close)
    await kept.wait_ended()
