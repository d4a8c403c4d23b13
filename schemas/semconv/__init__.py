"""The meaning of spans, by the attribute names of OpenTelemetry, of other instrumentations and of ours. Pure."""
