"""Model calls answered by inference nodes."""
