"""Errors of workspaces: those of the task, and those of this machine."""


class WorkspaceRefusedError(Exception):
    """A task asks for a workspace that no runner can make; the message is a sentence. It is not tried again."""


class WorkspaceFailedError(Exception):
    """A workspace or its grader failed on this machine; the message is a sentence. The task is tried again."""
