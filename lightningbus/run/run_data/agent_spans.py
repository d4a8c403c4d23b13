"""Spans of a rollout that its agent reported: by instrumentation, or by POST /events."""

AGENT_SPANS = "(NOT startsWith(scope, 'lightningbus') OR scope = 'lightningbus.events')"
"""Condition on rows of the view ``spans``; the other scopes of that prefix are our own records."""
