"""Asking an inference node, and asking again: an agent's call is held while no node can answer it."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

import aiohttp

from lightningbus.bus.security.secrets import bearer_header
from lightningbus.common.observability import metrics, tracing
from lightningbus.runners.gateway.engines import routing
from lightningbus.runners.gateway.engines.connection_reuse import ConnectionReuse
from lightningbus.runners.gateway.engines.engine_failures import EngineFailures
from lightningbus.runners.gateway.engines.rejecting_nodes import RejectingNodes
from lightningbus.runners.protocol.dialects.base import error as dialect_error
from lightningbus.runners.protocol.json_text import decode_json, encode_exactly, encode_json
from lightningbus.runners.protocol.model_names import models_of
from lightningbus.runners.protocol.token_history import Tokenized
from lightningbus.runners.recording.attempt import AttemptRecorder
from lightningbus.schemas.fleet import Heartbeat
from lightningbus.schemas.semconv import attributes
from lightningbus.schemas.tasks import Task

log = logging.getLogger(__name__)

CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
RETRY_STATUS = frozenset({409, 429, 502, 503, 504})
REFUSED_STATUS = frozenset({400, 422})
"""A node's status for a chat that its template, or its engine, refuses."""
NO_ROUTE_STATUS = frozenset({404, 405, 501})
"""A node's status where its engine renders no chats."""
BROKE_OFF_STATUS = 502
"""A node's status when its engine took a request and closed the connection."""
FLEET_POLL_SECONDS = 0.25
"""Seconds that a refused call waits for a change in the fleet before it asks again."""
MAX_EVENT_BYTES = 16 * 1024 * 1024
MAX_MESSAGE_BYTES = 500
"""Longest quoted part of an error that is no JSON."""
CONNECT_SECONDS = 5.0
READ_TIMEOUT_SECONDS = 60.0
"""Seconds of silence after which a connection is dead; a node at work sends something more often."""


class UpstreamRejectedError(Exception):
    """The engine refused the request itself; the agent gets its status and body as they are."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(_message_of(body) or f"status {status}")
        self.status, self.body = status, body
        self.code = ""
        """The error's code where clients act on it."""


class ContextExceededError(UpstreamRejectedError):
    """A prompt fills the context; agents know it by these words, and make their history shorter."""

    @classmethod
    def of(cls, num_tokens: int, max_model_len: int) -> Self:
        """Build the error of a prompt with so many tokens."""
        message = (
            f"prompt is too long: {num_tokens} tokens > {max_model_len} maximum; this model's maximum context length "
            f"is {max_model_len} tokens, the answer's among them: shorten the conversation"
        )
        error = cls(400, encode_json(dialect_error(CONTEXT_LENGTH_EXCEEDED, message, 400)))
        error.code = CONTEXT_LENGTH_EXCEEDED
        return error


class RenderingFailedError(Exception):
    """A node did not render a chat, and might do it later."""


class UnknownModelError(Exception):
    """No node serves a model of this name."""


class NoNodeAvailableError(Exception):
    """No node answered before the rollout's deadline, or one failed after its answer had begun."""


def waited_in_vain(problem: str) -> str:
    """Word the error of a call that waited because of this problem until its deadline."""
    return f"{problem} until the rollout's deadline"


@dataclass(frozen=True, slots=True)
class CallContext:
    """The rollout, model and deadline of a call; ``deadline`` is in the event loop's time."""

    recorder: AttemptRecorder
    model: str
    expected: frozenset[str]
    """Models that the task may call: calls wait for them even before any node has served them."""
    pinned: int | None
    deadline: float
    failures: EngineFailures = field(default_factory=EngineFailures)

    @classmethod
    def create(cls, recorder: AttemptRecorder, model: str, task: Task, deadline: float) -> "CallContext":
        """Build the context of a call that ``model`` answers, in a rollout of ``task``."""
        return cls(recorder, model, models_of(task), task.weight_versions.get(model), deadline)


class MakeRequest(Protocol):
    """Path and body of the next request, for the node that will get it."""

    def __call__(self, node: Heartbeat) -> tuple[str, dict[str, Any]]: ...


class Content(Protocol):
    """A body on its way, such as aiohttp's."""

    def iter_any(self) -> AsyncIterator[bytes]: ...


class Nodes(Protocol):
    """The inference nodes as they are known now, such as `lightningbus.bus.fleet.heartbeats.Fleet`."""

    def members(self) -> Sequence[Heartbeat]: ...

    def suspect(self, role: str, id: str) -> None: ...

    async def wait_for_change(self) -> None: ...


