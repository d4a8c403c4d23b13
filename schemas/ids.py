"""Identities derived from what an event is about, so that sending twice is sending once.

What only one writer sends has a nonce of this writer too, so that nobody else can send under its name first.
"""

import json
import re
from collections.abc import Iterable
from hashlib import sha256

TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-((?!0{16})[0-9a-f]{16})-[0-9a-f]{2}(?:-.*)?")


def rollout_id(task: str, sample: int) -> str:
    """A rollout is one (task, sample)."""
    return f"{task}.{sample}"


def trace_id(rollout: str) -> str:
    """The one trace of a rollout, from publish to training step: 32 hex digits."""
    return sha256(f"trace:{rollout}".encode()).hexdigest()[:32]


def span_id(rollout: str, *parts: object) -> str:
    """A span of a rollout, named by what it is (``"publish"``; ``attempt, "call", 0``): 16 hex digits."""
    return sha256(":".join(["span", rollout, *map(str, parts)]).encode()).hexdigest()[:16]


def publish_span_id(rollout: str) -> str:
    """The PRODUCER span that opens a rollout's trace."""
    return span_id(rollout, "publish")


def execution_id(rollout: str, attempt: int, runner: str, started_ns: int) -> str:
    """One run of the agent by one runner: 16 hex digits."""
    return sha256(f"execution:{rollout}:{attempt}:{runner}:{started_ns}".encode()).hexdigest()[:16]


def root_span_id(rollout: str, execution: str) -> str:
    """The span that holds one attempt of a rollout."""
    return span_id(rollout, execution, "root")


def traceparent(trace: str, span: str) -> str:
    """W3C Trace Context header of a sampled span (https://www.w3.org/TR/trace-context/)."""
    return f"00-{trace}-{span}-01"


def task_traceparent(rollout: str) -> str:
    """``traceparent`` header of a task whose publisher also records it: the rollout's PRODUCER span."""
    return traceparent(trace_id(rollout), publish_span_id(rollout))


def parse_span_id(traceparent: str) -> str:
    """The span that a W3C Trace Context header names; empty where it is none."""
    found = TRACEPARENT.fullmatch(traceparent.strip())
    return found[2] if found else ""


def parse_trace_id(traceparent: str) -> str:
    """The trace that a W3C Trace Context header names; empty where it is none."""
    match = TRACEPARENT.fullmatch(traceparent.strip())
    return match[1] if match else ""


def task_msg_id(rollout: str) -> str:
    """``Nats-Msg-Id`` of a task."""
    return f"task:{rollout}"


def tasks_msg_id(rollouts: Iterable[str]) -> str:
    """``Nats-Msg-Id`` of the record of tasks that were published together."""
    return f"tasks:{sha256(json.dumps([*rollouts]).encode()).hexdigest()[:32]}"


def batch_msg_id(execution: str, sequence: int) -> str:
    """``Nats-Msg-Id`` of a span batch."""
    return f"span:{execution}:{sequence}"


def weight_msg_id(model: str, epoch: int, version: int, nonce: str) -> str:
    """``Nats-Msg-Id`` of a weight version; the ``nonce`` is known to nobody before, who could take the id first."""
    return f"weights:{model}:{epoch}:{version}:{nonce}"


def step_msg_id(run: str, epoch: int, step: int, nonce: str) -> str:
    """``Nats-Msg-Id`` of a training step; ``nonce`` as of `weight_msg_id`."""
    return f"step:{run}:{epoch}:{step}:{nonce}"
