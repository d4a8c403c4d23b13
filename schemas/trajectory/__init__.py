"""What a rollout is made of: attempts, chat messages, prompts. Pure."""
