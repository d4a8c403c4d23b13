"""Checkpoints: written whole, sealed, and resumed from."""
