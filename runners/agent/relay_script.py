"""Lets a program without a network reach the runner's gateway: Python 3.8 or newer, standard library only.

``python -I relay_script.py SOCKET HOST:PORT program ...``: listens there, hands every connection on to the Unix socket,
and becomes the program, which sees the address it was given. Meant for a network namespace, where nothing else is.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys

BYTES = 65536
BACKLOG = 1024


def main() -> None:
    path, address, command = sys.argv[1], sys.argv[2], sys.argv[3:]
    host, _, port = address.rpartition(":")
    listener = socket.create_server((host, int(port)), backlog=BACKLOG)
    between = os.fork()
    if between == 0:  # twice, or the program would have a child that it does not know
        if os.fork() == 0:
            serve(listener, path)
        os._exit(0)
    os.waitpid(between, 0)
    listener.close()
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"{command[0]} cannot be started: {error.strerror}")


def serve(listener: socket.socket, path: str) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):  # the program's own: whoever reads them must hear when it ends
        os.dup2(nothing, standard)
    try:
        asyncio.run(accept(listener, path))
    finally:
        os._exit(1)


async def accept(listener: socket.socket, path: str) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there_reader, there_writer = await asyncio.open_unix_connection(path)
        except OSError:
            writer.close()
            return
        await asyncio.gather(forward(reader, there_writer), forward(there_reader, writer))
        for side in (writer, there_writer):
            side.close()

    server = await asyncio.start_server(connected, sock=listener, backlog=BACKLOG)
    async with server:
        await server.serve_forever()


async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            data = await reader.read(BYTES)
            if not data:
                break
            writer.write(data)
            await writer.drain()
        with contextlib.suppress(OSError):
            writer.write_eof()
    except OSError:  # one side is gone, and so the other has nobody to talk to
        writer.close()


if __name__ == "__main__":
    main()
