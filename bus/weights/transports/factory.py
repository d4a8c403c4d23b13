"""The transport that a manifest or the settings name."""

from pathlib import Path
from typing import TYPE_CHECKING

from lightningbus.bus.errors import BusError
from lightningbus.bus.weights.transports.base import Transport
from lightningbus.bus.weights.transports.directory import DirectoryTransport
from lightningbus.common.missing_modules import describe_missing_module
from lightningbus.schemas.weights.events import TransportName

if TYPE_CHECKING:
    from lightningbus.bus.client import Bus


def open_transport(bus: "Bus", kind: TransportName, location: str) -> Transport:
    """Open the transport that a manifest or the settings name; raise `BusError` where it cannot be used here."""
    if kind == "file":
        return DirectoryTransport(Path(location))
    if kind == "s3":
        try:
            from lightningbus.bus.weights.transports.s3 import S3Transport
        except ModuleNotFoundError as error:
            raise BusError(f"transport s3 cannot be used: {describe_missing_module(error.name, 's3')}") from error
        return S3Transport(location)
    return bus.object_store
