"""What a learner's rollouts need of the bus, where they stay until a checkpoint covers them. Pure."""

from dataclasses import dataclass

from lightningbus.bus.streams.sizes import MIB
from lightningbus.learner.settings.learner import LearnerSettings

BYTES_OF_TOKEN, BYTES_OF_ROLLOUT = 18, 4096
"""On the bus, as docs/sizing.md measures them: ids, log-probabilities and text; spans of a few turns."""
FULL = 0.5
"""From this share on a checkpoint is written after each step, so half of the room is left for what is under way."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the bus holds for the learner."""

    bytes: int
    """-1: without a bound."""
    messages: int
    max_ack_pending: int


@dataclass(frozen=True, slots=True)
class Shortage:
    """What does not fit, as a sentence each; empty: it fits."""

    step: str = ""
    """A step can never be made."""
    interval: str = ""
    """Checkpoints are written earlier than the settings say."""


def find_shortage(settings: LearnerSettings, capacity: Capacity) -> Shortage:
    """Whether the steps under way, and all steps of a checkpoint interval, fit the share that is there for them."""
    under_way = 1 + (settings.max_staleness if settings.staleness.admission == "bounded" else 0)
    interval = settings.checkpoint_interval or settings.weight_sync_interval
    return Shortage(
        _too_much(settings, capacity, under_way, "the steps under way"),
        _too_much(settings, capacity, interval, "the steps between two checkpoints"),
    )


def bytes_of_rollout(settings: LearnerSettings) -> int:
    """What a rollout takes on the bus: as the settings say, else for as many tokens as are trained on at most."""
    return settings.rollout_bytes or BYTES_OF_ROLLOUT + BYTES_OF_TOKEN * settings.seq_len


def _too_much(settings: LearnerSettings, capacity: Capacity, steps: int, what: str) -> str:
    rollouts, size = steps * settings.groups_per_step * settings.group_size, bytes_of_rollout(settings)
    messages = rollouts * (1 + size // MIB)
    shape = (
        f"{steps} x groups_per_step {settings.groups_per_step} x group_size {settings.group_size} = "
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
    """Share of the room that is taken by what the learner has not acknowledged, by whichever bound is nearest.

    ``messages`` and ``size`` (bytes) are the stream's; what only others have not read yet is not the learner's.
    """
    waiting = unacknowledged + undelivered
    shares = [
        (size * min(1.0, waiting / messages) if messages else 0.0, capacity.bytes),
        (waiting, capacity.messages),
        (unacknowledged, capacity.max_ack_pending),
    ]
    return max(share / bound if bound > 0 else 0.0 for share, bound in shares)
