"""Code that runs in the agent's interpreter; it imports nothing of ours."""
