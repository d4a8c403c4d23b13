"""Tasks out to the bus, rollouts in from it, and their groups."""
