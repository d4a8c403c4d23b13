"""What the store writes of weights is what their learner signed."""

import asyncio
from pathlib import Path

import pytest

from lightningbus.bus.client import Bus
from lightningbus.bus.security.credentials import FILE, Credentials
from lightningbus.bus.security.permissions import PERMISSIONS
from lightningbus.bus.security.signing import make_keys
from lightningbus.schemas import subjects
from tests.bus.test_signing import SUBJECT, manifest
from tests.store.conftest import Start


async def test_the_store_has_no_row_of_a_version_that_nobody_signed(
    bus: Bus, nats_url: str, tmp_path: Path, start_store: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a dead letter that says so; the learner's own version after it is a row."""
    make_keys(tmp_path / "access", PERMISSIONS, FILE)
    monkeypatch.setenv("LIGHTNINGBUS_CREDENTIALS", str(tmp_path / "access"))
    last = await bus.publish(SUBJECT, manifest(7), msg_id="7")
    async with Bus.connect(nats_url, credentials=Credentials.read(tmp_path / "access", "learner")) as learner:
        await learner.publish(SUBJECT, manifest(8), msg_id="8", expect_last=last)
    store = start_store(nats_url)
    await asyncio.to_thread(store.until, "SELECT groupArray(version) FROM weight_versions", [8])
    await asyncio.to_thread(store.until, "SELECT groupArray(reason) FROM dead_letters", ["it is not signed"])
    assert (await bus.js.stream_info(subjects.DLQ)).state.messages == 1
