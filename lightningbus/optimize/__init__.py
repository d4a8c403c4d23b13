"""Prompts of an agent made better from its rollouts, by GEPA."""
