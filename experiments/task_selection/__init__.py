"""Tokens to the same accuracy where most tasks are hopeless or trivial, by the choice of tasks."""
