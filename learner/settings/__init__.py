"""Settings of the learner."""
