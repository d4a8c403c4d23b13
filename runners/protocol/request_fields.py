"""Every field of a request and its treatment: a field that changes the meaning is honoured or refused. Pure.

`tests/runners/test_request_fields.py` walks the schemas of the vendors' clients and of vLLM: a field that is in none of
these tables fails it. A field that a client sends, and that no table knows, is refused too, as the vendors do.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lightningbus.common.name_suggestions import suggest_name

VENDOR_CACHE = "nodes cache prompts by themselves"
VENDOR_RECORDS = "the vendor's records and bills have it; the model does not see it"
VENDOR_SERVING = "it says where, or how fast, the vendor samples the same answer"
VENDOR_TOOLS = "it says what the vendor's own tools give back, and none runs here"
WHOLE_CONTEXT = "the whole conversation stays in the prompt; one that is too long is refused"
WHOLE_THOUGHTS = "thoughts are given whole"


@dataclass(frozen=True, slots=True)
class FieldRefusal:
    """Reason to refuse a field, put after its name; values in ``neutral`` change nothing and are accepted."""

    reason: str
    neutral: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class FieldTable:
    """The fields of one object of an API."""

    place: str
    """Put in front of a field's name."""
    honoured: frozenset[str]
    """Passed to the engine, or acted on."""
    harmless: Mapping[str, str] = field(default_factory=dict)
    """Fields without effect, and the reason why they do not change the meaning."""
    refused: Mapping[str, FieldRefusal] = field(default_factory=dict)

    @property
    def names(self) -> frozenset[str]:
        """All that are known."""
        return self.honoured | self.harmless.keys() | self.refused.keys()

    def check_known(self, body: Any) -> None:
        """Raise ValueError with a sentence for a refused field, or one that is not known."""
        self.check_refused(body)
        for name in body if isinstance(body, dict) else ():
            if name not in self.names and body[name] is not None:
                near = suggest_name(name, self.honoured)
                raise ValueError(
                    f"{self.place}{name} is not known here, so it could change what the request means"
                    f"{f' ({near})' if near else ''}: leave it out, or name it in ignored_request_fields of the runner"
                )

    def check_refused(self, body: Any) -> None:
        """Raise ValueError with a sentence for a field that is refused."""
        for name in body if isinstance(body, dict) else ():
            refusal = self.refused.get(name)
            if refusal is not None and body[name] and body[name] not in refusal.neutral:
                raise ValueError(f"{self.place}{name} {refusal.reason}")


