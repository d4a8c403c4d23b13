"""What the spans of an attempt say beside its calls: judges' words, artifacts, what the agent printed. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from lightningbus.schemas.semconv import attributes

QueryRow = dict[str, Any]


def find_judgements(spans: Sequence[QueryRow]) -> list[QueryRow]:
    """List the judges' answers, in order: ``grader``, ``model``, ``text``, tokens, ``cost`` and ``is_cached``."""
    return [
        {
            "grader": values[attributes.GRADER],
            "model": values.get(attributes.REQUEST_MODEL, ""),
            "text": values.get(attributes.OUTPUT, ""),
            "prompt_tokens": _number(values, attributes.INPUT_TOKENS),
            "response_tokens": _number(values, attributes.OUTPUT_TOKENS),
            "cost": _number(values, attributes.GRADER_COST),
            "is_cached": values.get(attributes.GRADER_CACHED) == "true",
        }
        for span in spans
        if attributes.GRADER in (values := span["attributes"]) and span["scope"] == attributes.GRADER_SCOPE
    ]


def find_artifacts(spans: Sequence[QueryRow]) -> list[QueryRow]:
    """List the files that the attempt kept: ``name``, ``bytes``, ``encoding``, ``content`` and ``sha256``."""
    return [
        {
            "name": values[attributes.ARTIFACT_NAME],
            "bytes": _number(values, attributes.ARTIFACT_BYTES),
            "encoding": values.get(attributes.ARTIFACT_ENCODING, ""),
            "content": values.get(attributes.ARTIFACT_CONTENT, ""),
            "sha256": values.get(attributes.ARTIFACT_SHA256, ""),
        }
        for span in spans
        if attributes.ARTIFACT_NAME in (values := span["attributes"])
    ]


def find_output(spans: Sequence[QueryRow]) -> str:
    """Return what the agent printed, or its end; empty: nothing."""
    return next(
        (
            values[attributes.AGENT_OUTPUT]
            for span in spans
            if attributes.AGENT_OUTPUT in (values := span["attributes"])
        ),
        "",
    )


def add_usage(calls: Sequence[QueryRow], spans: Sequence[QueryRow]) -> None:
    """Fill in the tokens of calls to endpoints that are no node of ours, as these counted them."""
    by_id = {span["span_id"]: span["attributes"] for span in spans}
    for call in calls:
        values = by_id.get(call["span_id"], {})
        if not call["prompt_tokens"] and not call["response_tokens"]:
            call["prompt_tokens"] = _number(values, attributes.INPUT_TOKENS) or 0
            call["response_tokens"] = _number(values, attributes.OUTPUT_TOKENS) or 0


def _number(values: Mapping[str, str], name: str) -> float | None:
    try:
        return float(values[name])
    except (KeyError, ValueError):
        return None
