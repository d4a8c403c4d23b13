"""vLLM as a child process, and what runs inside it."""
