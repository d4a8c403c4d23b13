"""One training step by the learner, by verl's engine and by a plain loop, on the same batch and model."""
