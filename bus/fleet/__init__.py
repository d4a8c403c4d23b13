"""Who is alive: heartbeats, readiness, and the states of inference nodes."""
