"""One optimizer step by verl."""
