"""The number of rollouts that a runner runs at once, where its settings give none: measured, decided, applied."""
