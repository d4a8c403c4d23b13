"""Every subject, stream, durable and header name on the bus: the one place they are spelled."""

TASKS = "TASKS"
TRAIN_ROLLOUTS = "TRAIN_ROLLOUTS"
EVAL_ROLLOUTS = "EVAL_ROLLOUTS"
EVENTS = "EVENTS"
ALERTS = "ALERTS"
WEIGHTS = "WEIGHTS"
DLQ = "DLQ"
AUDIT = "AUDIT"
WEIGHT_BUCKET = "weights"

ALL_TASKS = "lb.task.>"
ALL_ROLLOUTS = "lb.rollout.*"
ALL_EVENTS = "lb.event.*"
ALL_WEIGHTS = "lb.weights.version.*"
ALL_ACTIVATIONS = "lb.weights.activated.*"
ALL_RELEASES = "lb.weights.release.*"
ALL_SWAP_LOCKS = "lb.weights.swap_lock.*"
ALL_DLQ = "lb.dlq.*"
ALL_HEARTBEATS = "lb.heartbeat.>"

TRAIN_ROLLOUT = "lb.rollout.train"
EVAL_ROLLOUT = "lb.rollout.eval"
TASK_PUBLISHED = "lb.event.task_published"
TRAINING_STEP = "lb.event.training_step"
ALERT = "lb.alert"
API_ADVISORY = "$JS.EVENT.ADVISORY.API"
"""Where nats-server says who asked JetStream for what, and what came of it."""

STORE = "store"
LEARNER = "learner"
"""Names of durable consumers are the roles that read them."""

SCHEMA_HEADER = "Lightningbus-Schema"
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
    return f"lb.weights.version.{model}"


def activated(node: str) -> str:
    """Where a node announces that it serves a version."""
    return f"lb.weights.activated.{node}"


def release(model: str) -> str:
    """Where it is decided which versions of a model are served; the last message is what holds."""
    return f"lb.weights.release.{model}"


def swap_lock(model: str) -> str:
    """Where the nodes of a model tell whose turn it is to swap; the last message is what holds."""
    return f"lb.weights.swap_lock.{model}"


def dlq(stream: str) -> str:
    """Where the dead letters of a stream go."""
    return f"lb.dlq.{stream}"


def heartbeat(role: str, id: str) -> str:
    """Where a process says what it is doing; core NATS, not stored."""
    return f"lb.heartbeat.{role}.{id}"


def heartbeats(role: str) -> str:
    """Filter over the heartbeats of a role."""
    return f"lb.heartbeat.{role}.*"


def runner_durable(agent: str, mode: str) -> str:
    """Durable consumer of TASKS that the runners of one agent share, for tasks of one mode."""
    return f"runner-{agent}-{mode}"
