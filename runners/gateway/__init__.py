"""The HTTP endpoint an agent talks to, and the inference nodes behind it."""