PER_TOKEN = "is not served: each token's version is read from the stream, token by token; leave it out"
NOT_SHOWN = "is not served: the gateway does not pass it back; leave it out"
SEVERAL_ENGINES = "is not served: it is for engines that share one request; leave it out"
ENGINE_SAMPLING = frozenset({
    "add_special_tokens", "allowed_token_ids", "bad_words", "frequency_penalty", "ignore_eos",
    "include_stop_str_in_output", "length_penalty", "logit_bias", "logprob_token_ids", "logprobs", "max_tokens",
    "min_p", "min_tokens", "model", "n", "presence_penalty", "repetition_detection", "repetition_penalty",
    "response_format", "return_token_ids", "return_tokens_as_token_ids", "seed", "skip_special_tokens",
    "spaces_between_special_tokens", "stop", "stop_token_ids", "stream", "stream_options", "structured_outputs",
    "temperature", "thinking_token_budget", "top_k", "top_p", "truncate_prompt_tokens", "truncation_side",
    "vllm_xargs", "watermarking",
})  # fmt: skip
ENGINE_HARMLESS = {
    "cache_salt": "the node has a salt of its own: prompts of other weights are never reused",
    "priority": "it says when an answer is sampled, not which",
    "session_id": VENDOR_CACHE,
    "user": VENDOR_RECORDS,
}
ENGINE_REFUSED = {
    "echo": FieldRefusal(
        "is not served: the prompt's tokens would be recorded as if they were sampled; the agent has the prompt"
    ),
    "ec_transfer_params": FieldRefusal(SEVERAL_ENGINES),
    "guided_choice": FieldRefusal("is not served: vLLM no longer knows it; use structured_outputs"),
    "guided_grammar": FieldRefusal("is not served: vLLM no longer knows it; use structured_outputs"),
    "guided_json": FieldRefusal("is not served: vLLM no longer knows it; use response_format or structured_outputs"),
    "guided_regex": FieldRefusal("is not served: vLLM no longer knows it; use structured_outputs"),
    "kv_transfer_params": FieldRefusal(SEVERAL_ENGINES),
    "prompt_logprobs": FieldRefusal(NOT_SHOWN),
    "request_id": FieldRefusal("is not served: two calls could have the same; leave it out"),
    "return_token_offsets": FieldRefusal(NOT_SHOWN),
    "routed_experts_prompt_start": FieldRefusal(NOT_SHOWN),
    "stream_interval": FieldRefusal(PER_TOKEN, (1,)),
    "use_beam_search": FieldRefusal("is not served: what beam search finds is not sampled, so it cannot be trained on"),
}
CHAT = FieldTable(
    "",
    ENGINE_SAMPLING
    | {
        "add_generation_prompt", "chat_template", "chat_template_kwargs", "continue_final_message", "documents",
        "include_reasoning", "max_completion_tokens", "media_io_kwargs", "messages", "mm_processor_kwargs",
        "parallel_tool_calls", "reasoning_effort", "tool_choice", "tools", "top_logprobs",
    },
    ENGINE_HARMLESS
    | {
        "metadata": VENDOR_RECORDS,
        "moderation": "it is a check of the vendor's beside the answer",
        "prediction": "it makes the vendor's sampling faster, and the answer no other",
        "prompt_cache_key": VENDOR_CACHE,
        "prompt_cache_options": VENDOR_CACHE,
        "prompt_cache_retention": VENDOR_CACHE,
        "safety_identifier": VENDOR_RECORDS,
        "service_tier": VENDOR_SERVING,
        "store": VENDOR_RECORDS,
    },
    ENGINE_REFUSED
    | {
        "audio": FieldRefusal("is not served: the model answers in text"),
        "function_call": FieldRefusal("is not served: use tool_choice", ("none", "auto")),
        "functions": FieldRefusal("is not served: use tools"),
        "modalities": FieldRefusal("is not served: the model answers in text", (["text"],)),
        "return_prompt_text": FieldRefusal(NOT_SHOWN),
        "verbosity": FieldRefusal("is not served: say in the prompt how long answers are to be", ("medium",)),
        "web_search_options": FieldRefusal("is not served: nothing is searched here; give the agent a tool for it"),
    },
)  # fmt: skip
CHAT_MESSAGE = FieldTable(
    "messages.",
    frozenset({
        "content", "name", "reasoning", "reasoning_content", "refusal", "role", "task", "tool_call_id", "tool_calls",
    }),
    {
        "annotations": "they point at sources whose text is in the content",
        "cache_control": VENDOR_CACHE,
        "index": "clients number the answers that they send back",
    },
    {
        "audio": FieldRefusal("is not served: the model's answers are text; send what was said as content"),
        "function_call": FieldRefusal("is not served: use tool_calls"),
        "prefix": FieldRefusal("is not served: use continue_final_message"),
    },
)  # fmt: skip
"""Fields of a message; one that is in no table is left out, and logged."""
COMPLETIONS = FieldTable(
    "",
    ENGINE_SAMPLING | {"prompt"},
    ENGINE_HARMLESS,
    ENGINE_REFUSED
    | {
        "best_of": FieldRefusal("is not served: ask for n answers, and choose among them", (1,)),
        "prompt_embeds": FieldRefusal(
            "is not served: a prompt without tokens cannot be recorded; send text or token ids"
        ),
        "suffix": FieldRefusal("is not served: vLLM does not fill in; put it into the prompt"),
    },
)
STREAM_OPTIONS = FieldTable(
    "stream_options.",
    frozenset({"include_usage"}),
    {"include_obfuscation": "it only hides how long the pieces of a stream are"},
    {"continuous_usage_stats": FieldRefusal("is not served: a stream says its usage at its end")},
)

