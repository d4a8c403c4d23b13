"""Liveness of processes: heartbeats, readiness, and the states of inference nodes."""
