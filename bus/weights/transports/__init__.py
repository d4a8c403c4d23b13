"""How large files travel beside the events: over the bus, in a directory both sides see, or by S3.

The manifest of a file names transport and place, so a reader follows whatever the writer chose. A broadcast is no
transport: it keeps nothing that could be asked for by name, so it is beside these, in
`lightningbus.bus.weights.collective`.
"""
