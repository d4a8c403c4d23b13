"""The audit log: what JetStream was asked, by whom, and what came of it."""

import asyncio

import pytest
from nats.js.errors import NotFoundError

from bus.client import Bus
from bus.streams import runner_consumer
from schemas.codec import DecodeError
from store.ingest.audit import build_audit_rows, split_subject
from tests.store.conftest import Start


async def test_who_changed_what_on_the_bus_is_in_the_audit_log(bus: Bus, nats_url: str, start_store: Start) -> None:
    """What was changed, and what was refused; what only looked is left out."""
    store = await asyncio.to_thread(start_store, nats_url)
    await bus.ensure_consumer(runner_consumer("calc", "train"))
    await bus.js.delete_consumer("TASKS", "runner-calc-train")
    with pytest.raises(NotFoundError):
        await bus.js.purge_stream("NONE")
    await bus.js.stream_info("TASKS")
    await asyncio.to_thread(store.until, "SELECT count() FROM audit_log WHERE request = 'STREAM.PURGE'", 1)
    rows = store.sql.query(
        "SELECT request, target, error, account, client, host FROM audit_log "
        "WHERE target LIKE '%calc%' AND error = '' OR target = 'NONE' ORDER BY requested_at"
    ).result_rows
    assert rows == [
        ("CONSUMER.CREATE", "TASKS.runner-calc-train.lb.task.train.calc", "", "$G", "test", "127.0.0.1"),
        ("CONSUMER.DELETE", "TASKS.runner-calc-train", "", "$G", "test", "127.0.0.1"),
        ("STREAM.PURGE", "NONE", "stream not found", "$G", "test", "127.0.0.1"),
    ]
    assert store.sql.query("SELECT count() FROM audit_log WHERE request LIKE '%INFO' AND error = ''").result_rows == [
        (0,)
    ]


def test_what_is_no_advisory_is_told_from_one() -> None:
    for data in (b"", b"[]", b"{}", b"\xff", b'{"id": "x", "timestamp": "now", "subject": "y"}'):
        with pytest.raises(DecodeError, match="no advisory"):
            list(build_audit_rows(data))


@pytest.mark.parametrize(
    ("subject", "parts"),
    [
        ("$JS.API.INFO", ("INFO", "")),
        ("$JS.API.STREAM.DELETE.TASKS", ("STREAM.DELETE", "TASKS")),
        ("$JS.API.STREAM.MSG.GET.DLQ", ("STREAM.MSG.GET", "DLQ")),
        ("$JS.API.CONSUMER.CREATE.TASKS.x.lb.task.*.x", ("CONSUMER.CREATE", "TASKS.x.lb.task.*.x")),
    ],
)
def test_a_request_is_its_name_and_what_it_is_about(subject: str, parts: tuple[str, str]) -> None:
    assert split_subject(subject) == parts
