"""This machine: its facts, and what of them prevents a run."""
