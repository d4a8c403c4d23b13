"""The seal that clients of a vendor want beside a thought, or they do not send the thought back. Pure.

Vendors seal thoughts so that nobody forges them. Some clients drop a thought without a seal. Nothing here is secret.
"""

from base64 import b64decode, b64encode

PREFIX = "lightningbus."


def seal(thought: str) -> str:
    """Write a thought as a seal that `unseal` reads."""
    return PREFIX + b64encode(thought.encode(errors="surrogatepass")).decode()


def unseal(sealed: object) -> str:
    """Return the thought of a seal; empty for the seal of a vendor, which nobody reads here."""
    if not isinstance(sealed, str) or not sealed.startswith(PREFIX):
        return ""
    try:
        return b64decode(sealed.removeprefix(PREFIX), validate=True).decode(errors="surrogatepass")
    except ValueError:
        return ""
