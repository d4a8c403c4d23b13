"""Errors of task files."""


class TaskFileError(ValueError):
    """A task file cannot be used; the message names the line and the reason."""
