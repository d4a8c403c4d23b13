"""Asking OpenAI-compatible endpoints outside the fleet, and asking again while they are overloaded."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from lightningbus.bus.errors import CredentialsError
from lightningbus.bus.security.secrets import bearer_header
from lightningbus.common.backoff import Backoff, RetryPolicy
from lightningbus.common.observability import metrics, tracing
from lightningbus.common.retry_after import read_retry_after
from lightningbus.runners.gateway.engines.connection_reuse import ConnectionReuse
from lightningbus.runners.gateway.engines.upstream import (
    CONNECT_SECONDS,
    CallContext,
    NoNodeAvailableError,
    UpstreamRejectedError,
    waiting,
)
from lightningbus.runners.settings import EndpointSettings
from lightningbus.schemas.semconv import attributes

log = logging.getLogger(__name__)

RETRY_STATUS = frozenset({408, 425, 429})
"""Beside every 5xx."""
REFUSED_STATUS = frozenset({401, 403})
RETRY_POLICY = RetryPolicy(0.5, 30.0)


class ExternalEndpoints:
    """The endpoints of a runner by name. Agents see neither their keys nor error texts about a key."""

    def __init__(self, endpoints: Mapping[str, EndpointSettings], environment: Mapping[str, str]) -> None:
        """Read the keys from the environment; raise `CredentialsError` for a missing one."""
        self._endpoints = dict(endpoints)
        self._keys = {name: _read_key(name, endpoint, environment) for name, endpoint in endpoints.items()}
        self._refusing: dict[str, str] = {}
        self._session: aiohttp.ClientSession
        self.connections = ConnectionReuse()

    async def __aenter__(self) -> "ExternalEndpoints":
        """Connect when asked."""
        # A reasoning model is silent for minutes: the deadline of the rollout ends a call.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    @property
    def names(self) -> frozenset[str]:
        """The models that endpoints answer."""
        return frozenset(self._endpoints)

    def host(self, name: str) -> str:
        """Return the host of the endpoint."""
        return urlsplit(self._endpoints[name].url).hostname or ""

    def model(self, name: str) -> str:
        """Return the model's name at the endpoint."""
        return self._endpoints[name].model or name

    def problem(self) -> str:
        """Explain why an endpoint refuses this runner; empty if none does."""
        return next(iter(self._refusing.values()), "")

    async def attempt_call(
        self, context: CallContext, path: str, body: dict[str, Any]
    ) -> AsyncGenerator[tuple[aiohttp.ClientResponse, Callable[[], None]]]:
        """Try one after the other: yield each response of status 200; the caller stops at one it can use.

        The yielded function is called after the last event of a stream, see `ConnectionReuse.releasing`.

        Raises `UpstreamRejectedError` for an invalid request, and `NoNodeAvailableError` where the endpoint refuses
        the key or does not answer until the deadline.
        """
        name, backoff, problem = context.model, Backoff(RETRY_POLICY), ""
        fields = {attributes.REQUEST_MODEL: name, attributes.SERVER_ADDRESS: self.host(name)}
        while True:
            retry_after = 0.0
            with tracing.start_span(f"chat {name}", fields, context.recorder.traceparent, "client") as span:
                try:
                    response = await self._post(context, path, body, problem)
                    with self.connections.releasing(response) as mark_complete:
                        if response.status == 200:
                            self._refusing.pop(name, None)
                            yield response, mark_complete
                            problem = f"endpoint {name!r} broke off its answer"
                        elif response.status in REFUSED_STATUS:
                            raise NoNodeAvailableError(self._add_refusal(name, response.status))
                        elif response.status in RETRY_STATUS or response.status >= 500:
                            problem = f"endpoint {name!r} answered {response.status}"
                            retry_after = read_retry_after(response.headers, time.time())
                        elif response.status < 400:
                            raise NoNodeAvailableError(f"endpoint {name!r} answered {response.status}: check its url")
                        else:
                            raise UpstreamRejectedError(response.status, self._without_key(name, await response.read()))
                except (aiohttp.ClientError, TimeoutError) as error:
                    problem = f"endpoint {name!r} cannot be reached: {str(error) or type(error).__name__}"
                tracing.set_error(span, problem)
            metrics.upstream_retries.inc()
            with waiting(context, problem):
                async with asyncio.timeout_at(context.deadline):
                    await asyncio.sleep(max(backoff.next_delay(), retry_after))

    async def _post(
        self, context: CallContext, path: str, body: dict[str, Any], problem: str
    ) -> aiohttp.ClientResponse:
        """Post a call and wait for the head of the response; a missed deadline is the endpoint's fault.

        ``problem``: the error of the try before; empty: this is the first one.
        """
        name = context.model
        url, headers = self._endpoints[name].url.rstrip("/") + path, bearer_header(self._keys[name])
        with waiting(context, problem or f"endpoint {name!r} gave no answer"):
            async with asyncio.timeout_at(context.deadline):
                try:
                    return await self._session.post(url, json=body, headers=headers, allow_redirects=False)
                except TimeoutError as error:  # aiohttp's own
                    raise aiohttp.ClientConnectionError(f"no connection in {CONNECT_SECONDS:g} s") from error

    def _without_key(self, name: str, body: bytes) -> bytes:
        """Remove the endpoint's key from an error before the agent reads it."""
        key = self._keys[name].encode()
        return body.replace(key, b"***") if key else body

    def _add_refusal(self, name: str, status: int) -> str:
        variable = self._endpoints[name].api_key_env
        key = f"the key in {variable}" if variable else "calls without a key (api_key_env)"
        sentence = f"endpoint {name!r} refuses {key}: status {status}"
        if name not in self._refusing:
            log.error("%s", sentence)
        self._refusing[name] = sentence
        return sentence


def _read_key(name: str, endpoint: EndpointSettings, environment: Mapping[str, str]) -> str:
    if endpoint.api_key_env is None:
        return ""
    key = environment.get(endpoint.api_key_env, "").strip()
    if not key:
        raise CredentialsError(
            f"endpoints.{name}: the environment of the runner has no {endpoint.api_key_env}, which api_key_env names"
        )
    if not key.isascii() or not key.isprintable() or " " in key:
        raise CredentialsError(
            f"endpoints.{name}: {endpoint.api_key_env} holds no API key: it is not one printable word"
        )
    return key
