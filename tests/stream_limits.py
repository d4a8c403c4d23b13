"""A stream with less room than it is shipped with."""

from nats.js.api import StreamConfig

from lightningbus.bus.client import Bus
from lightningbus.bus.streams.specs import STREAMS


async def limit(bus: Bus, stream: str, messages: int | None) -> None:
    """Let a stream hold so many messages; None: as many as it is shipped with."""
    shipped = next(config for config in STREAMS if config.name == stream)
    await bus.js.update_stream(StreamConfig(**{**vars(shipped), "max_msgs": messages or shipped.max_msgs}))
