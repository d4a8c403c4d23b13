"""An external endpoint's answer as choices to record: text and usage, no tokens. Pure."""

import json
from typing import Any

from lightningbus.runners.protocol.answers.choice import ExternalAnswer, SampledChoice, recorded_sampling
from lightningbus.runners.protocol.answers.engine_errors import InvalidEngineOutputError, malformed_engine_output
from lightningbus.runners.protocol.request import ChatRequest
from lightningbus.schemas.text import replace_surrogates


def external_choices(call: ChatRequest, sampling: dict[str, Any], response: Any, host: str) -> list[SampledChoice]:
    """Yield each choice of a whole answer; the first has the usage of all. Raise `InvalidEngineOutputError`."""
    with malformed_engine_output():
        choices = response["choices"]
        if not isinstance(choices, list) or not choices:
            raise InvalidEngineOutputError("the answer has no choices")
        usage = response.get("usage") or {}
        counts = (_count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens")))
        model = replace_surrogates(str(response.get("model") or ""))
        return [
            SampledChoice(
                model=call.model,
                response_id=replace_surrogates(str(response.get("id") or "")),
                prompt_ids=b"",
                response_ids=b"",
                logprobs=b"",
                token_texts=(),
                weight_versions=(),
                finish_reason=replace_surrogates(str(choice.get("finish_reason") or "")),
                sampling=recorded_sampling(call, sampling),
                response=replace_surrogates(
                    json.dumps(choice["message"] if call.chat else choice["text"], ensure_ascii=False)
                ),
                external=ExternalAnswer(host, model, *(counts if index == 0 else (None, None))),
            )
            for index, choice in enumerate(choices)
        ]


def is_visible(chunk: dict[str, Any]) -> bool:
    """Return whether a chunk brings more than a role: from then on the answer cannot restart."""
    return any(
        choice.get("text") or any(value for key, value in (choice.get("delta") or {}).items() if key != "role")
        for choice in chunk.get("choices") or ()
    )


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and value >= 0 else None
