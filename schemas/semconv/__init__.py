"""What spans say, by the names of OpenTelemetry, of other instrumentations and of ours. Pure."""
