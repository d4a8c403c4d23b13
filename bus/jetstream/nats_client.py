"""nats-py's client as a role needs it: a lost connection is left at once, with today's keys, never in the clear."""

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.parse import ParseResult, unquote

from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg
from nats.errors import AuthorizationError
from nats.errors import Error as NatsError
from nats.errors import TimeoutError as NatsTimeoutError

from lightningbus.common.aio import WorkInterruptedError, run_unless

LOOK_UPS = ("$JS.API.DIRECT.GET.", "$JS.API.STREAM.MSG.GET.", "$JS.API.STREAM.INFO.", "$JS.API.CONSUMER.INFO.")
"""Beginnings of the subjects of requests that change nothing, so that they may be sent twice."""
AUTH_ERRORS = ("authorization violation", "authentication")
"""Beginnings of the server's errors, lower-cased by nats-py, about a user or account that it no longer knows."""


class PlaintextServerError(NatsError):
    """A server that should speak TLS does not."""


class UserAddress(ParseResult):
    """An address of a server, with a decoded user and password: nats-py does not decode percent-encoding.

    Servers that a cluster names have the user of the address that was given.
    """

    _user: str | None = None
    _password: str | None = None

    @classmethod
    def build(cls, address: ParseResult, owner: ParseResult) -> "UserAddress":
        """Build the address with the user and password of ``owner``, which is encoded unless it is of this class."""
        decode = str if isinstance(owner, UserAddress) else unquote
        built = cls(*address)
        built._user, built._password = (
            decode(part) if part is not None else None for part in (owner.username, owner.password)
        )
        return built

    @property
    def username(self) -> str | None:
        """The user, or a token where there is no password."""
        return self._user

    @property
    def password(self) -> str | None:
        """The password."""
        return self._password


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
        self.reconnect_listeners: set[Callable[[], None]] = set()
        """Called after each reconnect. The answer to a request that was under way then does not come any more."""

    @property
    def is_of_cluster(self) -> bool:
        """Whether the server may answer from a copy that is behind: it is one of a cluster, or without streams."""
        info = self._server_info
        return bool(info.get("cluster")) or not info.get("jetstream")

    @property
    def peer_certificate(self) -> dict[str, Any] | None:
        """The server's certificate in the form of ``SSLObject.getpeercert``; None without TLS."""
        writer: Any = getattr(self._transport, "_io_writer", None)
        encrypted = writer.get_extra_info("ssl_object") if writer is not None else None
        return encrypted.getpeercert() if encrypted is not None else None

    async def request(
        self,
        subject: str,
        payload: bytes = b"",
        timeout: float = 0.5,
        old_style: bool = False,
        headers: dict[str, Any] | None = None,
    ) -> Msg:
        """Send a request and return its answer, see nats-py; a look-up is sent again at once after a reconnect."""
        if not subject.startswith(LOOK_UPS):
            return await super().request(subject, payload, timeout, old_style, headers)
        deadline = asyncio.get_running_loop().time() + timeout
        while (left := deadline - asyncio.get_running_loop().time()) > 0:
            reconnected = asyncio.Event()
            self.reconnect_listeners.add(reconnected.set)
            try:
                return await run_unless(reconnected.wait(), super().request(subject, payload, left, old_style, headers))
            except WorkInterruptedError:
                continue
            finally:
                self.reconnect_listeners.discard(reconnected.set)
        raise NatsTimeoutError

    async def _attempt_reconnect(self) -> None:
        writer: Any = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            writer.transport.abort()
        await super()._attempt_reconnect()
        if self.is_connected:
            for listener in tuple(self.reconnect_listeners):
                listener()

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
        if not isinstance(s.uri, UserAddress):
            named = [server.uri for server in self._server_pool if server.uri.username is not None]
            s.uri = UserAddress.build(s.uri, s.uri if s.uri.username is not None else next(iter(named), s.uri))
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
