"""Whole jobs: training, evaluation, the demo."""
