"""What the two gateways between an agent and its engine add to a model call."""
