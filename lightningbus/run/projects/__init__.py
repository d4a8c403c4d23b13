"""Directories written for a user: a first project, an environment."""
