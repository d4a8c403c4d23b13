"""Weight versions out of a run, as model directories."""
