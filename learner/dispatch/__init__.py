"""Training tasks onto the bus, within the staleness bound."""
