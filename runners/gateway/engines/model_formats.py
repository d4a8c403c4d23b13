"""Chat templates' limits, found by rendering once for each model; and chats adapted to them."""

import asyncio
import logging
from typing import Any

from lightningbus.runners.gateway.engines.upstream import (
    CallContext,
    RenderingFailedError,
    Upstream,
    UpstreamRejectedError,
)
from lightningbus.runners.protocol.model_format import ModelFormat, adapt_messages, needed_fields, probes
from lightningbus.runners.protocol.token_history import Tokenized

log = logging.getLogger(__name__)


class ModelFormats:
    """The formats of the models that this runner has asked."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._known: dict[tuple[str, str], bool] = {}  # by model and field of its format
        self._probing: dict[str, asyncio.Lock] = {}
        self._nameless: set[str] = set()
        """Models that were said not to read names."""

    async def adapt(self, context: CallContext, body: dict[str, Any]) -> dict[str, Any]:
        """Put the messages of a request into the form that its model renders.

        A request without messages, or with a template of its own, is left as it is. Raises as `Upstream.render` while
        no node answers.
        """
        messages = body.get("messages")
        if not isinstance(messages, list) or body.get("chat_template"):
            return body
        model_format = await self._find_format(context, needed_fields(messages))
        if not model_format.renders_names and context.model not in self._nameless:
            self._nameless.add(context.model)
            log.warning(
                "%s does not read the `name` of messages: its chat template leaves names out; put them into the texts",
                context.model,
            )
        return {**body, "messages": adapt_messages(messages, model_format)}

    async def tokenize(self, context: CallContext, body: dict[str, Any]) -> Tokenized | None:
        """Tokenize as `Upstream.tokenize`, with the messages adapted."""
        return await self._upstream.tokenize(context, await self.adapt(context, body))

    async def _find_format(self, context: CallContext, fields: frozenset[str]) -> ModelFormat:
        if any((context.model, field) not in self._known for field in fields):
            async with self._lock_of(context):
                for field in sorted(fields):
                    if (context.model, field) not in self._known:
                        await self._probe(context, field)
        return ModelFormat(**{field: self._known.get((context.model, field), True) for field in fields})

    def _lock_of(self, context: CallContext) -> asyncio.Lock:
        """Return the lock of a model; a new one for a name that an agent made up, so that such names fill no memory."""
        if context.model not in context.expected and context.model not in self._upstream.known_models():
            return asyncio.Lock()
        return self._probing.setdefault(context.model, asyncio.Lock())

    async def _probe(self, context: CallContext, field: str) -> None:
        """Find out whether a model has a field of `ModelFormat`; nothing is found out while its node fails."""
        rendered: list[list[int]] = []
        for messages in probes()[field]:
            body = {"model": context.model, "messages": messages, "add_generation_prompt": False}
            try:
                tokens = await self._upstream.render(context, body)
            except UpstreamRejectedError:
                self._known[context.model, field] = False
                return
            except RenderingFailedError as error:
                log.warning("%s: what its chat template renders is not known yet: %s", context.model, error)
                return
            if tokens is None:  # the engine renders no chats
                self._known[context.model, field] = True
                return
            rendered.append(tokens.token_ids)
        self._known[context.model, field] = rendered[0] != rendered[1]
