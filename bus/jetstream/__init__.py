"""NATS and JetStream as the client needs them: connection, publishing, pulling, objects."""
