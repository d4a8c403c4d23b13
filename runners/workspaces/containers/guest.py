"""The runner's side of a container: programs, files and connections, as frames between here and the script inside."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from lightningbus.common.aio import cancel_and_wait
from lightningbus.runners.workspaces.containers import guest_files
from lightningbus.runners.workspaces.containers import guest_script as wire
from lightningbus.runners.workspaces.containers.guest_files import CHUNK, DATA, LISTING
from lightningbus.runners.workspaces.errors import WorkspaceFailedError

FILES = f"import sys, types\nmodule = sys.modules[{guest_files.__name__!r}] = types.ModuleType('guest_files')\n"
FILES += f"exec({Path(guest_files.__file__).read_text(encoding='utf-8')!r}, module.__dict__)\n"
SCRIPT = f"{FILES}exec({Path(wire.__file__).read_text(encoding='utf-8')!r})".encode()
"""Both scripts, as one that knows no package."""
HOLD = Path(wire.__file__).with_name("hold_script.py").read_text(encoding="utf-8")
ALIVE_SECONDS = 10.0
"""Between two signs of life: the container ends without them."""
READY_SECONDS = 60.0
KILL_SECONDS = 30.0
MAX_CONNECTIONS = 1024
"""Connections of one agent that are open at once."""
SERVE = "import os;r=lambda n,s=b'':s if len(s)==n else r(n,s+os.read(0,n-len(s)));exec(r(int(r(8))))"
"""Reads a script from standard input, not more and not less, and runs it."""


def hold_command(python: str, seconds: float) -> list[str]:
    """Build the command of a container's first process."""
    return [python, "-I", "-c", HOLD, wire.MARK, str(seconds)]


def serve_command(python: str) -> list[str]:
    """Build the command of the process that a guest talks to."""
    return [python, "-I", "-c", SERVE]


class GuestStream(Protocol):
    """The standard input and output of a process in a container."""

    async def read(self) -> bytes:
        """Read some of its output, nothing at its end; raises OSError."""

    async def write(self, data: bytes) -> None:
        """Write to its input; raises OSError."""

    async def close(self) -> None:
        """Close it, and with it what runs inside."""


class GuestLostError(WorkspaceFailedError):
    """The connection to a container has ended; the message is a sentence."""


@dataclass
class Channel:
    """Frames about one program or transfer; ``ended`` has the last, or the reason why there is none."""

    ended: "asyncio.Future[dict[str, Any]]"
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    output: "asyncio.Queue[tuple[bytes, bytes]]" = field(default_factory=lambda: asyncio.Queue(64))
    """Data by their kind; its bound holds up the container when nobody reads."""


