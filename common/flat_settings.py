"""Nested settings as one level of names, to be shown to others: without secrets. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

SECRET_WORDS = ("password", "key", "secret", "token_file", "credentials")
"""Settings with such a word in their name are left out."""


def flatten_settings(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted names and their values, without secrets; a URL loses user and password."""
    for name, value in values.items():
        if any(word in name for word in SECRET_WORDS):
            continue
        if isinstance(value, Mapping):
            yield from flatten_settings(value, f"{prefix}{name}.")
        else:
            text = without_secrets(value) if isinstance(value, str) and "://" in value else value
            yield f"{prefix}{name}", text


def without_secrets(url: str) -> str:
    """Remove user, password and query from a URL; of what is no URL nothing is left but three dots."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "..."
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query=""))
