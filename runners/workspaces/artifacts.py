"""Artifacts of a rollout: its diff and the files that its task asks for, as spans of the record."""

import base64
import fnmatch
import hashlib
import os
import stat
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightningbus.runners.recording.attempt import AttemptRecorder
from lightningbus.runners.workspaces.files.changes import Change
from lightningbus.schemas import ids
from lightningbus.schemas.semconv import attributes
from lightningbus.schemas.spans import Span
from lightningbus.schemas.text import replace_surrogates

SCOPE = "lightningbus.workspaces"
DIFF_NAME = "workspace.diff"
MAX_ARTIFACTS = 32
"""Files that one rollout keeps beside its diff."""
MAX_READ_BYTES = 64 * 1024 * 1024
"""Largest file that is read for its digest; a larger one is left out."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file that a rollout keeps: the digest of all of it, and its first bytes."""

    name: str
    num_bytes: int
    sha256: str
    content: bytes


@dataclass
class WorkspaceRecord:
    """Facts about a rollout's workspace, recorded when it is removed."""

    method: str
    started_ns: int = field(default_factory=time.time_ns)
    artifacts: list[Artifact] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    """Changed files, changes left out of the diff, and artifacts that could not be kept."""


def make_artifact(name: str, data: bytes, max_bytes: int) -> Artifact:
    """Make an artifact of some bytes, whole or cut off."""
    return Artifact(name, len(data), hashlib.sha256(data).hexdigest(), data[:max_bytes])


def pick_artifacts(changes: Sequence[Change], patterns: Sequence[str], max_bytes: int) -> tuple[list[Artifact], int]:
    """Read the files that an agent wrote and a pattern names; return them with the number of those left out."""
    picked: list[Artifact] = []
    num_left_out = 0
    for change in changes:
        if change.after is None or not any(fnmatch.fnmatchcase(change.path, pattern) for pattern in patterns):
            continue
        data = _read(change.after) if len(picked) < MAX_ARTIFACTS else None
        if data is None:
            num_left_out += 1
        else:
            picked.append(make_artifact(change.path, data, max_bytes))
    return picked, num_left_out


def record_workspace(recorder: AttemptRecorder, record: WorkspaceRecord) -> None:
    """Add the spans of a workspace and its artifacts to the record of an attempt."""
    fields: dict[str, Any] = {attributes.WORKSPACE_METHOD: record.method}
    fields |= {f"{attributes.WORKSPACE_PREFIX}{name}": count for name, count in record.counts.items()}
    now_ns = max(time.time_ns(), record.started_ns)
    recorder.add(_make_span(recorder, "workspace", -1, record.started_ns, now_ns, fields))
    for number, artifact in enumerate(record.artifacts):
        name = f"artifact {replace_surrogates(artifact.name)}"[:200]
        recorder.add(_make_span(recorder, name, number, now_ns, now_ns, describe(artifact)))


def describe(artifact: Artifact) -> dict[str, Any]:
    """Describe an artifact by attributes of a span: text as it is, other bytes in base64. Pure."""
    try:
        content, encoding = artifact.content.decode(), "utf-8"
    except UnicodeDecodeError as error:
        is_cut = len(artifact.content) < artifact.num_bytes and error.start >= len(artifact.content) - 3
        if is_cut:  # within its last character
            content, encoding = artifact.content[: error.start].decode(), "utf-8"
        else:
            content, encoding = base64.b64encode(artifact.content).decode(), "base64"
    return {
        attributes.ARTIFACT_NAME: replace_surrogates(artifact.name),
        attributes.ARTIFACT_SHA256: artifact.sha256,
        attributes.ARTIFACT_BYTES: artifact.num_bytes,
        attributes.ARTIFACT_ENCODING: encoding,
        attributes.ARTIFACT_CONTENT: content,
    }


def _make_span(
    recorder: AttemptRecorder, name: str, number: int, start_ns: int, end_ns: int, fields: Mapping[str, Any]
) -> Span:
    return Span(
        trace_id=recorder.trace_id,
        span_id=ids.span_id(recorder.rollout, recorder.execution, "workspace", number),
        parent_span_id=recorder.root_id,
        name=name,
        start_ns=start_ns,
        end_ns=end_ns,
        status="ok",
        scope=SCOPE,
        attributes=dict(fields),
    )


def _read(path: Path) -> bytes | None:
    """Read a plain file; None for anything else, and for one too large. A link is not followed, a pipe not awaited."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_READ_BYTES:
            return None
        return file.read(MAX_READ_BYTES)
