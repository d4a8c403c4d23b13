"""A run's directory, and the servers of the run that it names."""
