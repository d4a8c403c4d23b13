"""Which spans of a rollout its agent reported: by instrumentation, or by POST /events."""

AGENT_SPANS = "(NOT startsWith(scope, 'lightningbus') OR scope = 'lightningbus.events')"
"""As a condition on rows of the view ``spans``; the other scopes of that prefix are our own records."""
