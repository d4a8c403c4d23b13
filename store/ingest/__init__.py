"""Events off the bus into tables."""
