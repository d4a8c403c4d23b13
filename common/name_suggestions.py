"""Suggestions of known names for a misspelt one."""

from collections.abc import Iterable
from difflib import get_close_matches

MAX_LISTED = 16
"""Most known names that are listed when none is similar."""


def suggest_name(wrong: str, known: Iterable[str]) -> str:
    """Word a clause for an error: "did you mean 'steps'?", else the known names if they are few."""
    names = sorted(known)
    return suggest_near_name(wrong, names) or (f"known are {', '.join(names)}" if 0 < len(names) <= MAX_LISTED else "")


def suggest_near_name(wrong: str, known: Iterable[str]) -> str:
    """Word a clause for an error: "did you mean 'steps'?"; empty where no known name is similar."""
    near = get_close_matches(wrong, sorted(known), n=1)
    return f"did you mean {near[0]!r}?" if near else ""
