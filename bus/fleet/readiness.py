"""Readiness of a role: whether it can do its work now, and the reason if not."""

from lightningbus.schemas.fleet import Heartbeat

READY_STATES = {
    "runner": {"running"},
    "store": {"inserting"},
    "learner": {"waiting", "training"},
    "inference": {"ready"},
    "grader": {"grading"},
    "auditor": {"auditing"},
}
"""The states in which a role does its work, as its heartbeats call them."""
STATE_REASONS = {
    ("inference", "starting"): "its engine has not started yet",
    ("inference", "awaiting_weights"): "it holds no verified weight version yet",
    ("inference", "suspect"): "it fails the audit, and its engine is stopped",
    ("auditor", "starting"): "its model is not made yet",
    ("inference", "canary"): "it tries a version before it is approved",
    ("learner", "starting"): "its trainer is not made yet",
    ("learner", "done"): "its last step is made",
    ("runner", "starting"): "its agent is not loaded yet",
    ("runner", "refused"): "the nodes reject its inference API key, and it takes no tasks",
    ("store", "waiting"): "ClickHouse takes nothing",
}


def not_ready_reason(beat: Heartbeat) -> str:
    """Explain in a sentence why a role cannot do its work now; empty: it can. Pure."""
    if beat.state in READY_STATES.get(beat.role, {beat.state}):
        short = beat.status.get("disk")
        return f"{beat.role} is {beat.state}: {short}" if short else ""
    meaning = STATE_REASONS.get((beat.role, beat.state))
    problem = beat.status.get("problem")
    return ": ".join(str(part) for part in (f"{beat.role} is {beat.state}", meaning, problem) if part)
