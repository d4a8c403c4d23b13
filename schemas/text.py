"""Functions on untrusted text."""


def replace_surrogates(text: str) -> str:
    """Replace each half of a surrogate pair, which JSON allows and UTF-8 cannot encode, by a question mark."""
    return text.encode(errors="replace").decode()


def shorten(text: str, limit: int) -> str:
    """At most ``limit`` characters of a text: its beginning, its full length, and its end; UTF-8 can encode them."""
    if len(text) > limit:
        mark = f"… ({len(text)} characters) …"
        half = (limit - len(mark)) // 2
        text = text[:half] + mark + text[-half:]
    return replace_surrogates(text)
