"""Answers of engines and endpoints as data. Pure."""
