"""Which weight version a node serves, and how it gets there."""
