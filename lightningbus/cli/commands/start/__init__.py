"""Commands of a first day."""
