"""Refusals by an engine's API over HTTP. Pure."""

import contextlib
import json

from lightningbus.runners.workspaces.errors import WorkspaceFailedError

MAX_MESSAGE_CHARS = 300


class NotFoundError(WorkspaceFailedError):
    """The engine does not know the resource."""


class ConflictError(WorkspaceFailedError):
    """The engine has the resource already, or is changing it."""


def build_refusal(sentence: str, status: int, body: str) -> WorkspaceFailedError:
    """Build the error of a response, by its status and the message in its body."""
    kind = {404: NotFoundError, 409: ConflictError}.get(status, WorkspaceFailedError)
    return kind(f"{sentence}: {read_message(body)}")


def read_message(body: str) -> str:
    """Return the message of a response, or its text if that is not JSON with one."""
    with contextlib.suppress(ValueError, AttributeError, KeyError):
        return str(json.loads(body)["message"])[:MAX_MESSAGE_CHARS]
    return body.strip()[:MAX_MESSAGE_CHARS]
