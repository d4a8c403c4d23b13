"""Check that the learner computes a model right, before the first step."""
