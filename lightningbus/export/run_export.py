"""A weight version of a run by name, as a model directory: what commands and the Python API share."""

from lightningbus.export.model_directory import ExportRequest, export_version
from lightningbus.run.run_data.run_bus import WEIGHT_STREAMS, open_run_bus
from lightningbus.schemas.weights.events import WeightManifest


async def export_run(
    request: ExportRequest, run: str | None = None, bus: str | None = None, name: str = "weights export"
) -> WeightManifest:
    """Write the model directory of a version of a run that is up or has ended; returns the version's manifest.

    ``run``: its name or directory; None: the run at the address ``bus``, else the latest. ``name`` is that of the
    connection. Raises `UserError`, `lightningbus.bus.BusError`.
    """
    async with open_run_bus(bus, run, name, "inference", WEIGHT_STREAMS) as source:  # that role may do little else
        return await export_version(source, request)
