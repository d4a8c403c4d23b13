"""Texts in ClickHouse's SQL. Pure."""


def quote_text(text: str) -> str:
    """Quote a text as a literal."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
