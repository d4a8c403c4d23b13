"""A model call from the body of an agent's request: its dialect, its model, and the rollout's prompts in it."""

import logging
from collections.abc import Collection, Mapping

from lightningbus.runners.gateway.slot import ActiveRollout
from lightningbus.runners.protocol.dialects.base import Dialect
from lightningbus.runners.protocol.dialects.registry import Api
from lightningbus.runners.protocol.json_text import decode_json
from lightningbus.runners.protocol.model_names import apply_alias, resolve_alias, resolve_model
from lightningbus.runners.protocol.prompts import substitute
from lightningbus.runners.protocol.request import ChatRequest
from lightningbus.schemas.tasks import AUTO_MODEL

log = logging.getLogger(__name__)


class CallParser:
    """Parses the model calls of all slots."""

    def __init__(
        self, endpoints: Collection[str], ignored_fields: Collection[str], model_aliases: Mapping[str, str]
    ) -> None:
        """Prepare parsing; models in ``endpoints`` are external, and decide on their fields themselves.

        ``ignored_fields`` of requests are left out. ``model_aliases``: models by patterns of names that agents use.
        """
        self._endpoints, self._ignored_fields, self._aliases = endpoints, frozenset(ignored_fields), model_aliases
        self._logged_kinds: set[str] = set()

    def model_of(self, name: str, known: Collection[str]) -> str:
        """Return the model, without its role, that a name stands for."""
        return apply_alias(name, self._aliases, known).partition(":")[0]

    def parse(
        self, api: Api, body: bytes, running: ActiveRollout, known: Collection[str], model: str | None = None
    ) -> tuple[Dialect, Mapping[str, int]]:
        """Parse a model call and insert the rollout's prompts; return it with their versions.

        ``known`` models keep their names. ``model`` is the one that the path names. Raises as
        `lightningbus.runners.gateway.requests.raise_on_malformed` takes.
        """
        fields = decode_json(body)
        if isinstance(fields, dict):
            fields = {name: value for name, value in fields.items() if name not in self._ignored_fields}
            fields = fields if model is None else {**fields, "model": model}
        dialect = api.parse(fields, running.recorder.history)
        left_out = set(dialect.left_out)
        call = resolve_model(resolve_alias(dialect.call, self._aliases, {*known, AUTO_MODEL}), running.task)
        if call.model not in self._endpoints:
            call.check_fields()
            call, unread = call.leave_out_unread()
            left_out |= unread
        self._tell_left_out(left_out)
        substitution = substitute(call, running.prompts)
        dialect.call = substitution.call
        return dialect, substitution.versions

    def parse_input(self, body: bytes, running: ActiveRollout, known: Collection[str], default: str) -> ChatRequest:
        """Parse a request that samples nothing, such as one for embeddings; ``default`` is its model where it has none.

        Raises as `parse`.
        """
        fields = decode_json(body)
        call = ChatRequest.parse({"model": default, **fields} if isinstance(fields, dict) else fields, chat=False)
        return resolve_model(resolve_alias(call, self._aliases, {*known, AUTO_MODEL}), running.task)

    def _tell_left_out(self, kinds: Collection[str]) -> None:
        """Log each kind of tool, content or field that models do not get, once."""
        for kind in sorted(set(kinds) - self._logged_kinds):
            self._logged_kinds.add(kind)
            log.warning("requests have %r, which no model here reads: it is left out", kind)