class Guest:
    """A process in a container that obeys; an async context manager."""

    def __init__(self, stream: GuestStream, gateway: str) -> None:
        """Prepare; connections of the agent go to the Unix socket ``gateway``."""
        self._stream, self._gateway = stream, gateway
        self._ready: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._channels: dict[int, Channel] = {}
        self._connections: dict[int, asyncio.StreamWriter] = {}
        self._num_channels = 0
        self._sending = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self.directory = ""
        """The working directory of its image."""

    async def __aenter__(self) -> "Guest":
        """Wait until it answers; raise `GuestLostError`."""
        self._listening = asyncio.create_task(self._listen())
        self._living = asyncio.create_task(self._live())
        try:
            async with asyncio.timeout(READY_SECONDS):
                self.directory = str((await self._ready).get("directory", "/"))
        except TimeoutError:
            await self.__aexit__()
            raise GuestLostError(f"the container did not answer in {READY_SECONDS:g} s") from None
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the stream and all connections."""
        await cancel_and_wait(self._listening, self._living, *self._tasks)
        await self._stream.close()
        self._lose("it was closed")

    @property
    def is_lost(self) -> bool:
        """Whether it will never answer again."""
        return self._listening.done()

    async def start(self, order: dict[str, Any]) -> tuple[int, Channel]:
        """Start a program; return its channel once it runs.

        Raises `GuestLostError`; a program that cannot be started ends with an ``error``.
        """
        number, channel = await self._order(wire.RUN, order)
        begun = asyncio.create_task(channel.begun.wait())
        try:
            await wait_for_either(begun, channel.ended)
        finally:
            begun.cancel()
        return number, channel

    async def unpack(self, directory: str, tar: AsyncIterator[bytes], removed: Sequence[str] = ()) -> int:
        """Unpack a tar over a directory; return the kernel's time then. Raises `WorkspaceFailedError`."""
        number, channel = await self._order(wire.UNPACK, {"directory": directory, "removed": list(removed)})
        async for data in tar:
            if channel.ended.done():
                break
            await self.send(DATA, number, data)
        await self.send(wire.END, number)
        end = await self._end(number, channel)
        if error := end.get("error"):
            raise WorkspaceFailedError(f"files cannot be copied to {directory} of the container: {error}")
        return int(end["since_ns"])

    async def pack(self, directory: str, since_ns: int) -> AsyncGenerator[tuple[bytes, bytes]]:
        """Yield what changed in a directory: pieces of a tar as DATA, and of all paths as LISTING."""
        number, channel = await self._order(wire.PACK, {"directory": directory, "since_ns": since_ns})
        while not (channel.ended.done() and channel.output.empty()):
            async for piece in self.output(channel):
                yield piece
        if error := (await self._end(number, channel)).get("error"):
            raise WorkspaceFailedError(f"files cannot be copied from {directory} of the container: {error}")

    async def kill(self) -> None:
        """End all that was started inside; raise `GuestLostError`."""
        for connection in list(self._connections.values()):
            connection.close()
        number, channel = await self._order(wire.KILL, {})
        try:
            async with asyncio.timeout(KILL_SECONDS):
                await self._end(number, channel)
        except TimeoutError:
            self._listening.cancel()
            raise GuestLostError(f"the container did not end its processes in {KILL_SECONDS:g} s") from None

    async def send(self, kind: bytes, channel: int, payload: bytes = b"") -> None:
        """Send a frame; raise `GuestLostError`."""
        try:
            async with self._sending:
                await self._stream.write(wire.HEADER.pack(kind, channel, len(payload)) + payload)
        except OSError as error:
            raise GuestLostError(f"the container cannot be reached: {error}") from error

    async def output(self, channel: Channel) -> AsyncIterator[tuple[bytes, bytes]]:
        """Yield what a channel has, after waiting for the next of it or for its end."""
        get = asyncio.create_task(channel.output.get())
        await wait_for_either(get, channel.ended)
        if get.done():
            yield get.result()
        else:
            get.cancel()

    def forget(self, number: int) -> None:
        """Let go of a channel."""
        self._channels.pop(number, None)

    async def _order(self, kind: bytes, order: dict[str, Any]) -> tuple[int, Channel]:
        if self.is_lost:
            raise GuestLostError("the container is gone")
        self._num_channels += 1
        channel = self._channels[self._num_channels] = Channel(asyncio.get_running_loop().create_future())
        await self.send(kind, self._num_channels, json.dumps(order).encode())
        return self._num_channels, channel

    async def _end(self, number: int, channel: Channel) -> dict[str, Any]:
        try:
            return await channel.ended
        finally:
            self.forget(number)

    async def _live(self) -> None:
        """Send the script, then signs of life; what fails is heard by the listener too."""
        with contextlib.suppress(OSError, GuestLostError):
            await self._stream.write(b"%08d" % len(SCRIPT) + SCRIPT)
            while True:
                await asyncio.sleep(ALIVE_SECONDS)
                await self.send(wire.ALIVE, 0)

    async def _listen(self) -> None:
        reason = "its process ended"
        try:
            buffer = bytearray()
            while data := await self._stream.read():
                buffer += data
                while len(buffer) >= wire.HEADER.size:
                    kind, channel, length = wire.HEADER.unpack_from(buffer)
                    if length > wire.MAX_FRAME:
                        raise ValueError("a frame is too long")
                    end = wire.HEADER.size + length
                    if len(buffer) < end:
                        break
                    payload = bytes(buffer[wire.HEADER.size : end])
                    del buffer[:end]
                    await self._receive(kind, channel, payload)
        except (OSError, ValueError, RecursionError) as error:
            reason = str(error) or type(error).__name__
        finally:
            self._lose(reason)

    async def _receive(self, kind: bytes, number: int, payload: bytes) -> None:
        channel = self._channels.get(number)
        if kind == wire.READY and not self._ready.done():
            self._ready.set_result(_parse(payload))
        elif kind == wire.CONNECT:
            if number < wire.FIRST_CONNECTION or len(self._connections) >= MAX_CONNECTIONS:
                await self.send(wire.CLOSE, number)
                return
            await self._connect(number)
        elif number in self._connections:
            await self._forward(kind, self._connections[number], payload)
        elif channel is None:
            return  # of a program that nobody asks for any more
        elif kind == wire.BEGUN:
            channel.begun.set()
        elif kind == wire.STATUS and not channel.ended.done():
            channel.ended.set_result(_parse(payload))
        elif kind in (DATA, wire.ERRORS, LISTING):
            putting = asyncio.create_task(channel.output.put((kind, payload)))
            await wait_for_either(putting, channel.ended)
            putting.cancel()

    async def _connect(self, number: int) -> None:
        try:
            reader, writer = await asyncio.open_unix_connection(self._gateway)
        except OSError:
            await self.send(wire.CLOSE, number)
            return
        self._connections[number] = writer
        task = asyncio.create_task(self._answer(number, reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _forward(self, kind: bytes, writer: asyncio.StreamWriter, payload: bytes) -> None:
        with contextlib.suppress(OSError, RuntimeError):
            if kind == DATA:
                writer.write(payload)
                await writer.drain()
            elif kind == wire.END:
                writer.write_eof()
            elif kind == wire.CLOSE:
                writer.close()

    async def _answer(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Hand on what the gateway answers."""
        try:
            with contextlib.suppress(OSError):
                while data := await reader.read(CHUNK):
                    await self.send(DATA, number, data)
            await self.send(wire.END, number)
        except GuestLostError:
            pass
        finally:
            writer.close()
            self._connections.pop(number, None)

    def _lose(self, reason: str) -> None:
        """Tell everybody who waits that nothing will come."""
        error = GuestLostError(f"the connection to the container has ended: {reason}")
        for future in (self._ready, *(channel.ended for channel in self._channels.values())):
            if not future.done():
                future.set_exception(error)
                future.exception()  # whoever waits still gets it
        for connection in list(self._connections.values()):
            connection.close()


async def wait_for_either(work: "asyncio.Future[Any]", other: "asyncio.Future[Any]") -> None:
    """Wait until one of two has ended."""
    await asyncio.wait({work, other}, return_when=asyncio.FIRST_COMPLETED)


def _parse(payload: bytes) -> dict[str, Any]:
    value: Any = json.loads(payload)
    if not isinstance(value, dict):
        raise ValueError("a frame has no object")
    return value
