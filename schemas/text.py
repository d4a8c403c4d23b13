"""Functions on untrusted text."""

from collections.abc import Sequence

GAP = " … "
"""Stands for the words that a shortened line lacks."""


def replace_surrogates(text: str) -> str:
    """Join the halves of surrogate pairs, and replace each single half by a question mark.

    JSON allows halves, and UTF-8 cannot encode them.
    """
    if text.isascii():
        return text
    joined = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    return joined.encode(errors="replace").decode()


def shorten(text: str, limit: int) -> str:
    """Shorten a text to ``limit`` characters: its beginning, full length, and end, all encodable as UTF-8."""
    if len(text) > limit:
        mark = f"… ({len(text)} characters) …"
        half = (limit - len(mark)) // 2
        text = text[:half] + mark + text[-half:]
    return replace_surrogates(text)


def shorten_line(text: str, limit: int) -> str:
    """Put a text on one line of at most ``limit`` characters, encodable as UTF-8; a longer one loses words inside.

    Twice as much is left of its end as of its beginning: an error begins with its kind, and ends with its reason.
    """
    line = replace_surrogates(" ".join(text.split()))
    if len(line) <= limit:
        return line
    room = max(0, limit - len(GAP))
    begin, end = line[: room // 3], line[len(line) - (room - room // 3) :]
    begin = begin.rpartition(" ")[0] or begin
    end = end.partition(" ")[2] or end
    return f"{begin}{GAP}{end}".strip()


def name_some(names: Sequence[str], limit: int = 3) -> str:
    """Name the first ``limit`` names, and count the others."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return f"{', '.join(names[:limit])}{more}"
