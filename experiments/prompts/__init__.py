"""Prompts optimised, and prompts and weights trained in turns."""
