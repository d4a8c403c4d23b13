"""Tiny models of many families, and how learner and engine compute them."""
