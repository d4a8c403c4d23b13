"""Metrics of a run to the trackers that people look at."""
