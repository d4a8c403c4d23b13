"""Resuming an answer that broke off: any node is asked for the rest, from the tokens already made. Pure.

The rest is requested on the completions route with token ids as its prompt, so nothing is tokenised again, and it
returns in the form the agent asked for.
"""

from dataclasses import replace
from typing import Any

from lightningbus.runners.protocol.message_parts import has_media
from lightningbus.runners.protocol.request import TOKEN_LIMITS, ChatRequest

RESUMABLE_FIELDS = (
    "temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids", "ignore_eos", "logit_bias",
    "presence_penalty", "frequency_penalty", "repetition_penalty", "allowed_token_ids", "bad_words",
    "skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output", "user",
)  # fmt: skip
"""Fields of a request that mean the same for its rest."""
NON_RESUMABLE_FIELDS = (
    "tools", "functions", "response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice",
    "guided_grammar", "add_generation_prompt", "continue_final_message", "echo", "suffix", "logprobs", "top_logprobs",
    "prompt_logprobs", "min_tokens", "use_beam_search",
)  # fmt: skip
"""Fields whose meaning requires that the engine makes the answer from its beginning."""
MAX_MODEL_LEN = 4096
"""Context length assumed where a node reports none."""
NON_SPLICEABLE_FIELDS = ("continue_final_message", "prompt_logprobs", "truncate_prompt_tokens", "use_beam_search")
"""Fields whose meaning requires that the engine renders the chat."""


def can_resume(call: ChatRequest, sampling: dict[str, Any]) -> bool:
    """Return whether an answer to this call can be continued; if not, it is requested again from the beginning."""
    body = call.force(sampling)
    one_prompt = not has_media(body["messages"]) if call.chat else isinstance(body.get("prompt"), str)
    return (
        one_prompt
        and body.get("n") in (None, 1)
        and all(body.get(field) in (None, False) for field in NON_RESUMABLE_FIELDS)
    )


def can_resume_unparsed(call: ChatRequest, sampling: dict[str, Any]) -> bool:
    """Return whether a streamed chat with tools can be continued as text, which is parsed once it is whole.

    Its tools do not constrain what is sampled.
    """
    body = call.force(sampling)
    tools = body.get("tools")
    if not (call.chat and call.stream and isinstance(tools, list) and all(map(_is_free_tool, tools)) and tools):
        return False
    free_call = replace(call, body={**body, "tools": None})
    return body.get("tool_choice") in (None, "auto", "none") and can_resume(free_call, {})


def _is_free_tool(tool: Any) -> bool:
    function = tool.get("function") if isinstance(tool, dict) else None
    return isinstance(function, dict) and not function.get("strict")


def can_splice(call: ChatRequest, sampling: dict[str, Any]) -> bool:
    """Return whether a chat's prompt may be given as tokens.

    It asks for one answer, begun by the template, to a prompt of text that is neither shown nor cut.
    """
    body = call.force(sampling)
    return (
        call.chat
        and body.get("n") in (None, 1)
        and body.get("add_generation_prompt") in (None, True)
        and all(body.get(field) in (None, False) for field in NON_SPLICEABLE_FIELDS)
        and not has_media(call.body["messages"])
    )


def limits_of(body: dict[str, Any]) -> dict[str, int]:
    """Return the bounds of a request's answer, in tokens, by field."""
    return {name: body[name] for name in TOKEN_LIMITS if isinstance(body.get(name), int)}


def limit_body(body: dict[str, Any], max_new_tokens: int | None, max_model_len: int | None) -> dict[str, Any]:
    """Bound the tokens that a chat asks for by what the context has left, because engines refuse a request for more.

    ``max_new_tokens``: what is left, once the prompt's length is known. A bound as long as the context is none.
    """
    limits = limits_of(body)
    if max_new_tokens is not None:  # at least 1, for the engine to refuse a prompt that leaves none
        return {**body, **{name: min(limit, max(max_new_tokens, 1)) for name, limit in limits.items()}}
    if max_model_len is None:
        return body
    return {name: value for name, value in body.items() if limits.get(name, 0) < max_model_len}


def remaining_tokens(
    call: ChatRequest, sampling: dict[str, Any], tokens: int, num_made: int, max_model_len: int
) -> int:
    """Count the tokens left for the rest; ``tokens`` is the length of prompt and answer so far."""
    body = call.force(sampling)
    limit = body.get("max_completion_tokens") or body.get("max_tokens") or (None if call.chat else 16)
    wanted = limit if isinstance(limit, int) else None
    left = max_model_len - tokens
    return max(0, min(left, wanted - num_made) if wanted is not None else left)


def resume_request(
    call: ChatRequest, sampling: dict[str, Any], tokens: list[int], num_tokens_left: int
) -> dict[str, Any]:
    """Build the body for ``/v1/completions``; ``tokens`` are prompt and answer so far."""
    body = call.force(sampling)
    carried = {field: body[field] for field in RESUMABLE_FIELDS if body.get(field) is not None}
    carried |= {"model": call.model, "prompt": tokens, "max_tokens": num_tokens_left, "logprobs": 0}
    return {**carried, "stream": True, "return_token_ids": True, "stream_options": {"include_usage": True}}


def rebase_chunk(
    chunk: dict[str, Any], call: ChatRequest, head: dict[str, Any], prompt: int, num_made: int
) -> dict[str, Any]:
    """Rewrite a chunk of the rest as one of the original answer.

    ``head`` is the answer's head, ``prompt`` its number of prompt tokens, ``num_made`` that of its earlier tokens.
    """
    if "error" in chunk:
        return chunk
    rebased = {**chunk, **head, "prompt_token_ids": None}
    if usage := chunk.get("usage"):
        completion = num_made + usage.get("completion_tokens", 0)
        counted = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
        rebased["usage"] = {**usage, **counted}
    choices = [{**choice, "prompt_token_ids": None} for choice in chunk.get("choices", ())]
    rebased["choices"] = [_as_chat(choice, begins=not num_made) for choice in choices] if call.chat else choices
    if call.chat:
        rebased["object"] = "chat.completion.chunk"
    return rebased


def _as_chat(choice: dict[str, Any], begins: bool) -> dict[str, Any]:
    fields = {key: value for key, value in choice.items() if key not in ("text", "logprobs")}
    logprobs = choice.get("logprobs") or {}
    values = logprobs.get("token_logprobs") or []
    pieces = logprobs.get("tokens") or [""] * len(values)
    fields["delta"] = {**({"role": "assistant"} if begins else {}), "content": choice.get("text") or ""}
    fields["logprobs"] = {
        "content": [{"token": piece, "logprob": value} for piece, value in zip(pieces, values, strict=False)]
    }
    return fields
