"""OpenTelemetry attribute names: semantic-conventions-genai (2026, Development) and our own namespace."""

import math
from typing import Any

import msgspec

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
AGENT_NAME = "gen_ai.agent.name"
REQUEST_MODEL = "gen_ai.request.model"
RESPONSE_ID = "gen_ai.response.id"
RESPONSE_MODEL = "gen_ai.response.model"
FINISH_REASONS = "gen_ai.response.finish_reasons"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
TOOL_NAME = "gen_ai.tool.name"
TOOL_CALL = "gen_ai.tool.call.id"
TOOL_ARGUMENTS = "gen_ai.tool.call.arguments"
TOOL_RESULT = "gen_ai.tool.call.result"
WORKFLOW_NAME = "gen_ai.workflow.name"
INPUT = "input.value"
OUTPUT = "output.value"
"""OpenInference's, for spans that are no tools: OpenTelemetry has none."""
SERVER_ADDRESS = "server.address"
ERROR_TYPE = "error.type"
LOG_BODY = "log.body"
"""Marks a span that was converted from a log record."""
MESSAGING_SYSTEM = "messaging.system"
MESSAGING_OPERATION = "messaging.operation.type"
MESSAGING_DESTINATION = "messaging.destination.name"
MESSAGE_ID = "messaging.message.id"

ROLLOUT = "lightningbus.rollout.id"
ATTEMPT = "lightningbus.rollout.attempt"
TASK = "lightningbus.task.id"
RUN = "lightningbus.run"
REWARD = "lightningbus.reward"
NAMED_REWARD_PREFIX = "lightningbus.rewards."
"""Followed by the name of a reward, as in ``lightningbus.rewards.checker``."""
OUTCOME = "lightningbus.outcome"
WEIGHT_VERSION = "lightningbus.weight.version"
ADVANTAGE = "lightningbus.advantage"
STEP = "lightningbus.training.step"
NODE = "lightningbus.node"
MESSAGES = "lightningbus.messages"
ROWS = "lightningbus.rows"
GRADER_SCOPE = "lightningbus.graders"
"""Scope of the spans that graders add: what they hold is no reward of a call."""
GRADER = "lightningbus.grader.name"
GRADER_CACHED = "lightningbus.grader.cached"
GRADER_REQUEST_SHA256 = "lightningbus.grader.request_sha256"
GRADER_COST = "lightningbus.grader.cost"
DROPPED_SPANS = "lightningbus.spans.dropped"
WORKSPACE_METHOD = "lightningbus.workspace.method"
WORKSPACE_PREFIX = "lightningbus.workspace."
"""Followed by the name of a count."""
ARTIFACT_NAME = "lightningbus.artifact.name"
ARTIFACT_SHA256 = "lightningbus.artifact.sha256"
"""Digest of the whole file, also where its content is cut off."""
ARTIFACT_BYTES = "lightningbus.artifact.bytes"
ARTIFACT_ENCODING = "lightningbus.artifact.encoding"
ARTIFACT_CONTENT = "lightningbus.artifact.content"
AGENT_OUTPUT = "lightningbus.agent.printed"
"""The end of what the agent printed during the attempt."""
AGL_REWARD_PREFIX = "agentlightning.reward"
AGL_REWARD = f"{AGL_REWARD_PREFIX}.0.value"
"""Agent Lightning's reward attribute, for agents that are instrumented for it; the first dimension counts."""
AGL_EVENT_DATA = "agentlightning.event.data"
"""The data of an event of Agent Lightning 1.0, as JSON."""

EVALUATION_EVENT = "gen_ai.evaluation.result"
"""Name of a span event, or of a log record."""
EVALUATION_NAME = "gen_ai.evaluation.name"
EVALUATION_SCORE = "gen_ai.evaluation.score.value"


_JSON = msgspec.json.Encoder(enc_hook=repr)


def to_text(value: Any) -> str:
    """Convert the value of an attribute to its stored form: strings unchanged, everything else by `to_json`."""
    value = _name_numbers(value)
    return value if isinstance(value, str) else _JSON.encode(value).decode()


def to_json(value: Any) -> str:
    """Encode a value as JSON; one that JSON cannot represent is written as its ``repr``.

    Numbers that JSON lacks are words, as in OTLP's JSON: NaN, Infinity and -Infinity.
    """
    return _JSON.encode(_name_numbers(value)).decode()


def _name_numbers(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, list | tuple):
        return [_name_numbers(element) for element in value]
    if isinstance(value, dict):
        return {name: _name_numbers(field) for name, field in value.items()}
    return value
