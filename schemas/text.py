"""Functions on untrusted text."""


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


def cut_at_word(text: str, limit: int) -> str:
    """Put a text on one line of at most ``limit`` characters; a longer one ends after a word, with an ellipsis."""
    line = " ".join(text.split())
    if len(line) <= limit:
        return line
    words, _, _ = line[: limit - 1].rpartition(" ")
    return f"{words or line[: limit - 2]} …"
