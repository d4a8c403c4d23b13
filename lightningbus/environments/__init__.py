"""Adapters to third-party environments; `lightningbus env` copies this package, and our processes do not import it."""
