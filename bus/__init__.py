"""NATS JetStream: publish with deadlines, pull by free slots, leases, dead letters, large objects."""