class Upstream:
    """The inference nodes, as one: chooses a node, holds a call, asks again elsewhere."""

    def __init__(
        self,
        fleet: Nodes,
        session: aiohttp.ClientSession,
        inference_api_key: str = "",
        sticky_weight_version: bool = False,
    ) -> None:
        """Prepare calls; with ``sticky_weight_version`` a rollout keeps its version while a node has it."""
        self._fleet, self._sticky_weight_version = fleet, sticky_weight_version
        self._session = session
        self._auth_headers = bearer_header(inference_api_key)
        self._rejecting = RejectingNodes(bool(inference_api_key))
        self._open: Counter[str] = Counter()
        self.connections = ConnectionReuse()
        self._known_models: set[str] = set()

    def known_models(self) -> set[str]:
        """Name all models that some node serves, or has served."""
        self._known_models |= {node.model for node in self._fleet.members() if node.model}
        return self._known_models

    def find_context(self, model: str) -> int | None:
        """Return the shortest context, in tokens, of a model's nodes; None: they report none."""
        lengths = [node.status.get("max_model_len") for node in self._fleet.members() if node.model == model]
        return min((length for length in lengths if isinstance(length, int)), default=None)

    @property
    def called_nodes(self) -> Collection[str]:
        """Ids of the nodes at which calls of this runner are open."""
        return (+self._open).keys()

    def problem(self) -> str:
        """Explain why a node rejects this runner's calls; empty if none does."""
        return self._rejecting.problem(self._fleet.members())

    @property
    def is_refused(self) -> bool:
        """Whether all nodes of a model reject this runner's key."""
        return self._rejecting.has_all_of_a_model(self._fleet.members())

    async def attempt_call(
        self, context: CallContext, request: MakeRequest
    ) -> AsyncGenerator[tuple[Heartbeat, AsyncIterator[dict[str, Any]]], None]:
        """Try nodes one after the other: yield each with its stream of chunks; the caller stops at one it can use.

        Raises `UpstreamRejectedError`, `UnknownModelError`, `NoNodeAvailableError` or `EnginesFailedError`.
        """
        attempt = context.recorder
        headers = {"X-Lightningbus-Rollout": attempt.rollout, "Content-Type": "application/json", **self._auth_headers}
        if context.pinned is not None:
            headers["X-Lightningbus-Version"] = str(context.pinned)
        problem = "no inference node is ready"
        while True:
            context.failures.check()
            node = await self._node(context, problem)
            if (preferred := self._preferred(context)) is not None:
                headers["X-Lightningbus-Preferred-Version"] = str(preferred)
            path, body = request(node)
            payload = encode_exactly(body)
            self._open[node.id] += 1
            span_attributes = {attributes.NODE: node.id, attributes.REQUEST_MODEL: context.model}
            try:
                with tracing.start_span(
                    f"chat {context.model}", span_attributes, attempt.traceparent, "client"
                ) as span:
                    response = await self._session.post(
                        node.address + path,
                        data=payload,
                        headers=headers | tracing.format_headers(span),
                        allow_redirects=False,
                    )
                    with self.connections.releasing(response) as mark_complete:
                        if response.status == 200:
                            attempt.last_nodes[context.model] = node.id
                            self._rejecting.remove(node)
                            yield node, events_of(response.content, mark_complete)
                            problem = f"{node.id} broke off its answer"
                        elif response.status == 401:  # between us and the node; the agent has nothing to do with it
                            problem = self._rejecting.add(node)
                        elif response.status in RETRY_STATUS:
                            problem = f"{node.id} answered {response.status}"
                            if response.status == BROKE_OFF_STATUS:
                                context.failures.add_break(node, "its engine closed the connection")
                        elif response.status >= 500:
                            rejected = UpstreamRejectedError(response.status, await response.read())
                            problem = f"{node.id} answered {response.status}: {rejected}"
                            context.failures.add_error(node, str(rejected))
                        else:
                            raise UpstreamRejectedError(response.status, await response.read())
                        tracing.set_error(span, problem)
            except (aiohttp.ClientError, TimeoutError) as error:
                problem = f"{node.id} cannot be reached: {error or type(error).__name__}"
                self._fleet.suspect("inference", node.id)
                if not isinstance(error, aiohttp.ClientConnectorError | TimeoutError):  # it had the request
                    context.failures.add_break(node, str(error) or type(error).__name__)
            finally:
                self._open[node.id] -= 1
            metrics.upstream_retries.inc()
            await self._wait_for_fleet(context, problem)

    async def render(self, context: CallContext, body: dict[str, Any]) -> Tokenized | None:
        """Tokenize a text, or a chat as a node renders it; None if the node renders none.

        Raises `UpstreamRejectedError` where its template refuses the chat, `RenderingFailedError` where it might answer
        later, and `UnknownModelError` or `NoNodeAvailableError`.
        """
        node = await self._node(context, "no inference node is ready")
        try:
            async with self._session.post(
                f"{node.address}/tokenize", json=body, headers=self._auth_headers, allow_redirects=False
            ) as response:
                if response.status == 401:
                    self._rejecting.add(node)
                if response.status in REFUSED_STATUS:
                    raise UpstreamRejectedError(response.status, await response.read())
                if response.status in NO_ROUTE_STATUS:
                    return None
                if response.status != 200:
                    raise RenderingFailedError(f"{node.id} answered {response.status}")
                answer = await response.json()
                return Tokenized(list(answer["tokens"]), "".join(answer.get("token_strs") or ()))
        except (aiohttp.ClientError, TimeoutError, ValueError, LookupError, TypeError) as error:
            raise RenderingFailedError(str(error) or type(error).__name__) from error

    async def tokenize(self, context: CallContext, body: dict[str, Any]) -> Tokenized | None:
        """Tokenize as `render` does; None also where its template refuses the chat, or the node fails."""
        try:
            return await self.render(context, body)
        except (UpstreamRejectedError, RenderingFailedError):
            return None

    def _preferred(self, context: CallContext) -> int | None:
        return context.recorder.last_weight_versions.get(context.model) if self._sticky_weight_version else None

    async def _node(self, context: CallContext, problem: str) -> Heartbeat:
        while True:
            nodes = self._fleet.members()
            served = self.known_models()
            if nodes and context.model not in served | context.expected:
                raise UnknownModelError(f"model {context.model!r} is not served; served: {', '.join(sorted(served))}")
            fresh, rested = context.failures.by_preference(nodes)
            accepting = self._rejecting.except_rejecting
            choices = (accepting(fresh), accepting(rested), [*fresh, *rested])
            node = next(filter(None, (self._select(context, choice) for choice in choices)), None)
            if node is not None:
                return node
            missing = routing.missing_version(nodes, context.model, context.pinned)
            await self._wait_for_fleet(context, missing or routing.missing_model(nodes, context.model) or problem)

    def _select(self, context: CallContext, nodes: Sequence[Heartbeat]) -> Heartbeat | None:
        attempt, load, preferred = context.recorder, self._open.__getitem__, self._preferred(context)
        last = attempt.last_nodes.get(context.model, "")
        return routing.select_node(nodes, context.model, attempt.rollout, last, context.pinned, load, preferred)

    async def _wait_for_fleet(self, context: CallContext, problem: str) -> None:
        with metrics.upstream_calls_waiting.track_inprogress(), waiting(context, problem):
            async with asyncio.timeout_at(context.deadline):
                try:
                    async with asyncio.timeout(FLEET_POLL_SECONDS):
                        await self._fleet.wait_for_change()
                except TimeoutError:
                    if asyncio.get_running_loop().time() >= context.deadline:
                        raise


