"""The choice of the next training task, by the results of its earlier rollouts."""
