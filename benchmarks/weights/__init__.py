"""Weight versions into engines: bytes, seconds, and the pause of streams that are under way."""
