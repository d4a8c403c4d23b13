"""What a node makes of a broadcast that a manifest offers: whether its engine has a seat, and what that is told."""

from collections.abc import Awaitable, Callable
from typing import Any

from schemas.events import Offer, Reach, Seat, WeightVersion

TakePart = Callable[[WeightVersion], Awaitable[float | None]]
"""Brings a version into the engine by the broadcast that its manifest offers.

Returns the seconds generation stood still, or None: it is to be had by its files.
"""


async def by_files_only(manifest: WeightVersion) -> None:
    """Of a node that takes part in nothing."""


def backends(has_gpu: bool) -> tuple[str, ...]:
    """What an engine can receive by."""
    return ("nccl", "gloo") if has_gpu else ("gloo",)


def seat_in(offer: Offer | None, node: str, reach: Reach) -> Seat | None:
    """The seat of an engine as it is now: one that was started again since is in no group."""
    here = (node, reach.engine, reach.ranks)
    seats = offer.seats if offer is not None and offer.backend in reach.backends else ()
    return next((seat for seat in seats if (seat.node, seat.engine, seat.ranks) == here), None)


def meeting(offer: Offer, seat: Seat) -> dict[str, Any]:
    """What vLLM's workers are told to meet: `inference.receiving.Meeting`."""
    return {
        "address": offer.address,
        "group": offer.group,
        "backend": offer.backend,
        "meeting": offer.meeting,
        "rank": seat.rank,
        "world": offer.world,
        "seconds": offer.seconds,
    }
