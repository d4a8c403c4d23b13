"""The agent's request to a model, and the one sent to the engine instead. Pure."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from lightningbus.runners.protocol.message_parts import join_parts, text_part
from lightningbus.runners.protocol.request_fields import CHAT, CHAT_MESSAGE, COMPLETIONS, STREAM_OPTIONS

TEMPLATE_FIELDS = ("chat_template", "chat_template_kwargs", "documents", "reasoning_effort", "tools")
"""Fields that change how messages are rendered."""
TEMPLATE_VARIABLES = ("documents", "reasoning_effort")
"""Those that vLLM's chat route gives to the template as variables, and its /tokenize does not know by name."""
TOKEN_LIMITS = ("max_tokens", "max_completion_tokens")
"""Fields that bound the tokens of an answer."""
INTEGER_FIELDS = (*TOKEN_LIMITS, "n")
"""Fields that the gateway itself has to understand."""
SWITCHES = ("include_reasoning", "return_token_ids", "return_tokens_as_token_ids", "stream")
"""Boolean fields that the gateway acts on; engines also take the words "true" and "false" for them."""
WHOLE_FIELDS = (
    *INTEGER_FIELDS, "logprobs", "min_tokens", "priority", "prompt_logprobs", "seed", "thinking_token_budget", "top_k",
    "top_logprobs", "truncate_prompt_tokens",
)  # fmt: skip
"""Integer fields; clients whose numbers are all floats write 5.0 for 5."""

SWITCH = TypeAdapter(bool)

