"""The directory of a run, and the addresses of its servers."""
