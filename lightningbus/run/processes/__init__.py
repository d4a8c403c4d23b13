"""The roles of a run as processes: started, supervised and stopped."""
