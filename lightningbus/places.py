"""Where the bus is, when nobody says so."""

import os

from bus import DEFAULT_URL
from lightningbus.rundir import RunDirectory

BUS_VARIABLE = "LIGHTNINGBUS_BUS"


def bus_url(given: str | None) -> str:
    """What was given, else the environment's, else the latest run's if it is up, else the standard port."""
    if given or os.environ.get(BUS_VARIABLE):
        return given or os.environ[BUS_VARIABLE]
    run = RunDirectory.latest()
    endpoints = run.endpoints() if run is not None else None
    return endpoints.bus if endpoints is not None else DEFAULT_URL
