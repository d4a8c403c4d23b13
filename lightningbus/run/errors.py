"""Errors that end a command with one sentence."""

from typing import NoReturn


class UserError(Exception):
    """Error that the user can correct: one sentence, shown without a traceback."""

    is_sentence = True
    """Tells `lightningbus.common.event_loop.run_blocking` that a traceback adds nothing."""

    def _render_traceback_(self) -> list[str]:
        """Return the lines that Jupyter shows instead of a traceback."""
        return [f"{type(self).__name__}: {self}"]


def exit_with(sentence: object, code: int = 2) -> NoReturn:
    """Say what is wrong on standard error and exit; 2 tells a supervisor not to try again."""
    from lightningbus.common.observability.logs import print_fatal  # imports structlog

    print_fatal(sentence)
    raise SystemExit(code)
