"""Record of an attempt: spans, rewards, usage."""
