"""``python -m benchmarks.workloads.sink``: an HTTP server that answers 200 to everything and keeps nothing."""

import asyncio

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 0\r\n\r\n"
END = b"\r\n\r\n"


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One connection, until it is closed."""
    try:
        while head := await reader.readuntil(END):
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(int(length.partition(b":")[2]))
            writer.write(ANSWER)
    except asyncio.IncompleteReadError:
        writer.close()


async def main() -> None:
    """Serve on a free port, whose URL is printed, until stopped."""
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    print(f"http://{host}:{port}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
