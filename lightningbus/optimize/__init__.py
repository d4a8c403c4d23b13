"""Improves an agent's prompts from its rollouts, by GEPA."""
