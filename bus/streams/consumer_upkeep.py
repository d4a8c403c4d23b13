"""Recreates the durables of a process when the bus has lost them, or reports that they are missing."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from nats.errors import Error as NatsError
from nats.js.errors import NotFoundError

from lightningbus.bus.errors import BusError
from lightningbus.bus.streams.specs import ConsumerSpec, missing_stream_error

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
ABORT_SECONDS = 60.0
"""Seconds that an admin (`lightningbus up`, `provision`) has to create a missing stream or durable."""


class ConsumerUpkeep:
    """Keeps durables in place. A reader registers its own by `use`; call `check` when one may be gone.

    ``ensure`` makes a durable, or finds it as it should be; ``find`` raises `NotFoundError` where there is none.
    """

    def __init__(
        self, ensure: Callable[[ConsumerSpec], Awaitable[None]], find: Callable[[ConsumerSpec], Awaitable[object]]
    ) -> None:
        self._ensure, self._find = ensure, find
        self._owned: dict[tuple[str, str], ConsumerSpec] = {}
        self._used: list[ConsumerSpec] = []
        self._wake = asyncio.Event()
        self.problem = ""
        """Sentence about what is missing on the bus; empty: nothing."""

    def add_owned(self, consumer: ConsumerSpec) -> None:
        """Create the durable now, and again whenever it is missing."""
        self._owned[consumer.stream, consumer.durable] = consumer

    def remove_owned(self, consumer: ConsumerSpec) -> None:
        """Create the durable no more."""
        self._owned.pop((consumer.stream, consumer.durable), None)

    def use(self, consumer: ConsumerSpec) -> None:
        """Register this process as a reader of the durable until `release`."""
        self._used.append(consumer)

    def release(self, consumer: ConsumerSpec) -> None:
        """Unregister this process as a reader of the durable."""
        self._used.remove(consumer)

    def check(self) -> None:
        """Check the durables soon: the connection is new, or one of them does not answer."""
        self._wake.set()

    async def run(self) -> str:
        """Check for ever; return a sentence about a stream or durable that has been missing for a minute."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            deadline = asyncio.get_running_loop().time() + ABORT_SECONDS
            while sentence := await self._missing():
                if sentence != self.problem:
                    log.error("%s", sentence)
                self.problem = sentence
                if asyncio.get_running_loop().time() > deadline:
                    return sentence
                await asyncio.sleep(LOOK_SECONDS)
            if self.problem:
                log.warning("what was missing on the bus is there again")
            self.problem = ""

    async def _missing(self) -> str:
        for consumer in {(used.stream, used.durable): used for used in self._used}.values():
            try:
                if (consumer.stream, consumer.durable) in self._owned:
                    await self._ensure(self._owned[consumer.stream, consumer.durable])
                else:
                    await self._find(consumer)
            except NotFoundError:
                return missing_stream_error(f"{consumer.stream}, or its consumer {consumer.durable},")
            except BusError as error:
                return str(error)
            except NatsError:
                self._wake.set()  # the connection is lost again, or JetStream does not answer: look again after it
                await asyncio.sleep(LOOK_SECONDS)
        return ""
