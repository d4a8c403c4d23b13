"""One connection to NATS: connect, reconnect, rejected credentials and errors that the server reports."""

import asyncio
import contextlib
import logging
import re
import socket
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from nats.errors import Error as NatsError
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NatsTimeoutError
from nats.js.errors import ServiceUnavailableError

from lightningbus.bus.errors import BusError, CredentialsError
from lightningbus.bus.jetstream.addresses import names_user, server_addresses, wants_tls, without_secrets
from lightningbus.bus.jetstream.nats_client import FastReconnectClient
from lightningbus.bus.jetstream.refusals import explain_refusal, is_lasting
from lightningbus.bus.security import certificate_expiry
from lightningbus.bus.security.auth_refusals import AuthRefusals
from lightningbus.bus.security.credentials import Credentials, explain_connect_error
from lightningbus.common.aio import WorkInterruptedError, cancel_and_wait, run_unless
from lightningbus.common.observability import metrics

log = logging.getLogger(__name__)

CONNECT_SECONDS = 10.0
NO_LEADER_ERRORS = (NatsTimeoutError, NoRespondersError, ServiceUnavailableError)
"""Errors of JetStream while a cluster elects a leader."""
LEADER_SECONDS = 60.0
LEADER_POLL_SECONDS = 0.5
PING_SECONDS = 5
"""A connection on which two pings in a row are not answered is dead."""
POLL_SECONDS = 0.02
CLOSE_SECONDS = 5.0
"""Seconds to close a connection; one that was never made has `ABORT_SECONDS`."""
ABORT_SECONDS = 1.0
AUTH_RETRY_SECONDS = 60.0
"""Seconds for which a lost connection retries rejected keys before it gives up."""
AUTH_RETRY_PAUSE_SECONDS = 30.0
CERTIFICATE_CHECK_SECONDS = 86400.0
INFO_TIMEOUT_SECONDS = 3.0
"""Seconds to wait for a server's INFO line. A server that waits for TLS sends none and hangs up after 2 s."""
MAX_PERMISSION_ERRORS = 16
PERMISSION_ERROR = re.compile(r'permissions violation for (?:publish|subscription) to "(.+?)"')
"""Matches the server's denial in lower case, the form in which nats-py reports it."""
NO_INFO_ERROR = "empty response from server"
TLS_HINT = " (something listens there that sends no INFO line: if it wants TLS, give --credentials)"


