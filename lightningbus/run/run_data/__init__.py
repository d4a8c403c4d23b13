"""The data of a run, wherever it is: its store while it runs, then its files."""
