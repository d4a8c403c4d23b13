"""Checks before a training job starts."""
