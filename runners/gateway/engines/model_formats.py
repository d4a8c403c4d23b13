"""What the chat templates of models render: found out once for each model, by rendering."""

import asyncio
from collections import defaultdict
from typing import Any

from lightningbus.runners.gateway.engines.upstream import CallContext, Upstream, UpstreamRejectedError
from lightningbus.runners.protocol.model_format import ModelFormat, adapt_messages, needed_fields, probes
from lightningbus.runners.protocol.token_history import Tokenized


class ModelFormats:
    """The formats of the models that this runner has asked."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._known: defaultdict[str, dict[str, bool]] = defaultdict(dict)
        self._probing: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def adapt(self, context: CallContext, body: dict[str, Any]) -> dict[str, Any]:
        """Put the messages of a request into the form that its model renders.

        A request without messages, or with a template of its own, is left as it is. Raises as `Upstream.render` while
        no node answers.
        """
        messages = body.get("messages")
        if not isinstance(messages, list) or body.get("chat_template"):
            return body
        model_format = await self._find_format(context, needed_fields(messages))
        return {**body, "messages": adapt_messages(messages, model_format)}

    async def tokenize(self, context: CallContext, body: dict[str, Any]) -> Tokenized | None:
        """Tokenize as `Upstream.tokenize`, with the messages adapted."""
        return await self._upstream.tokenize(context, await self.adapt(context, body))

    async def _find_format(self, context: CallContext, fields: frozenset[str]) -> ModelFormat:
        known = self._known[context.model]
        if not fields <= known.keys():
            async with self._probing[context.model]:
                for field in sorted(fields - known.keys()):
                    known[field] = await self._probe(context, field)
        return ModelFormat(**{field: known[field] for field in fields})

    async def _probe(self, context: CallContext, field: str) -> bool:
        """Return whether a model has a field of `ModelFormat`; true where its engine renders nothing for others."""
        rendered = []
        for messages in probes()[field]:
            body = {"model": context.model, "messages": messages, "add_generation_prompt": False}
            try:
                tokens = await self._upstream.render(context, body)
            except UpstreamRejectedError:
                return False
            if tokens is None:
                return True
            rendered.append(tokens.token_ids)
        return rendered[0] != rendered[1]