class Connection:
    """A connection that reconnects for ever, until the server refuses it for good; see `Connection.open`."""

    def __init__(self, url: str, credentials: Credentials | None) -> None:
        """Prepare a connection without opening it; raise `AddressError` for an invalid address."""
        self.addresses = server_addresses(url)
        self._url, self._credentials = url, credentials
        self._has_user = credentials is not None and credentials.has_user
        build_options = credentials.build_options if credentials is not None else dict
        self.nc = FastReconnectClient(build_options, wants_tls(self.addresses))
        self.js = self.nc.jetstream(timeout=10)
        self.closed = asyncio.Event()
        """Set when the connection is closed for good, or a durable stays missing; the process should end."""
        self.reconnected = asyncio.Event()
        """Set at each reconnect; the task that waits for it clears it."""
        self.permission_errors: deque[str] = deque(maxlen=MAX_PERMISSION_ERRORS)
        """The server's last permission errors of this user."""
        self.on_reconnect: Callable[[], None] = lambda: None
        self.on_permission_error: Callable[[str], None] = lambda subject: None
        """Called with the subject of a permission error."""
        self._permission_denied = asyncio.Event()
        self._certificates_changed = asyncio.Event()
        self._auth_refusals = AuthRefusals(AUTH_RETRY_SECONDS, AUTH_RETRY_PAUSE_SECONDS)
        self._fatal_error = ""
        self._failure = ""
        self._hint = ""
        self._unknown_name = ""
        """The resolver's error, if every attempt to connect has met one."""
        self._last_error = ""
        self._is_connecting = True
        self._connect_failed = asyncio.Event()
        """Set after a failed attempt to connect: no server is there, or it has other requirements."""
        self._is_established = False
        """Connected once, and not being closed: only then is a lost connection worth a log line."""

    @asynccontextmanager
    async def open(self, name: str, timeout: float = CONNECT_SECONDS) -> AsyncIterator["Connection"]:
        """Connect, and reconnect for ever; raise `BusError` if no server answers within ``timeout`` seconds at first.

        A server that accepts the first connection but stays silent is busy: it gets at least `CONNECT_SECONDS`.
        The files are read again at each reconnect. Raises `CredentialsError` when a server rejects us, or we reject it.
        """
        options = self._credentials.build_options() if self._credentials is not None else {}
        # A task of its own, cancelled again and again: nats-py forgets a cancellation that meets its own timeout.
        attempt = asyncio.create_task(self._connect(name, options))
        try:
            try:
                await asyncio.wait([attempt], timeout=timeout)
                await self._wait_while_busy(attempt, CONNECT_SECONDS - timeout)
                timed_out = not attempt.done()
            finally:
                await cancel_and_wait(attempt)
            if timed_out:
                raise TimeoutError
            attempt.result()
            if self._fatal_error:
                raise CredentialsError(self._fatal_error)
        except (TimeoutError, OSError, NatsError, CredentialsError) as error:
            await self._close(ABORT_SECONDS)
            address = without_secrets(self._url)
            if self._fatal_error:
                raise CredentialsError(f"the bus at {address} cannot be used: {self._fatal_error}") from error
            if self._unknown_name:
                raise BusError(
                    f"the host name in {address} is not known here ({self._unknown_name}): correct it, or tell the "
                    "machine's DNS"
                ) from error
            sentence = f"no NATS server answers at {address}: start one with `lightningbus bus`{self._hint}"
            raise BusError(sentence) from error
        certificates = asyncio.create_task(self._watch_certificates())
        try:
            self._is_connecting, self._is_established = False, True
            yield self
        finally:
            self._is_established = False
            await cancel_and_wait(certificates)
            await self._close(CLOSE_SECONDS)

    async def _wait_while_busy(self, attempt: "asyncio.Task[None]", seconds: float) -> None:
        """Wait for the first attempt to connect, until it fails, for at most this many seconds."""
        failing = asyncio.create_task(self._connect_failed.wait())
        try:
            await asyncio.wait([attempt, failing], timeout=max(0.0, seconds), return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel_and_wait(failing)

    async def _connect(self, name: str, options: dict[str, Any]) -> None:
        await self.nc.connect(
            self.addresses,
            name=name,
            connect_timeout=INFO_TIMEOUT_SECONDS,  # type: ignore[arg-type]
            ping_interval=PING_SECONDS,
            max_outstanding_pings=2,
            allow_reconnect=True,
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.5,  # type: ignore[arg-type]
            error_cb=self._on_error,
            disconnected_cb=self._on_disconnect,
            reconnected_cb=self._on_reconnect,
            closed_cb=self._on_closed,
            **options,
        )
        # nats-py reports success for a connection that the server closed at once, and reconnects in the background.
        while not self.nc.is_connected and not self._fatal_error:  # noqa: ASYNC110
            await asyncio.sleep(POLL_SECONDS)

    @property
    def failure(self) -> BusError:
        """The error that closed this connection for good: a `CredentialsError` when the server no longer accepts us."""
        if self._failure:
            return BusError(self._failure)
        if self._fatal_error:
            return CredentialsError(f"the bus cannot be used any more: {self._fatal_error}")
        return BusError("the connection to the bus was closed for good")

    def fail(self, reason: str) -> None:
        """End it for good: the process should end with this reason."""
        self._failure = reason
        self.closed.set()

    async def retry_until_leader(self, request: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Send a request to JetStream, again while a cluster has no leader; raise `BusError` after 60 s.

        Raises `CredentialsError` when the server denies it: the request itself only times out.
        """
        deadline = asyncio.get_running_loop().time() + LEADER_SECONDS
        while True:
            try:
                await self._raise_if_denied(request())
                return
            except NO_LEADER_ERRORS as error:
                if is_lasting(error):
                    raise BusError(explain_refusal(error)) from error
                if asyncio.get_running_loop().time() > deadline:
                    reason = explain_refusal(error)
                    raise BusError(f"JetStream has been without a leader for {LEADER_SECONDS:g} s: {reason}") from error
            await asyncio.sleep(LEADER_POLL_SECONDS)

    async def _raise_if_denied(self, request: Coroutine[Any, Any, object]) -> None:
        self._permission_denied.clear()
        try:
            await run_unless(self._permission_denied.wait(), request)
        except WorkInterruptedError:
            raise CredentialsError(f"this user has no right to do that: {self.permission_errors[-1]}") from None

    async def _close(self, seconds: float) -> None:
        """Close the connection; after a failed TLS handshake, at first or later, asyncio would wait for ever.

        One that is lost as it is closed is closed; uvloop raises RuntimeError for writing to one.
        """
        self._is_connecting = False
        with contextlib.suppress(TimeoutError, OSError, RuntimeError):
            async with asyncio.timeout(seconds):
                await self.nc.close()

    async def _on_error(self, error: Exception) -> None:
        message = str(error) or type(error).__name__
        if self._is_connecting:
            is_first = not self._connect_failed.is_set()
            is_unknown = isinstance(error, socket.gaierror) and (is_first or bool(self._unknown_name))
            self._unknown_name = message if is_unknown else ""
            self._connect_failed.set()
            if NO_INFO_ERROR in message and not self._has_user:
                self._hint = TLS_HINT
            self._fatal_error = self._fatal_error or self._explain(error)
            if self._fatal_error:
                raise CredentialsError(self._fatal_error)  # nats-py would retry for ever
        elif self._is_established and (reason := self._explain(error)):
            self._record_auth_refusal(reason)
        if denied := PERMISSION_ERROR.search(message):
            self.permission_errors.append(message)
            self._permission_denied.set()
            self.on_permission_error(denied[1])
        if self._is_established and message != self._last_error:  # while it reconnects, once is enough
            self._last_error = message
            log.warning("bus: %s", message)

    def _explain(self, error: Exception) -> str:
        """Explain an error that a retry will not fix; empty if one might."""
        return explain_connect_error(error, self._credentials, names_user(self.addresses))

    def _record_auth_refusal(self, reason: str) -> None:
        """Record that the server rejected us, and give up after `AUTH_RETRY_SECONDS`: the files may get new keys."""
        if self._auth_refusals.record(asyncio.get_running_loop().time()):
            self._fatal_error = reason
            self.closed.set()

    async def _watch_certificates(self) -> None:
        """Show when the certificates expire, and warn before: now, at each reconnect, and once a day."""
        while self._credentials is not None and self._credentials.cert is not None:
            expiries = certificate_expiry.read_expiries(self._credentials, self.nc.peer_certificate)
            for name, expires_at in expiries.items():
                metrics.certificate_expires_at.labels(name).set(expires_at)
            for sentence in certificate_expiry.build_warnings(expiries, time.time()):
                log.warning("%s", sentence)
            self._certificates_changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CERTIFICATE_CHECK_SECONDS):
                    await self._certificates_changed.wait()

    async def _on_disconnect(self) -> None:
        if self._is_established:
            log.warning("bus: disconnected; reconnecting")

    async def _on_reconnect(self) -> None:
        self._last_error = ""
        self._auth_refusals.clear()
        self._certificates_changed.set()
        metrics.reconnects.inc()
        log.warning("bus: connected again")
        self.reconnected.set()
        self.on_reconnect()

    async def _on_closed(self) -> None:
        self.closed.set()
