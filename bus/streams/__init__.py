"""Streams and consumers: declared, made, and kept up."""
