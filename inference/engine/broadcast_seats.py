"""A node's part in a broadcast that a manifest announces: its ranks, and what vLLM's workers need to join."""

from typing import Any

from lightningbus.schemas.weights.events import BroadcastCapability, BroadcastPlan, RankAssignment


def supported_backends(has_gpu: bool) -> tuple[str, ...]:
    """List the backends that an engine can receive a broadcast by."""
    return ("nccl", "gloo") if has_gpu else ("gloo",)


def find_assignment(plan: BroadcastPlan | None, node_id: str, capability: BroadcastCapability) -> RankAssignment | None:
    """Return the ranks planned for this start of an engine; None if there are none, as after a restart."""
    key = (node_id, capability.engine, capability.ranks)
    participants = plan.participants if plan is not None and plan.backend in capability.backends else ()
    return next((entry for entry in participants if (entry.node, entry.engine, entry.ranks) == key), None)


def rendezvous_info(plan: BroadcastPlan, assignment: RankAssignment) -> dict[str, Any]:
    """Return the settings that vLLM's workers need to join.

    They are the fields of `lightningbus.inference.engine.worker.broadcast_receiver.Rendezvous`.
    """
    return {
        "address": plan.address,
        "group": plan.group,
        "backend": plan.backend,
        "meeting": plan.rendezvous_key,
        "rank": assignment.rank,
        "world": plan.world_size,
        "seconds": plan.rendezvous_timeout_seconds,
    }
