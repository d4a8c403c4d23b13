"""Environment variables by which the clients of vendors find the gateway. Pure."""

from typing import NamedTuple


class ClientVariables(NamedTuple):
    """Variables that a vendor's client reads."""

    base_url: str
    key: str
    path: str
    """Path of the vendor's API behind the address that the gateway gives an agent."""


CLIENTS = (
    ClientVariables("OPENAI_BASE_URL", "OPENAI_API_KEY", "/v1"),
    ClientVariables("ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", ""),
    ClientVariables("GOOGLE_GEMINI_BASE_URL", "GEMINI_API_KEY", ""),
)
"""Clients that the gateway serves."""
