"""Renewal of a lease, with a stand-in for the message."""

import asyncio
from typing import Any, cast

import pytest

from lightningbus.bus.jetstream.message import Message
from lightningbus.bus.lease import LeaseRenewer
from tests.polling import HANG_SECONDS


class Delivery:
    """Answers no renewal, and forgets the cancellation of one, as Python 3.11's `asyncio.wait_for` may."""

    subject = "task"

    def __init__(self) -> None:
        self.is_renewing = asyncio.Event()

    async def in_progress(self, sync: bool) -> None:
        self.is_renewing.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return


async def test_a_renewal_that_forgets_its_cancellation_is_the_last_one() -> None:
    message = Delivery()
    renewer = LeaseRenewer(cast("Message", message), ack_wait=0.03)
    async with asyncio.timeout(HANG_SECONDS), renewer:
        await message.is_renewing.wait()
    assert renewer._timer.cancelled()


@pytest.mark.parametrize("error", [None, RuntimeError("the bus is gone")])
async def test_a_lease_is_renewed_until_the_block_ends(error: Exception | None) -> None:
    num_renewals, was_renewed_twice = 0, asyncio.Event()

    class Answering(Delivery):
        async def in_progress(self, sync: bool) -> None:
            nonlocal num_renewals
            num_renewals += 1
            if num_renewals == 2:
                was_renewed_twice.set()
            if error is not None:
                raise error

    renewer = LeaseRenewer(cast("Any", Answering()), ack_wait=0.03)
    async with asyncio.timeout(HANG_SECONDS), renewer as lease:
        first = lease.renewed
        await was_renewed_twice.wait()
    assert (lease.renewed > first) is (error is None) and renewer._timer.cancelled()
