"""Commands that show what happened."""
