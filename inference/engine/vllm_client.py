"""HTTP to vLLM's server: control calls, and requests of the public API that are passed on."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from lightningbus.inference.engine.base import EngineError, EngineRejectedError, EngineUnreachableError
from lightningbus.schemas.text import shorten_line

CONTROL_TIMEOUT_SECONDS = 120.0
HEALTH_TIMEOUT_SECONDS = 2.0
URL = "http://vllm"
"""vLLM's URL for a session whose connector always uses its socket."""


class VllmClient:
    """Requests to one server of vLLM."""

    def __init__(self, session: aiohttp.ClientSession, url: str = URL) -> None:
        self._session, self._url = session, url

    async def is_healthy(self) -> bool:
        """Return whether the server reports that it is ready."""
        timeout = aiohttp.ClientTimeout(total=HEALTH_TIMEOUT_SECONDS)
        try:
            async with self._session.get(f"{self._url}/health", timeout=timeout) as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def get_json(self, path: str) -> Any:
        """GET; returns the JSON of the response. Raises `aiohttp.ClientError` or `ValueError`."""
        async with self._session.get(self._url + path) as response:
            return await response.json()

    async def post(self, path: str, body: object = None) -> str:
        """POST; returns the text of the response. Raises `EngineRejectedError`, or `EngineError` without one."""
        # uvicorn closes the connection after an error response, so it must not be reused.
        headers, timeout = {"Connection": "close"}, aiohttp.ClientTimeout(total=CONTROL_TIMEOUT_SECONDS)
        try:
            async with self._session.post(self._url + path, json=body, headers=headers, timeout=timeout) as response:
                text = await response.text()
                if response.status != 200:
                    raise EngineRejectedError(f"vLLM answered {response.status} to {path}: {shorten_line(text, 300)}")
                return text
        except (aiohttp.ClientError, TimeoutError) as error:
            raise EngineError(f"vLLM does not answer {path}: {error or type(error).__name__}") from error

    async def post_json(self, path: str, body: object) -> Any:
        """POST; returns the JSON of the response. Raises as `post`."""
        text = await self.post(path, body)
        try:
            return json.loads(text)
        except ValueError as error:
            raise EngineRejectedError(f"vLLM's answer to {path} is no JSON") from error

    @asynccontextmanager
    async def forward(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> "AsyncIterator[VllmResponse]":
        """See `lightningbus.inference.engine.base.Forward`."""
        try:
            response = await self._session.request(method, self._url + path, data=body, headers=headers)
        except (aiohttp.ClientConnectorError, TimeoutError) as error:
            raise EngineUnreachableError("the engine is not answering") from error
        except aiohttp.ClientError as error:
            raise EngineError("the engine closed the connection before it answered") from error
        async with response:
            yield VllmResponse(response)


class VllmResponse:
    """A response of vLLM; a `lightningbus.inference.engine.base.EngineResponse`."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status, self.content_type = response.status, response.content_type

    async def read(self) -> bytes:
        """See `lightningbus.inference.engine.base.EngineResponse`."""
        try:
            return await self._response.read()
        except aiohttp.ClientError as error:
            raise EngineError(f"the engine's answer ended early: {str(error) or type(error).__name__}") from error

    async def chunks(self) -> AsyncIterator[bytes]:
        """See `lightningbus.inference.engine.base.EngineResponse`."""
        try:
            async for data in self._response.content.iter_any():
                yield data
        except aiohttp.ClientError as error:
            raise EngineError(f"the engine's stream ended early: {str(error) or type(error).__name__}") from error
