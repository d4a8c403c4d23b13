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
