"""Starts and supervises roles, and whole training runs."""
