"""nats-py's client as a role needs it: a lost connection is left at once, with today's keys, never in the clear."""

from collections.abc import Callable
from typing import Any

from nats.aio.client import Client as NatsClient
from nats.errors import AuthorizationError
from nats.errors import Error as NatsError

AUTH_ERRORS = ("authorization violation", "authentication")
"""Beginnings of the server's errors, lower-cased by nats-py, about a user or account that it no longer knows."""


class PlaintextServerError(NatsError):
    """A server that should speak TLS does not."""


class FastReconnectClient(NatsClient):
    """Reconnects at once by dropping the remains of a dead connection.

    nats-py closes it first and waits for that: over TLS 30 s for the peer's close, and with unsent data until the
    kernel gives up, which takes a quarter of an hour. ``credentials`` gives the arguments of ``connect`` that identify
    us, from files that may have changed; they are read before each connection. ``must_encrypt``: send nothing to a
    server without TLS.
    """

    def __init__(self, credentials: Callable[[], dict[str, Any]] = dict, must_encrypt: bool = False) -> None:
        super().__init__()
        self._credentials = credentials
        self._must_encrypt = must_encrypt

    @property
    def peer_certificate(self) -> dict[str, Any] | None:
        """The server's certificate in the form of ``SSLObject.getpeercert``; None without TLS."""
        writer: Any = getattr(self._transport, "_io_writer", None)
        encrypted = writer.get_extra_info("ssl_object") if writer is not None else None
        return encrypted.getpeercert() if encrypted is not None else None

    async def _attempt_reconnect(self) -> None:
        writer: Any = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            writer.transport.abort()
        await super()._attempt_reconnect()

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        writer: Any = getattr(self._transport, "_io_writer", None)
        if writer is not None and writer.transport.is_closing():  # nats-py would write to it, which uvloop refuses
            self._pending, self._pending_data_size = [], 0
        await super()._close(status, do_cbs)

    async def _connect_to_server(self, s: Any) -> None:
        options = self._credentials()
        if "tls" in options:
            self.options["tls"] = options["tls"]
        if "nkeys_seed" in options or "user_credentials" in options:
            self._setup_nkeys_connect()  # reads the file, whose path has not changed
        await super()._connect_to_server(s)

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        encrypted = self.options["tls_handshake_first"] or info.get("tls_required")
        if self._must_encrypt and initial_connection and not encrypted:
            raise PlaintextServerError
        await super()._process_info(info, initial_connection)

    async def _process_err(self, err_msg: str) -> None:
        # nats-py would close for good. The key file may have been rotated, so reconnect: a wrong key fails at once.
        if err_msg.strip("'").startswith(AUTH_ERRORS):
            await self._process_op_err(AuthorizationError())
        else:
            await super()._process_err(err_msg)
