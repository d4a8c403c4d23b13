"""Weight versions: their events, deltas between them, and which may be served. Pure."""
