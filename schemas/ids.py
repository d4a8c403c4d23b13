"""Deterministic ids, derived from the content of an event: a repeated message counts once.

An id reserved for one writer contains a nonce of that writer, so that no other process can use it first.
"""

import json
import re
from collections.abc import Iterable
from hashlib import sha256

LATEST = "latest"
"""Name that stands for the newest run."""
TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-((?!0{16})[0-9a-f]{16})-[0-9a-f]{2}(?:-.*)?")


def rollout_id(task: str, sample: int) -> str:
    """Build the id of one (task, sample) pair."""
    return f"{task}.{sample}"


def trace_id(rollout: str) -> str:
    """Derive the trace of a rollout, from publish to training step: 32 hex digits."""
    return sha256(f"trace:{rollout}".encode()).hexdigest()[:32]


def span_id(rollout: str, *parts: object) -> str:
    """Derive a span of a rollout from its parts (``"publish"``; ``attempt, "call", 0``): 16 hex digits."""
    return sha256(":".join(["span", rollout, *map(str, parts)]).encode()).hexdigest()[:16]


def publish_span_id(rollout: str) -> str:
    """Derive the PRODUCER span that starts the trace of a rollout."""
    return span_id(rollout, "publish")


def execution_id(rollout: str, attempt: int, runner: str, started_ns: int) -> str:
    """Derive the id of one execution of the agent by a runner: 16 hex digits."""
    return sha256(f"execution:{rollout}:{attempt}:{runner}:{started_ns}".encode()).hexdigest()[:16]


def root_span_id(rollout: str, execution: str) -> str:
    """Derive the root span of one attempt of a rollout."""
    return span_id(rollout, execution, "root")


def traceparent(trace: str, span: str) -> str:
    """Build the W3C Trace Context header of a sampled span (https://www.w3.org/TR/trace-context/)."""
    return f"00-{trace}-{span}-01"


def task_traceparent(rollout: str) -> str:
    """Build the ``traceparent`` header of a task whose publisher also writes its record: the PRODUCER span."""
    return traceparent(trace_id(rollout), publish_span_id(rollout))


def parse_span_id(traceparent: str) -> str:
    """Parse the span id of a W3C Trace Context header; empty if the header is invalid."""
    match = TRACEPARENT.fullmatch(traceparent.strip())
    return match[2] if match else ""


def parse_trace_id(traceparent: str) -> str:
    """Parse the trace id of a W3C Trace Context header; empty if the header is invalid."""
    match = TRACEPARENT.fullmatch(traceparent.strip())
    return match[1] if match else ""


def task_msg_id(rollout: str) -> str:
    """Build the ``Nats-Msg-Id`` of a task."""
    return f"task:{rollout}"


def tasks_msg_id(rollouts: Iterable[str]) -> str:
    """Build the ``Nats-Msg-Id`` of the record of tasks that were published together."""
    return f"tasks:{sha256(json.dumps([*rollouts]).encode()).hexdigest()[:32]}"


def batch_msg_id(execution: str, sequence: int) -> str:
    """Build the ``Nats-Msg-Id`` of a span batch."""
    return f"span:{execution}:{sequence}"


def grading_msg_id(execution: str) -> str:
    """Build the ``Nats-Msg-Id`` of an attempt that waits for its grade."""
    return f"grading:{execution}"


def graded_msg_id(execution: str, grading: str, graders_sha256: str) -> str:
    """Build the ``Nats-Msg-Id`` of an attempt's grade by certain graders."""
    return f"graded:{execution}:{grading}:{graders_sha256[:32]}"


def weight_msg_id(model: str, epoch: int, version: int, nonce: str) -> str:
    """Build the ``Nats-Msg-Id`` of a weight version; the secret ``nonce`` keeps others from using the id first."""
    return f"weights:{model}:{epoch}:{version}:{nonce}"


def audit_msg_id(execution: str, call: int, engine_id: str, version: int) -> str:
    """Build the ``Nats-Msg-Id`` of the audit of a call's tokens of one engine and version."""
    return f"audited:{execution}:{call}:{engine_id}:{version}"


def decision_msg_id(model: str, task: str, decision: str) -> str:
    """Build the ``Nats-Msg-Id`` of a learner's decision about the group of a task."""
    return f"decided:{model}:{decision}:{task}"


def review_msg_id(run: str, rollout: str, reviewer: str, reviewed_at_ns: int) -> str:
    """Build the ``Nats-Msg-Id`` of a person's review of a rollout."""
    return f"reviewed:{run}:{rollout}:{reviewed_at_ns}:{reviewer.encode().hex()}"


def step_msg_id(run: str, epoch: int, step: int, nonce: str) -> str:
    """Build the ``Nats-Msg-Id`` of a training step; ``nonce`` as in `weight_msg_id`."""
    return f"step:{run}:{epoch}:{step}:{nonce}"
