"""Metrics, traces and log lines."""