ONE_ANSWER = {
    "n": FieldRefusal("is not served: an answer of this API is one", (1,)),
    "logprobs": FieldRefusal("is not served: an answer of this API has none; use Chat Completions"),
    "top_logprobs": FieldRefusal("is not served: an answer of this API has no log-probabilities; use Chat Completions"),
    "return_token_ids": FieldRefusal("is not served: an answer of this API has none; use Chat Completions"),
    "return_tokens_as_token_ids": FieldRefusal("is not served: an answer of this API has none; use Chat Completions"),
}
"""Fields of a chat that have no use where the answer takes another form."""
RESPONSES = FieldTable(
    "",
    frozenset({
        "include", "input", "instructions", "max_output_tokens", "parallel_tool_calls", "previous_response_id",
        "reasoning", "stream", "stream_options", "text", "tool_choice", "tools",
    }),
    {
        "access_programs": VENDOR_SERVING,
        "client_metadata": VENDOR_RECORDS,
        "context_management": WHOLE_CONTEXT,
        "image": VENDOR_TOOLS,
        "max_tool_calls": "it bounds calls of the vendor's own tools, and none runs here",
        "metadata": VENDOR_RECORDS,
        "moderation": "it is a check of the vendor's beside the answer",
        "prompt_cache_key": VENDOR_CACHE,
        "prompt_cache_options": VENDOR_CACHE,
        "prompt_cache_retention": VENDOR_CACHE,
        "safety_identifier": VENDOR_RECORDS,
        "service_tier": VENDOR_SERVING,
        "store": "responses of a rollout are kept to its end",
        "truncation": WHOLE_CONTEXT,
    },
    {
        "background": FieldRefusal("needs a service that keeps state; wait for the answer, or stream it"),
        "conversation": FieldRefusal("needs a service that keeps state; send the whole input instead"),
        "prompt": FieldRefusal("needs a service that keeps state; send the whole input instead"),
        **ONE_ANSWER,
    },
)  # fmt: skip
RESPONSES_STREAM_OPTIONS = FieldTable("stream_options.", frozenset(), STREAM_OPTIONS.harmless)
RESPONSES_REASONING = FieldTable(
    "reasoning.",
    frozenset({"effort"}),
    {
        "context": "the chat template decides which earlier thoughts the model sees",
        "generate_summary": WHOLE_THOUGHTS,
        "summary": WHOLE_THOUGHTS,
    },
    {"mode": FieldRefusal("is not served: there is one way to think; use effort", ("standard",))},
)
RESPONSES_TEXT = FieldTable("text.", frozenset({"format"}), {}, {"verbosity": CHAT.refused["verbosity"]})
RESPONSES_INCLUDE = FieldTable(
    "include: ",
    frozenset(),
    {
        "code_interpreter_call.outputs": VENDOR_TOOLS,
        "computer_call_output.output.image_url": VENDOR_TOOLS,
        "file_search_call.results": VENDOR_TOOLS,
        "message.input_image.image_url": "the agent has the images that it sends",
        "reasoning.encrypted_content": "each thought has it",
        "web_search_call.action.sources": VENDOR_TOOLS,
        "web_search_call.results": VENDOR_TOOLS,
    },
    {"message.output_text.logprobs": ONE_ANSWER["logprobs"]},
)
"""Values of ``include``, not fields."""
MESSAGES = FieldTable(
    "",
    frozenset({
        "messages", "output_config", "output_format", "stop_sequences", "stream", "system", "thinking", "tool_choice",
        "tools",
    }),
    {
        "betas": "what they allow has fields of its own",
        "billing_policy": VENDOR_RECORDS,
        "cache_control": VENDOR_CACHE,
        "context_management": WHOLE_CONTEXT,
        "diagnostics": VENDOR_CACHE,
        "fallback_credit_token": VENDOR_RECORDS,
        "fallbacks": "no model here declines for a policy of the vendor's",
        "inference_geo": VENDOR_SERVING,
        "metadata": VENDOR_RECORDS,
        "service_tier": VENDOR_SERVING,
        "speed": VENDOR_SERVING,
        "user_profile_id": VENDOR_RECORDS,
        "workspace_id": VENDOR_RECORDS,
    },
    {
        "compaction": FieldRefusal("is not served: nothing is summarised here; ask for a summary in a message"),
        "container": FieldRefusal("is not served: no code runs here; run it in the agent"),
        "mcp_servers": FieldRefusal("is not served: no tools are called here; call them in the agent"),
        "thread": FieldRefusal("is not served: no conversation is kept here; send all of it with each call"),
        **ONE_ANSWER,
    },
)  # fmt: skip
MESSAGES_OUTPUT_CONFIG = FieldTable(
    "output_config.",
    frozenset({"effort", "format"}),
    {},
    {"task_budget": FieldRefusal("is not served: no budget is told to the model; say it in the prompt")},
)
MESSAGES_THINKING = FieldTable(
    "thinking.",
    frozenset({"type"}),
    {
        "block_binding": "thoughts that come back are taken as they are",
        "budget_tokens": "max_tokens bounds thoughts and answer together",
        "display": WHOLE_THOUGHTS,
    },
)
MESSAGES_TOOL_CHOICE = FieldTable("tool_choice.", frozenset({"disable_parallel_tool_use", "name", "type"}))
MESSAGES_TOOL = FieldTable(
    "tools.",
    frozenset({"defer_loading", "description", "input_schema", "name", "strict", "type"}),
    {
        "cache_control": VENDOR_CACHE,
        "eager_input_streaming": "it says in which pieces a stream comes",
    },
    {
        "allowed_callers": FieldRefusal("is not served: no code of the vendor's calls tools here", (["direct"],)),
        "input_examples": FieldRefusal("is not served: put examples into the description"),
    },
)
