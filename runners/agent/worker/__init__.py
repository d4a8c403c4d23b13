"""What runs in the agent's interpreter: nothing of ours is imported there."""
