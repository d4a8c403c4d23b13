"""Capacity of the bus for a learner's rollouts, which stay there until a checkpoint covers them. Pure."""

from dataclasses import dataclass

from lightningbus.bus.streams.sizes import MIB
from lightningbus.learner.settings.learner import LearnerSettings

BYTES_OF_TOKEN, BYTES_OF_ROLLOUT = 18, 4096
"""On the bus, as docs/sizing.md measures them: ids, log-probabilities and text; spans of a few turns."""
FULL = 0.5
"""Share from which a checkpoint is written after each step, so that half of the room stays for rollouts under way."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """Room on the bus for the learner."""

    bytes: int
    """-1: without a bound."""
    messages: int
    max_ack_pending: int


@dataclass(frozen=True, slots=True)
class Shortage:
    """Sentences about what does not fit; empty: it fits."""

    step: str = ""
    """A step can never be made."""
    interval: str = ""
    """Sentence: checkpoints are written earlier than the settings ask for."""


def find_shortage(settings: LearnerSettings, capacity: Capacity) -> Shortage:
    """Check whether the steps under way, and all steps of a checkpoint interval, fit their share of the room."""
    under_way = 1 + (settings.max_staleness if settings.staleness.admission == "bounded" else 0)
    interval = settings.checkpoint_interval
    return Shortage(
        _too_much(settings, capacity, under_way, "the steps under way"),
        _too_much(settings, capacity, interval, "the steps between two checkpoints") if interval else "",
    )


def bytes_of_rollout(settings: LearnerSettings) -> int:
    """Estimate the size of a rollout on the bus: the setting's, else that of the longest trainable sequence."""
    return settings.rollout_bytes or BYTES_OF_ROLLOUT + BYTES_OF_TOKEN * settings.seq_len


def _too_much(settings: LearnerSettings, capacity: Capacity, steps: int, what: str) -> str:
    rollouts, size = steps * settings.groups_per_step * settings.max_group_size, bytes_of_rollout(settings)
    messages = rollouts * (1 + size // MIB)
    shape = (
        f"{steps} x groups_per_step {settings.groups_per_step} x group_size {settings.max_group_size} = "
        f"{rollouts:,} rollouts"
        f" of {size:,} bytes"
    )
    if capacity.bytes > 0 and rollouts * size > FULL * capacity.bytes:
        wanted = -(-rollouts * size // (int(FULL * 100) * MIB // 100))
        return (
            f"{what} need {rollouts * size / MIB:,.0f} MiB ({shape}), but half of stream TRAIN_ROLLOUTS is "
            f"{FULL * capacity.bytes / MIB:,.0f} MiB: set train_rollouts_mib to {wanted} "
            f"(`bus.streams` of a run file, `lightningbus provision --size train_rollouts_mib={wanted}`), or "
            "rollout_bytes of the learner to what a rollout takes"
        )
    for name, bound in (("max_ack_pending", capacity.max_ack_pending), ("messages of the stream", capacity.messages)):
        if bound > 0 and messages > FULL * bound:
            return f"{what} need {messages:,} messages ({shape}), but half of {name} is {FULL * bound:,.0f}: " + (
                f"set max_ack_pending to {2 * messages}" if name == "max_ack_pending" else "make them smaller"
            )
    return ""


def filled_share(unacknowledged: int, undelivered: int, messages: int, size: int, capacity: Capacity) -> float:
    """Compute the share of the room taken by rollouts that the learner has not acknowledged, by the nearest bound.

    ``messages`` and ``size`` (bytes) are the stream's; messages that only others have not read do not count.
    """
    waiting = unacknowledged + undelivered
    shares = [
        (size * min(1.0, waiting / messages) if messages else 0.0, capacity.bytes),
        (waiting, capacity.messages),
        (unacknowledged, capacity.max_ack_pending),
    ]
    return max(share / bound if bound > 0 else 0.0 for share, bound in shares)
