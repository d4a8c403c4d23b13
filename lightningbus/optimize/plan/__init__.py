"""Decisions of a prompt optimisation. Pure."""
