"""The front door: command line, settings, supervisor, demo. The one package that knows all rooms."""