def _message_of(body: bytes) -> str:
    """Extract the message of an error in OpenAI's form; return other bodies as they are."""
    try:
        error = decode_json(body)
        return str((error.get("error") or error)["message"])
    except (ValueError, AttributeError, LookupError, TypeError, RecursionError):
        return body[:MAX_MESSAGE_BYTES].decode(errors="replace")


@contextmanager
def waiting(context: CallContext, problem: str) -> Iterator[None]:
    """Count a call as waiting while the block runs; turn its TimeoutError into `NoNodeAvailableError`."""
    context.recorder.num_calls_waiting += 1
    context.recorder.waiting_reason = problem
    try:
        yield
    except TimeoutError:
        raise NoNodeAvailableError(waited_in_vain(problem)) from None
    finally:
        context.recorder.num_calls_waiting -= 1


async def events_of(content: Content, on_done: Callable[[], None] = lambda: None) -> AsyncIterator[Any]:
    """Yield the JSON of each server-sent event until ``[DONE]``, at which ``on_done`` is called.

    Raises `aiohttp.ClientPayloadError` if that never comes, and ValueError for invalid JSON. An event's data is one
    line, as all of OpenAI's are.
    """
    rest = b""
    async for data in content.iter_any():
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            text = line[5:].strip()
            if text == b"[DONE]":
                on_done()
                return
            yield decode_json(text)
        if len(rest) > MAX_EVENT_BYTES:
            raise aiohttp.ClientPayloadError("an event is too large")
    raise aiohttp.ClientPayloadError("the stream ended early")
