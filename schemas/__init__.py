"""The wire: events, their codec, their names. Imports nothing of ours."""
