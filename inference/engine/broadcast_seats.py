"""What a node makes of a broadcast that a manifest offers: whether its engine has a seat, and what that is told."""

from typing import Any

from schemas.weights.events import BroadcastCapability, BroadcastPlan, RankAssignment


def supported_backends(has_gpu: bool) -> tuple[str, ...]:
    """What an engine can receive by."""
    return ("nccl", "gloo") if has_gpu else ("gloo",)


def find_assignment(offer: BroadcastPlan | None, node: str, reach: BroadcastCapability) -> RankAssignment | None:
    """The seat of an engine as it is now: one that was started again since is in no group."""
    here = (node, reach.engine, reach.ranks)
    seats = offer.participants if offer is not None and offer.backend in reach.backends else ()
    return next((seat for seat in seats if (seat.node, seat.engine, seat.ranks) == here), None)


def rendezvous_info(offer: BroadcastPlan, seat: RankAssignment) -> dict[str, Any]:
    """What vLLM's workers are told to meet: `inference.engine.broadcast_receiver.Rendezvous`."""
    return {
        "address": offer.address,
        "group": offer.group,
        "backend": offer.backend,
        "meeting": offer.rendezvous_key,
        "rank": seat.rank,
        "world": offer.world_size,
        "seconds": offer.rendezvous_timeout_seconds,
    }
