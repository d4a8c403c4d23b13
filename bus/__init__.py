"""JetStream as this project uses it: publish with deadlines, pull by free slots, leases, blobs, heartbeats."""

from bus.connection import DEFAULT_URL, Bus
from bus.delivery import Delivery
from bus.errors import BlobCorrupt, BusError, Fenced, PublishTimeout, StreamFull
from bus.fleet import Fleet, Pulse
from bus.puller import Puller
from bus.streams import (
    LEARNER_SPANS,
    STORE_DEAD,
    STORE_SPANS,
    STORE_WEIGHTS,
    Consumer,
    runner_tasks,
)

__all__ = [
    "DEFAULT_URL",
    "LEARNER_SPANS",
    "STORE_DEAD",
    "STORE_SPANS",
    "STORE_WEIGHTS",
    "BlobCorrupt",
    "Bus",
    "BusError",
    "Consumer",
    "Delivery",
    "Fenced",
    "Fleet",
    "PublishTimeout",
    "Puller",
    "Pulse",
    "StreamFull",
    "runner_tasks",
]
