"""Transfer of large files beside the events: over the bus, in a shared directory, or by S3.

The manifest of a file names transport and place, so a reader follows the writer's choice. A broadcast is no transport:
it stores nothing that could be fetched by name, so it is in `lightningbus.bus.weights.collective`.
"""
