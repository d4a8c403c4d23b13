"""The progress of a run, on a terminal and in a notebook."""
