"""Workspaces in containers: an engine starts them, and a script inside runs programs, moves files and relays calls."""
