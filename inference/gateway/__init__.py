"""The HTTP proxy in front of vLLM."""
