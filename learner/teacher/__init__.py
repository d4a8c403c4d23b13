"""On-policy distillation: a teacher scores the tokens of rollouts."""
