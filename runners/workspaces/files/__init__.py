"""Files of workspaces: fetched from their sources, copied for each rollout, and compared with what they were."""
