"""Settings of a run: the run file, and the sources of each role's values."""
