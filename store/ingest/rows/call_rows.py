"""Rows of a model call: one for lists, one with its tokens and texts. Pure."""

import contextlib
import re
import struct

import msgspec
import numpy as np

from lightningbus.schemas.codec import DecodeError
from lightningbus.schemas.semconv.attributes import to_json
from lightningbus.schemas.spans import ModelCall, Span
from lightningbus.store.ingest.rows.row import Row

MAX_VERSION = 2**32 - 1
PREVIEW_CHARS = 200
"""Characters of a request or response in a list."""
CONTENT_START = re.compile(r'"(?:content|prompt|text)": ?"')
"""Up to the first character of a text, in JSON."""
CONTENT_WINDOW = 8 * PREVIEW_CHARS
"""Characters in which the text of a message begins."""
_PAIR = r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
PREVIEW = re.compile(rf'(?:[^"\\]|{_PAIR}|\\u[0-9a-fA-F]{{4}}|\\[^u]){{0,{PREVIEW_CHARS}}}')
"""The first characters of a text in JSON, none of them cut in two."""


def model_call_row(call: ModelCall, span: Span) -> Row:
    """Build the narrow row of a model call, without the key of its attempt."""
    versions = [span.version for span in call.weight_versions]
    logprobs = np.frombuffer(call.logprobs[: len(call.logprobs) // 4 * 4], "<f4")
    new_tokens = len(call.prompt_ids) // 4
    return {
        "span_id": span.span_id,
        "role": call.role,
        "model": call.model,
        "node": call.node,
        "prompt_tokens": new_tokens + sum(length for _, length in call.prompt_prefix_refs),
        "prompt_suffix_tokens": new_tokens,
        "response_tokens": len(call.response_ids) // 4,
        "min_weight_version": min(versions, default=None),
        "max_weight_version": max(versions, default=None),
        "engine_ids": [span.engine_id for span in call.weight_versions],
        "engine_versions": versions,
        "prompt_versions": call.prompt_versions,
        "mean_logprob": float(np.add.reduce(logprobs, dtype=np.float64)) / max(len(logprobs), 1),
        "finish_reason": call.finish_reason,
        "sampling_params": to_json(call.sampling_params),
        "request_preview": _last_message_preview(call.request),
        "response_preview": _last_message_preview(call.response),
        "ended_at": span.end_ns,
    }


def call_payload_row(call: ModelCall) -> Row:
    """Build the row of a model call's tokens and texts, without the key of its attempt."""
    return {
        "prompt_prefix_refs": call.prompt_prefix_refs,
        "prompt_ids": call.prompt_ids,
        "prompt_sha256": call.prompt_sha256,
        "response_ids": call.response_ids,
        "logprobs": call.logprobs,
        "token_versions": _pack_token_versions(call),
        "token_texts": call.token_texts,
        "request_prefix_refs": call.request_prefix_refs,
        "request": call.request,
        "response": call.response,
    }


def _pack_token_versions(call: ModelCall) -> bytes:
    """Pack ``u32[T]``: the version of each response token, 0 where it is unknown."""
    versions = bytearray(len(call.response_ids))
    for span in call.weight_versions:
        if span.version > MAX_VERSION:
            raise DecodeError(f"a token has version {span.version}; the largest version is {MAX_VERSION}")
        end = min(span.end * 4, len(versions))
        versions[span.start * 4 : end] = struct.pack("<I", span.version) * max(end // 4 - span.start, 0)
    return bytes(versions)


def _last_message_preview(text: str) -> str:
    """Return the beginning of the last message in a JSON text; of any other text, its beginning."""
    at = max(text.rfind('"content"'), 0)
    if start := CONTENT_START.search(text, at, at + CONTENT_WINDOW):
        begin = start.end()
        end = text.find('"', begin, begin + PREVIEW_CHARS)
        preview = text[begin : end if end >= 0 else begin + PREVIEW_CHARS]
        if "\\" not in preview and preview.isprintable():  # most are: nothing is escaped
            return preview
        escaped = PREVIEW.match(text, begin)
        with contextlib.suppress(msgspec.DecodeError):
            return msgspec.json.decode(f'"{escaped[0] if escaped else ""}"', type=str)
    return text[:PREVIEW_CHARS]
