"""Workspaces: a fresh copy of files for each rollout, in which an agent works and its work is graded."""
