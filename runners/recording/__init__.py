"""What is recorded of an attempt: spans, rewards, usage."""
