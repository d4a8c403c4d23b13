"""nats-py's client, which does not wait for a server that is gone to say goodbye."""

from typing import Any

from nats.aio.client import Client as NatsClient


class Client(NatsClient):
    """Reconnects at once: what is left of a dead connection is thrown away.

    nats-py closes it first and waits for the end of that: over TLS 30 s for the other side's word, and with words of
    our own that cannot be sent until the kernel gives up, which takes a quarter of an hour.
    """

    async def _attempt_reconnect(self) -> None:
        writer: Any = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            writer.transport.abort()
        await super()._attempt_reconnect()
