"""Heartbeats in words. Pure."""

import re
from collections.abc import Iterable, Mapping

from lightningbus.schemas.fleet import Heartbeat

NUMBER = re.compile(r"[+-]?\d[\d.,]*(e[+-]?\d+)?")
LABELS = {
    "rollouts_per_s": "rollouts/s",
    "rows_per_s": "rows/s",
    "inflight": "calls in flight",
    "max_num_seqs": "most at once",
    "swaps": "weight swaps",
    "max_model_len": "context",
    "busy": "busy slots",
    "done": "rollouts done",
    "backlog": "messages to write",
    "needs_full_weights": "needs a whole version",
}
"""Readable labels for keys of a status; other keys are shown as they are."""
HIDDEN = {"alert", "alerts", "engine_id", "steps"}
"""Shown elsewhere, or of no use to a reader."""


def describe(beat: Heartbeat) -> str:
    """Summarise a member's heartbeat in a few words."""
    status = {key: value for key, value in beat.status.items() if key not in HIDDEN and value not in (None, "", [], {})}
    num_steps = beat.status.get("steps")
    if num_steps == 0:  # it publishes the first version only
        status.pop("step", None)
    if isinstance(status.get("step"), int) and isinstance(num_steps, int):
        status["step"] = f"{status['step']} of {num_steps}"
    if isinstance(broadcast := status.get("broadcast"), Mapping):
        status["broadcast"] = f"by {_words(broadcast.get('backends'))}"
    return ", ".join(filter(None, (_phrase(key, value) for key, value in status.items())))


def _phrase(key: str, value: object) -> str:
    label = LABELS.get(key, key.replace("_", " "))
    if isinstance(value, bool):
        return label if value else ""
    return f"{label} {_words(value)}"


def _words(value: object) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{str(key).replace('_', ' ')} {_words(inner)}" for key, inner in value.items())
    if isinstance(value, list | tuple):
        return " and ".join(_words(inner) for inner in value)
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def has_several_models(members: Iterable[Heartbeat]) -> bool:
    """Return whether the processes serve or train more than one model, so that output must name it."""
    return len({beat.model for beat in members if beat.model}) > 1


def firing_alerts(members: Iterable[Heartbeat]) -> list[str]:
    """List the alerts that the watchdogs report now."""
    return [str(beat.status["alert"]) for beat in members if beat.status.get("alert")]


def find_alerts(members: Iterable[Heartbeat]) -> dict[str, str]:
    """Map the causes of the alerts that fire now to their sentences, whose numbers change all the time.

    A process that names no causes has one: its alert without the numbers.
    """
    alerts: dict[str, str] = {}
    for beat in members:
        sentence = str(beat.status.get("alert") or "")
        causes = beat.status.get("alerts")
        if not isinstance(causes, Mapping):
            causes = {NUMBER.sub("", sentence): sentence} if sentence else {}
        alerts |= {f"{beat.role}:{beat.id}:{cause}": str(causes[cause]) for cause in causes}
    return alerts
