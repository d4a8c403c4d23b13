"""Writes the parts of the pages that follow from the code: commands, settings, events, metrics, alert rules."""
