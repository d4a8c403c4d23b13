"""Works inside a container for a runner: Python 3.8 or newer, standard library only.

It runs programs, moves files and hands the agent's calls on, all as frames on its standard input and output. It is sent
to the container's interpreter first, with `guest_files`. When its input ends, all that it started ends.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
from typing import Any

from lightningbus.runners.workspaces.containers.guest_files import CHUNK, DATA, pack_files, replace_files

HEADER = struct.Struct(">cII")
"""Kind of a frame, its channel, and the length of what follows."""
MAX_FRAME = 4 * 1024 * 1024
ALIVE, RUN, UNPACK, PACK, KILL, END, CLOSE = b"k", b"r", b"u", b"p", b"x", b"e", b"z"
READY, BEGUN, ERRORS, STATUS, CONNECT = b"h", b"b", b"E", b"s", b"c"
MARK = "lightningbus-workspace"
"""A word of the command of a container's first process."""
DRAIN_SECONDS = 1.0
FIRST_CONNECTION = 1 << 31
MAX_RESULT_BYTES = 1024 * 1024
PR_SET_DUMPABLE = 4
RESULT_VARIABLE = "RESULT_FILE"
OOM_FILES = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")


class Connection:
    """A connection of the agent; ``ended`` once the runner has no more for it."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.ended = asyncio.Event()

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    def write_eof(self) -> None:
        self.writer.write_eof()
        self.ended.set()

    def close(self) -> None:
        self.writer.close()
        self.ended.set()


class Server:
    """The serving process: a task for each program, file transfer and connection."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.sending = asyncio.Lock()
        self.is_container = is_container()
        self.inputs: dict[int, Any] = {}
        """Receiver of each channel's data: a pipe to a program or an unpacking thread, or a connection."""
        self.listener: Any = None
        self.next_connection = FIRST_CONNECTION
        self.tasks: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        reader = asyncio.StreamReader(limit=MAX_FRAME)
        await self.loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
        await self.send_json(READY, 0, {"directory": os.getcwd()})
        while True:
            kind, channel, length = HEADER.unpack(await reader.readexactly(HEADER.size))
            payload = await reader.readexactly(length)
            if self.is_container:
                os.kill(1, signal.SIGUSR1)
            if kind in (RUN, UNPACK, PACK, KILL):
                work = {RUN: self.run, UNPACK: self.unpack, PACK: self.pack, KILL: self.kill}[kind]
                task = self.loop.create_task(self.guard(channel, work(channel, json.loads(payload or b"{}"))))
                self.tasks.add(task)
                task.add_done_callback(self.tasks.discard)
                await asyncio.sleep(0)  # it is there before its data comes
            elif kind in (DATA, END, CLOSE):
                self.forward(kind, channel, payload)

    def forward(self, kind: bytes, channel: int, payload: bytes) -> None:
        """Write to a program, a thread or a connection; what is gone hears nothing."""
        writer = self.inputs.get(channel)
        with contextlib.suppress(OSError, RuntimeError):
            if writer is None:
                pass
            elif kind == DATA:
                writer.write(payload)
            elif kind == END and hasattr(writer, "write_eof"):
                writer.write_eof()
            else:
                writer.close()

    async def guard(self, channel: int, work: Any) -> None:
        try:
            await work
        except Exception as error:
            await self.send_json(STATUS, channel, {"error": f"{type(error).__name__}: {error}"})

    async def send(self, kind: bytes, channel: int, payload: bytes = b"") -> None:
        async with self.sending:
            await self.loop.run_in_executor(None, write_all, HEADER.pack(kind, channel, len(payload)) + payload)

    async def send_json(self, kind: bytes, channel: int, value: Any) -> None:
        await self.send(kind, channel, json.dumps(value).encode())

    async def run(self, channel: int, order: Any) -> None:
        """Run a program to its end, with all that it prints."""
        if order["listen"] and self.listener is None:
            host, port = order["listen"]
            self.listener = await asyncio.start_server(self.connected, host, port)
        environment = {**os.environ, **order["environment"]}
        scratch = tempfile.mkdtemp()
        result = os.path.join(scratch, "result")
        if order["wants_result"]:
            environment[RESULT_VARIABLE] = result
        num_killed = count_oom_kills()
        try:
            program = subprocess.Popen(
                order["command"], cwd=order["directory"], env=environment, start_new_session=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                preexec_fn=lambda: limit(order["limits"]),
            )  # fmt: skip
        except OSError as error:
            reason = f"{order['command'][0]} cannot be started: {error.strerror or error}"
            await self.send_json(STATUS, channel, {"error": reason})
            return
        self.inputs[channel], _ = await self.loop.connect_write_pipe(asyncio.BaseProtocol, program.stdin)
        await self.send(BEGUN, channel)
        pumps = [
            self.loop.create_task(self.pump(pipe, kind, channel))
            for pipe, kind in ((program.stdout, DATA), (program.stderr, ERRORS))
        ]
        status = await self.loop.run_in_executor(None, program.wait)
        await asyncio.wait(pumps, timeout=DRAIN_SECONDS)
        for pump in pumps:
            pump.cancel()
        self.inputs.pop(channel).close()
        written = read_result(result) if order["wants_result"] else None
        shutil.rmtree(scratch, ignore_errors=True)
        end = {"status": status, "out_of_memory": count_oom_kills() > num_killed}
        await self.send_json(STATUS, channel, {**end, "result": written and base64.b64encode(written).decode()})

    async def pump(self, pipe: Any, kind: bytes, channel: int) -> None:
        reader = asyncio.StreamReader()
        transport, _ = await self.loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        try:
            while True:
                data = await reader.read(CHUNK)
                if not data:
                    break
                await self.send(kind, channel, data)
        finally:
            transport.close()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Hand a connection of the agent on to the runner."""
        channel = self.next_connection
        self.next_connection += 1
        connection = self.inputs[channel] = Connection(writer)
        try:
            await self.send(CONNECT, channel)
            while True:
                data = await reader.read(CHUNK)
                if not data:
                    break
                await self.send(DATA, channel, data)
            await self.send(END, channel)
            await connection.ended.wait()
        except OSError:
            pass
        finally:
            writer.close()
            del self.inputs[channel]
            await self.send(CLOSE, channel)

    async def unpack(self, channel: int, order: Any) -> None:
        """Unpack what comes on a channel over the files of a directory."""
        reading, writing = os.pipe()
        self.inputs[channel] = open(writing, "wb", buffering=0)  # noqa: SIM115
        try:
            since_ns = await self.loop.run_in_executor(
                None, replace_files, reading, order["directory"], order["removed"]
            )
        finally:
            self.inputs.pop(channel).close()
        await self.send_json(STATUS, channel, {"since_ns": since_ns})

    async def pack(self, channel: int, order: Any) -> None:
        """Send the files of a directory that changed, and the paths of all."""

        def emit(kind: bytes, data: bytes) -> None:
            asyncio.run_coroutine_threadsafe(self.send(kind, channel, data), self.loop).result()

        await self.loop.run_in_executor(None, pack_files, order["directory"], order["since_ns"], emit)
        await self.send_json(STATUS, channel, {})

    async def kill(self, channel: int, order: Any) -> None:
        """End all processes but this one and the first."""
        if self.is_container:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
        await self.send_json(STATUS, channel, {})


def is_container() -> bool:
    """Return whether the first process here is ours: else the other processes are not ours to end."""
    with open("/proc/1/cmdline", "rb") as file:
        return MARK.encode() in file.read().split(b"\0")


def write_all(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def limit(limits: dict[str, int]) -> None:
    """Set limits of a program, by their names in the module ``resource``."""
    os.umask(0o077)
    for name, value in limits.items():
        which = getattr(resource, name)
        hard = resource.getrlimit(which)[1]
        most = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (most, most))


def count_oom_kills() -> int:
    """Count the processes of this container that the kernel ended for their memory."""
    for name in OOM_FILES:
        with contextlib.suppress(OSError, ValueError), open(name, encoding="ascii") as file:
            return sum(int(line.split()[1]) for line in file if line.startswith("oom_kill "))
    return 0


def read_result(path: str) -> bytes | None:
    """Read a grader's result; None without one."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with open(handle, "rb") as file:
        return file.read(MAX_RESULT_BYTES + 1)


def main() -> None:
    with contextlib.suppress(Exception):  # no program of the same user reads or writes our pipes
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0)

    async def serve() -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            await Server().serve()

    try:
        asyncio.run(serve())
    finally:
        if is_container():
            with contextlib.suppress(OSError):
                os.kill(-1, signal.SIGKILL)
            with contextlib.suppress(OSError):
                os.kill(1, signal.SIGUSR2)
        os._exit(0)


if __name__ == "__main__":
    main()
