"""Request bodies, raw and decompressed, never longer than a limit."""

import zlib
from typing import Any

from aiohttp import web

ENCODINGS = ("gzip", "deflate", "zstd", "lz4")


class BodyTooLargeError(ValueError):
    """The body is longer than the limit, before or after decompression."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"a body of more than {max_bytes} bytes is refused")


async def read_body(request: web.Request, max_bytes: int) -> bytes:
    """Read the body of a request, decompressed by its Content-Encoding.

    Raises `BodyTooLargeError` as soon as the body is known to be longer than ``max_bytes``, and ValueError, OSError or
    RuntimeError for a body that its encoding cannot decode.
    """
    if (request.content_length or 0) > max_bytes:
        raise BodyTooLargeError(max_bytes)
    body = bytearray()
    async for chunk in request.content.iter_any():
        body += chunk
        if len(body) > max_bytes:
            raise BodyTooLargeError(max_bytes)
    encoding = request.headers.get("Content-Encoding", "")
    return bytes(body) if encoding in ("", "identity") else decompress_body(bytes(body), encoding, max_bytes)


def decompress_body(body: bytes, encoding: str, max_bytes: int) -> bytes:
    """Undo an encoding; raises as `read_body`. Pure."""
    if encoding not in ENCODINGS:
        raise ValueError(f"Content-Encoding {encoding} is not known: there are {', '.join(ENCODINGS)}")
    decompressor = _new_decompressor(encoding)
    try:
        decompressed = bytes(decompressor.decompress(body, max_bytes + 1))
    except (zlib.error, EOFError) as error:
        raise ValueError(f"a body of {encoding} cannot be read: {error}") from error
    if len(decompressed) > max_bytes:
        raise BodyTooLargeError(max_bytes)
    if not decompressor.eof:
        raise ValueError(f"a body of {encoding} is cut off")
    return decompressed


def _new_decompressor(encoding: str) -> Any:
    if encoding == "lz4":
        import lz4.frame

        return lz4.frame.LZ4FrameDecompressor()
    if encoding == "zstd":
        from backports import zstd

        return zstd.ZstdDecompressor()
    return zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)  # gzip or zlib, by its first bytes
