"""Sessions of the Python API: tasks published, results read."""
