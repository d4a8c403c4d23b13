"""Bodies of requests, as they come and inflated, never beyond a bound."""

import zlib
from typing import Any

from aiohttp import web

INFLATED = ("gzip", "deflate", "zstd", "lz4")


class TooLarge(ValueError):
    """The body, or what it inflates to, is beyond the bound."""

    def __init__(self, most: int) -> None:
        super().__init__(f"a body of more than {most} bytes is refused")


async def read(request: web.Request, most: int) -> bytes:
    """The body of a request, inflated as its Content-Encoding says.

    Raises `TooLarge` beyond ``most`` bytes, as soon as that is known, and ValueError, OSError or RuntimeError for a
    body that is not what it says.
    """
    if (request.content_length or 0) > most:
        raise TooLarge(most)
    body = bytearray()
    async for chunk in request.content.iter_any():
        body += chunk
        if len(body) > most:
            raise TooLarge(most)
    encoding = request.headers.get("Content-Encoding", "")
    return bytes(body) if encoding in ("", "identity") else inflate(bytes(body), encoding, most)


def inflate(body: bytes, encoding: str, most: int) -> bytes:
    """Undo an encoding; raises as `read`. Pure."""
    if encoding not in INFLATED:
        raise ValueError(f"Content-Encoding {encoding} is not known: there are {', '.join(INFLATED)}")
    decompressor = _decompressor(encoding)
    try:
        plain = bytes(decompressor.decompress(body, most + 1))
    except (zlib.error, EOFError) as error:
        raise ValueError(f"a body of {encoding} cannot be read: {error}") from error
    if len(plain) > most:
        raise TooLarge(most)
    if not decompressor.eof:
        raise ValueError(f"a body of {encoding} is cut off")
    return plain


def _decompressor(encoding: str) -> Any:
    if encoding == "lz4":
        import lz4.frame

        return lz4.frame.LZ4FrameDecompressor()
    if encoding == "zstd":
        from backports import zstd

        return zstd.ZstdDecompressor()
    return zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)  # gzip or zlib, by its first bytes