SAMPLING_FIELDS = frozenset({
    "add_generation_prompt", "add_special_tokens", "allowed_token_ids", "bad_words", "cache_salt", "chat_template",
    "chat_template_kwargs", "continue_final_message", "documents", "echo", "frequency_penalty", "guided_choice",
    "guided_grammar", "guided_json", "guided_regex", "ignore_eos", "include_reasoning", "include_stop_str_in_output",
    "length_penalty", "logit_bias", "logprob_token_ids", "logprobs", "max_completion_tokens", "max_tokens",
    "media_io_kwargs", "min_p", "min_tokens", "mm_processor_kwargs", "n", "parallel_tool_calls", "presence_penalty",
    "priority", "prompt_logprobs", "reasoning_effort", "repetition_detection", "repetition_penalty", "response_format",
    "seed", "skip_special_tokens", "spaces_between_special_tokens", "stop", "stop_token_ids", "structured_outputs",
    "suffix", "temperature", "thinking_token_budget", "tool_choice", "tools", "top_k", "top_logprobs", "top_p",
    "truncate_prompt_tokens", "truncation_side", "use_beam_search", "user", "vllm_xargs", "watermarking",
})  # fmt: skip
"""Request fields that affect sampling; vLLM silently ignores any other."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """An agent's request: its body, and the model and role that its model name stands for."""

    body: dict[str, Any]
    chat: bool
    model: str
    role: str

    @classmethod
    def parse(cls, body: Any, chat: bool) -> "ChatRequest":
        """Parse a request body; raise ValueError with a sentence for the agent."""
        if not isinstance(body, dict):
            raise ValueError("the request body is a JSON object")
        name = body.get("model")
        if not isinstance(name, str) or not name:
            raise ValueError("the request names no model")
        if chat and not isinstance(body.get("messages"), list):
            raise ValueError("the request has no list of messages")
        whole = {field: int(body[field]) for field in WHOLE_FIELDS if _is_whole_float(body.get(field))}
        body = {**body, **whole, **_read_switches(body, [*SWITCHES, "logprobs"] if chat else SWITCHES)}
        if isinstance(options := body.get("stream_options"), dict):
            body["stream_options"] = {**options, **_read_switches(options, ["include_usage"])}
        for field in INTEGER_FIELDS:
            if not isinstance(body.get(field) or 0, int):
                raise ValueError(f"{field} is a whole number")
        model, _, role = name.partition(":")
        return cls(body, chat, model, role)

    def check_fields(self) -> None:
        """Raise ValueError for a field that would change the request's meaning, and that no engine would honour."""
        (CHAT if self.chat else COMPLETIONS).check_known(self.body)
        STREAM_OPTIONS.check_known(self.body.get("stream_options"))
        for message in self.body["messages"] if self.chat else ():
            CHAT_MESSAGE.check_refused(message)

    def leave_out_unread(self) -> tuple["ChatRequest", frozenset[str]]:
        """Return the request without the fields of messages that no engine reads, and the names of those with effect.

        Clients add fields of their own to answers that they send back: with them the history is not found again.
        """
        if not self.chat:
            return self, frozenset()
        messages = self.body["messages"]
        names = {
            f"{CHAT_MESSAGE.place}{name}"
            for message in messages
            if isinstance(message, dict)
            for name, value in message.items()
            if value and name not in CHAT_MESSAGE.names
        }
        return replace(self, body={**self.body, "messages": list(map(_leave_out_unread, messages))}), frozenset(names)

    @property
    def stream(self) -> bool:
        """Whether the agent wants a stream itself."""
        return bool(self.body.get("stream"))

    @property
    def wants_usage(self) -> bool:
        """Whether a streaming agent asked for the usage chunk."""
        options = self.body.get("stream_options")
        return isinstance(options, dict) and bool(options.get("include_usage"))

    @property
    def wants_logprobs(self) -> bool:
        """Whether the agent asked for log-probabilities itself."""
        value = self.body.get("logprobs")
        return bool(value) if self.chat else value is not None

    @property
    def wants_token_ids(self) -> bool:
        """Whether the agent asked for token ids itself."""
        return bool(self.body.get("return_token_ids"))

    @property
    def names_tokens_by_id(self) -> bool:
        """Whether the agent wants ids in place of the texts of tokens, and of sampled tokens alone.

        The engine is asked for the texts then, which are recorded. Of other likely tokens it alone knows the ids.
        """
        num_others = self.body.get("top_logprobs" if self.chat else "logprobs")
        return bool(self.body.get("return_tokens_as_token_ids")) and not num_others

    @property
    def hides_reasoning(self) -> bool:
        """Whether the agent wants the answer without what the model thought; it is recorded all the same."""
        return self.body.get("include_reasoning") is False

    def force(self, sampling: dict[str, Any]) -> dict[str, Any]:
        """Return the body with ``sampling`` in place of the agent's settings.

        A bound of the answer replaces the agent's by either name: vLLM prefers `max_completion_tokens` in a chat, and
        knows `max_tokens` alone elsewhere.
        """
        limits = {name: sampling[name] for name in TOKEN_LIMITS if sampling.get(name) is not None}
        body = {**self.body, **sampling}
        if not limits:
            return body
        rest = {name: value for name, value in body.items() if name not in TOKEN_LIMITS}
        return rest | (limits if self.chat else {"max_tokens": min(limits.values())})

    def num_choices(self, sampling: dict[str, Any]) -> int:
        """Count the answers to sample, where ``sampling`` is forced: ``n`` for each prompt."""
        n, prompt = self.force(sampling).get("n"), self.body.get("prompt")
        has_several = (
            not self.chat and isinstance(prompt, list) and any(isinstance(each, str | list) for each in prompt)
        )
        return (n if isinstance(n, int) and n > 0 else 1) * (len(prompt) if has_several and prompt else 1)

    def to_record(self) -> str:
        """Encode the body as JSON with the conversation last, so that a continuing call begins like the last one."""
        last = "messages" if self.chat else "prompt"
        body = {name: value for name, value in self.body.items() if name != last}
        return json.dumps({**body, last: self.body.get(last)}, ensure_ascii=False)

    def template_fields(self) -> dict[str, Any]:
        """Return what the chat template renders beside the messages, such as tools and documents."""
        return {name: self.body[name] for name in TEMPLATE_FIELDS if self.body.get(name) is not None}

    def to_tokenize_request(self, messages: list[Any], is_answered: bool) -> dict[str, Any]:
        """Build the request that renders messages by the chat template, with or without the start of an answer."""
        fields = self.template_fields()
        variables = {name: fields.pop(name) for name in TEMPLATE_VARIABLES if name in fields}
        if "reasoning_effort" in variables:  # vLLM 0.31 turns thinking on by it, for templates that have the switch
            variables["enable_thinking"] = variables["reasoning_effort"] != "none"
        if variables:
            fields["chat_template_kwargs"] = variables | fields.get("chat_template_kwargs", {})
        return {**fields, "model": self.model, "messages": messages, "add_generation_prompt": not is_answered}

    def to_content_request(self, content: str) -> dict[str, Any]:
        """Build the request that divides a message's content into tokens, without a template."""
        return {"model": self.model, "prompt": content, "add_special_tokens": False}

    def to_engine_request(self, sampling: dict[str, Any]) -> dict[str, Any]:
        """Build the request for the engine; ``sampling`` overrides the agent's settings."""
        body = {name: value for name, value in self.force(sampling).items() if value is not None}
        body |= {"model": self.model, "stream": True, "return_token_ids": True}
        body["stream_options"] = {"include_usage": True}
        if self.names_tokens_by_id:
            del body["return_tokens_as_token_ids"]
        if self.chat:
            body["logprobs"] = True
            body.setdefault("top_logprobs", 0)
            if self.hides_reasoning:  # or the engine keeps back the tokens too
                body["include_reasoning"] = True
        else:
            body.setdefault("logprobs", 0)
        return body

    def to_external_request(self, sampling: dict[str, Any], model: str) -> dict[str, Any]:
        """Build the request for an endpoint that supports only OpenAI's API, and has another name for the model."""
        body = {**self.force(sampling), "model": model}
        body.pop("return_token_ids", None)
        options = body.pop("stream_options", None)
        if self.stream:
            body["stream_options"] = {**(options if isinstance(options, dict) else {}), "include_usage": True}
        return body


def _leave_out_unread(message: Any) -> Any:
    """Return a message with the fields that engines read alone; a refusal becomes text of the content."""
    if not isinstance(message, dict):
        return message
    read = {name: value for name, value in message.items() if name in CHAT_MESSAGE.honoured}
    if refusal := read.pop("refusal", None):
        content = read.get("content")
        parts = content if isinstance(content, list) else [text_part(content)] if content else []
        read["content"] = join_parts([*parts, text_part(refusal)])
    return read


def _read_switches(body: dict[str, Any], fields: Iterable[str]) -> dict[str, bool]:
    """Read switches that are not booleans yet; raise ValueError for a value that is neither true nor false."""
    switches = {}
    for field in fields:
        value = body.get(field)
        if value is not None and not isinstance(value, bool):
            try:
                switches[field] = SWITCH.validate_python(value)
            except ValidationError:
                raise ValueError(f"{field} is true or false") from None
    return switches


def _is_whole_float(value: Any) -> bool:
    return isinstance(value, float) and value.is_integer()


def find_invalid_sampling(sampling: dict[str, Any]) -> str:
    """Explain why a task's sampling settings cannot be sent to an engine; empty if they can."""
    for name, value in sampling.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            return f"sampling of the task: {name!r} cannot be sent to an engine: {error}"
    return ""
