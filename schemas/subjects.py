"""Every name of a subject, stream, durable or header on the bus."""

TASKS = "TASKS"
TRAIN_ROLLOUTS = "TRAIN_ROLLOUTS"
EVAL_ROLLOUTS = "EVAL_ROLLOUTS"
EVENTS = "EVENTS"
GRADING = "GRADING"
ALERTS = "ALERTS"
WEIGHTS = "WEIGHTS"
PROMPTS = "PROMPTS"
DLQ = "DLQ"
DISPATCH = "DISPATCH"
AUDIT = "AUDIT"
WEIGHT_BUCKET = "weights"

ALL_TASKS = "lb.task.>"
ALL_ROLLOUTS = "lb.rollout.*"
ALL_EVENTS = "lb.event.*"
ALL_GRADING_REQUESTS = "lb.grading.*"
ALL_WEIGHTS = "lb.weights.version.*"
ALL_ACTIVATIONS = "lb.weights.activated.*"
ALL_RELEASES = "lb.weights.release.*"
ALL_SWAP_LOCKS = "lb.weights.swap_lock.*"
ALL_AUDITS = "lb.weights.audit.*"
ALL_PROMPTS = "lb.prompts.version.*"
ALL_PROMPT_RELEASES = "lb.prompts.release.*"
ALL_DLQ = "lb.dlq.*"
ALL_DISPATCH_MARKS = "lb.dispatch.*"
ALL_DISPATCHED = "lb.dispatched.*"

TRAIN_ROLLOUT = "lb.rollout.train"
EVAL_ROLLOUT = "lb.rollout.eval"
TASK_PUBLISHED = "lb.event.task_published"
TRAINING_STEP = "lb.event.training_step"
TASK_DECIDED = "lb.event.task_decided"
ROLLOUT_AUDITED = "lb.event.rollout_audited"
ROLLOUT_GRADED = "lb.event.rollout_graded"
ROLLOUT_REVIEWED = "lb.event.rollout_reviewed"
ALERT = "lb.alert"
API_ADVISORY = "$JS.EVENT.ADVISORY.API"
"""nats-server's audit of JetStream API requests and their results."""

STORE = "store"
"""The durable consumers of the store."""
GRADERS = "graders"
"""The durable consumer that all graders share."""
LEARNER_PREFIX = "learner-"
DEFAULT_POLICY = "policy"
"""The model of a run that names none."""

SCHEMA_HEADER = "Lightningbus-Schema"
TRACE_HEADER = "traceparent"
MSG_ID_HEADER = "Nats-Msg-Id"


def task(mode: str, agent: str) -> str:
    """Return the subject of tasks for an agent."""
    return f"lb.task.{mode}.{agent}"


def rollout(mode: str) -> str:
    """Return the subject of rollouts' spans; the learner reads ``train`` only."""
    return f"lb.rollout.{mode}"


def grading(mode: str) -> str:
    """Return the subject of finished attempts that wait for their grade."""
    return f"lb.grading.{mode}"


def weights(model: str) -> str:
    """Return the subject of manifests of a model's versions."""
    return f"lb.weights.version.{model}"


def activated(node: str) -> str:
    """Return the subject on which a node announces the version that it serves."""
    return f"lb.weights.activated.{node}"


def release(model: str) -> str:
    """Return the subject of a model's release state; the last message is the current one."""
    return f"lb.weights.release.{model}"


def audit(model: str) -> str:
    """Return the subject of the auditor's verdicts on a model; the last message is the current state."""
    return f"lb.weights.audit.{model}"


def swap_lock(model: str) -> str:
    """Return the subject of the swap lock of a model's nodes; the last message is the current one."""
    return f"lb.weights.swap_lock.{model}"


def prompt(name: str) -> str:
    """Return the subject of a prompt's versions."""
    return f"lb.prompts.version.{name}"


def prompt_release(name: str) -> str:
    """Return the subject of a prompt's release state; the last message is the current one."""
    return f"lb.prompts.release.{name}"


def dlq(stream: str) -> str:
    """Return the subject of a stream's dead letters."""
    return f"lb.dlq.{stream}"


def heartbeat(role: str, id: str) -> str:
    """Return the subject of heartbeats of one process; core NATS, not stored."""
    return f"lb.heartbeat.{role}.{id}"


def heartbeats(role: str) -> str:
    """Filter over the heartbeats of a role."""
    return f"lb.heartbeat.{role}.*"


def dispatch_mark(run: str) -> str:
    """Return the subject of a run's dispatched groups; the last message is the current count."""
    return f"lb.dispatch.{run}"


def dispatched(run: str) -> str:
    """Return the subject on which the stream announces each new count of a run once it is stored; core NATS."""
    return f"lb.dispatched.{run}"


def learner_durable(model: str) -> str:
    """Name the durable consumer of TRAIN_ROLLOUTS of the learner that trains a model."""
    return f"{LEARNER_PREFIX}{model}"


def is_learner_durable(durable: str) -> bool:
    """Return whether a durable consumer is a learner's."""
    return durable.startswith(LEARNER_PREFIX)


def model_of_durable(durable: str) -> str:
    """Return the model of a learner's durable."""
    return durable.removeprefix(LEARNER_PREFIX)


def runner_durable(agent: str, mode: str) -> str:
    """Name the durable consumer of TASKS that the runners of one agent share, for tasks of one mode."""
    return f"runner-{agent}-{mode}"
