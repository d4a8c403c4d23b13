"""A nats-server as a child process."""
