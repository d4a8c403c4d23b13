"""A web page over the store: runs, a run, a rollout. It only reads."""
