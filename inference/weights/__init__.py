"""Choice of the weight version that a node serves, and the way to it."""
