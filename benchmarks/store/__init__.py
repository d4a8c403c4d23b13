"""Spans into the store, their size there, and pages made of them."""
