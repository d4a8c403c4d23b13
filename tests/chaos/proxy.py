"""A TCP proxy that can be slow, cut, half-open or rude: what a network does to two processes that talk."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable
from typing import Literal

from lightningbus.common.aio import cancel_and_wait

Fault = Literal["none", "delay", "cut", "half_open", "reset"]
DELAY_SECONDS = 0.2
LINGER_ZERO = struct.pack("ii", 1, 0)


class Proxy:
    """Forwards connections to wherever ``target`` says; set `fault` to have it misbehave from now on."""

    def __init__(self, target: Callable[[], tuple[str, int]]) -> None:
        self._target = target
        self._links: set[asyncio.StreamWriter] = set()
        self._moving: set[asyncio.Task[None]] = set()
        self._swallows = False
        self._delay = 0.0
        self._refuses = False
        self.port = 0

    async def __aenter__(self) -> "Proxy":
        self._server = await asyncio.start_server(self._link, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await cancel_and_wait(*self._moving)
        self.cut()

    def inject(self, fault: Fault) -> None:
        """Misbehave in one way until told ``none``; a reset, and a cut, is done at once to every open connection."""
        self._delay = DELAY_SECONDS if fault == "delay" else 0.0
        self._refuses = fault == "cut"
        if fault == "cut" or self._swallows:
            self.cut()
        self._swallows = fault == "half_open"  # connections stay, nothing comes through, and nobody is told
        if fault == "reset":
            for writer in self._links:
                with contextlib.suppress(OSError):
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_ZERO)
            self.cut()

    def cut(self) -> None:
        """Close every connection."""
        for writer in self._links:
            writer.transport.abort()
        self._links.clear()

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refuses:
            writer.transport.abort()
            return
        try:
            there_reader, there_writer = await asyncio.open_connection(*self._target())
        except OSError:
            writer.transport.abort()
            return
        self._links |= {writer, there_writer}
        for item, other in ((reader, there_writer), (there_reader, writer)):
            task = asyncio.create_task(self._move(item, other))
            self._moving.add(task)
            task.add_done_callback(self._moving.discard)

    async def _move(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if self._swallows:
                    continue
                if self._delay:
                    await asyncio.sleep(self._delay)  # the fault itself
                writer.write(data)
                await writer.drain()
        with contextlib.suppress(OSError):
            writer.close()
        self._links.discard(writer)
