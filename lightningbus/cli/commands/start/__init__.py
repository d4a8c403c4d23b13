"""Commands to get started."""
