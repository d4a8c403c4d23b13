"""Weight versions from the trainer to the nodes."""
