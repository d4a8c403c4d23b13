"""Every subject, stream, durable and header name on the bus: the one place they are spelled."""

TASKS = "TASKS"
TRAIN_ROLLOUTS = "TRAIN_ROLLOUTS"
EVAL_ROLLOUTS = "EVAL_ROLLOUTS"
EVENTS = "EVENTS"
ALERTS = "ALERTS"
WEIGHTS = "WEIGHTS"
DEAD = "DEAD"
WEIGHT_BUCKET = "weights"

ALL_TASKS = "lb.task.>"
ALL_ROLLOUTS = "lb.rollout.*"
ALL_EVENTS = "lb.event.*"
ALL_WEIGHTS = "lb.weights.*"
ALL_APPLIED = "lb.applied.*"
ALL_RELEASES = "lb.release.*"
ALL_TURNS = "lb.turn.*"
ALL_DEAD = "lb.dead.*"
ALL_HEARTBEATS = "lb.heartbeat.>"

TRAIN_ROLLOUT = "lb.rollout.train"
EVAL_ROLLOUT = "lb.rollout.eval"
TASK_PUBLISHED = "lb.event.task_published"
TRAINING_STEP = "lb.event.training_step"
ALERT = "lb.alert"

STORE = "store"
LEARNER = "learner"
"""Names of durable consumers are the roles that read them."""

SCHEMA_HEADER = "Lb-Schema"
TRACE_HEADER = "traceparent"
MSG_ID_HEADER = "Nats-Msg-Id"


def task(mode: str, agent: str) -> str:
    """Where a task for an agent is published."""
    return f"lb.task.{mode}.{agent}"


def rollout(mode: str) -> str:
    """Where the spans of a rollout are published; the learner reads ``train`` only."""
    return f"lb.rollout.{mode}"


def weights(model: str) -> str:
    """Where the versions of a model are published."""
    return f"lb.weights.{model}"


def applied(node: str) -> str:
    """Where a node announces that it serves a version."""
    return f"lb.applied.{node}"


def release(model: str) -> str:
    """Where it is decided which versions of a model are served; the last message is what holds."""
    return f"lb.release.{model}"


def turn(model: str) -> str:
    """Where the nodes of a model tell whose turn it is to swap; the last message is what holds."""
    return f"lb.turn.{model}"


def dead(stream: str) -> str:
    """Where the dead letters of a stream go."""
    return f"lb.dead.{stream}"


def heartbeat(role: str, id: str) -> str:
    """Where a process says what it is doing; core NATS, not stored."""
    return f"lb.heartbeat.{role}.{id}"


def heartbeats(role: str) -> str:
    """Filter over the heartbeats of a role."""
    return f"lb.heartbeat.{role}.*"


def runner_durable(agent: str, mode: str) -> str:
    """Durable consumer of TASKS that the runners of one agent share, for tasks of one mode."""
    return f"runner-{agent}-{mode}"
