"""Text of strangers, of which a reader is shown a bounded part."""


def writable(text: str) -> str:
    """With a question mark for each half of a surrogate pair, which JSON lets through and UTF-8 has no form for."""
    return text.encode(errors="replace").decode()


def shorten(text: str, limit: int) -> str:
    """`writable` text in about ``limit`` characters: its beginning and its end, and how much is left out between."""
    if len(text) > limit:
        half = limit // 2
        text = f"{text[:half]}… ({len(text) - 2 * half} characters left out) …{text[-half:]}"
    return writable(text)
