"""Inference nodes: vLLM under supervision, weights swapped in while requests are in flight, versions on every token."""
