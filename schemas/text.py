"""Text of strangers, of which a reader is shown a bounded part."""


def writable(text: str) -> str:
    """With a question mark for each half of a surrogate pair, which JSON lets through and UTF-8 has no form for."""
    return text.encode(errors="replace").decode()


def shorten(text: str, limit: int) -> str:
    """`writable` text of at most ``limit`` characters: its beginning, how much of it there was, and its end."""
    if len(text) > limit:
        mark = f"… ({len(text)} characters) …"
        half = (limit - len(mark)) // 2
        text = text[:half] + mark + text[-half:]
    return writable(text)
