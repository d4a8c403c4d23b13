"""The parts of a rollout: attempts, chat messages, prompts. Pure."""
