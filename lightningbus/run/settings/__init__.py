"""Settings of a run: the run file, and where the values of a role come from."""
