"""Errors that end a command with one sentence."""


class UserError(Exception):
    """Error that the user can correct: one sentence, shown without a traceback."""

    def _render_traceback_(self) -> list[str]:
        """Return the lines that Jupyter shows instead of a traceback."""
        return [f"{type(self).__name__}: {self}"]
