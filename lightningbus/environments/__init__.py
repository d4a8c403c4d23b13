"""Adapters to environments of others; `lightningbus env` copies this package, and no process of ours imports it."""
