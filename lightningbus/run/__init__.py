"""Starting and supervising roles, and whole training runs."""
