"""Evaluations: the held-out reward of weight versions."""
