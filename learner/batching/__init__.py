"""Rollout groups into the batch of one training step. Pure."""
