"""The learner: rollouts into transitions, transitions into a new weight version, by verl."""
