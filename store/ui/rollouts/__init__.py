"""Pages about rollouts."""
