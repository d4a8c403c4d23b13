"""JetStream as this project uses it: publish with deadlines, pull by free slots, leases, blobs, heartbeats."""

from bus.access import Access
from bus.connection import DEFAULT_URL, Bus
from bus.dead import DeadLetters
from bus.delivery import Delivery
from bus.errors import (
    AccessError,
    AddressError,
    BlobCorrupt,
    BusError,
    DuplicateMessage,
    Fenced,
    PoisonFlood,
    PublishTimeout,
    StreamFull,
)
from bus.fleet import Fleet, Pulse, own_id
from bus.leases import Lease, leased
from bus.poison import PoisonLimit
from bus.puller import Puller
from bus.streams import (
    LEARNER_ROLLOUTS,
    STORE_CONSUMERS,
    STORE_DEAD,
    STORE_EVAL,
    STORE_EVENTS,
    STORE_TRAIN,
    STORE_WEIGHTS,
    Consumer,
    runner_tasks,
)

__all__ = [
    "DEFAULT_URL",
    "LEARNER_ROLLOUTS",
    "STORE_CONSUMERS",
    "STORE_DEAD",
    "STORE_EVAL",
    "STORE_EVENTS",
    "STORE_TRAIN",
    "STORE_WEIGHTS",
    "Access",
    "AccessError",
    "AddressError",
    "BlobCorrupt",
    "Bus",
    "BusError",
    "Consumer",
    "DeadLetters",
    "Delivery",
    "DuplicateMessage",
    "Fenced",
    "Fleet",
    "Lease",
    "PoisonFlood",
    "PoisonLimit",
    "PublishTimeout",
    "Puller",
    "Pulse",
    "StreamFull",
    "leased",
    "own_id",
    "runner_tasks",
]
