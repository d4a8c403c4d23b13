"""Commands that manage a run."""
