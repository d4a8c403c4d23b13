"""The store workloads of Agent Lightning 0.3, end to end: tasks published, spans emitted, every span read back."""
