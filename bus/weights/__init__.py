"""Weight versions on the bus: manifests, decisions, and how their bytes travel."""
