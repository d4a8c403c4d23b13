"""The signature of a thought in Google's Gemini API: bytes, which JSON has as base64. Pure."""

from base64 import b64decode, b64encode
from binascii import Error as Base64Error

from lightningbus.runners.protocol.thoughts import seal, unseal

STANDARD = str.maketrans("-_", "+/")


def sign(thought: str) -> str:
    """Write a thought as a signature that `unsign` reads."""
    return b64encode(seal(thought).encode()).decode()


def unsign(signature: object) -> str:
    """Return the thought of a signature; empty for any that was not made here."""
    if not isinstance(signature, str) or not signature.isascii():
        return ""
    try:
        return unseal(b64decode(to_standard_base64(signature)).decode(errors="replace"))
    except Base64Error:
        return ""


def to_standard_base64(text: str) -> str:
    """Return base64 in the standard alphabet, padded: Google's clients also write the alphabet for URLs."""
    plain = text.translate(STANDARD).rstrip("=")
    return plain + "=" * (-len(plain) % 4)
