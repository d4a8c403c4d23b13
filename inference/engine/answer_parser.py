"""A route in vLLM's server that parses a whole answer, whose tokens were streamed.

Streaming parsers see an answer piece by piece, and differ from those for whole texts. So the answer of an agent that
asked for no stream is parsed once more, by the code that makes vLLM's own unstreamed answer. vLLM's own route for that
(``/v1/chat/completions/derender``, 0.31) keeps end tokens and the text after a stop string, and no tool's finish
reason.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

from lightningbus.schemas.fleet import PARSE_PATH

MIDDLEWARE = f"{__name__}.AnswerParser"
"""The value of vLLM's ``--middleware`` that adds the route."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]


class AnswerParser:
    """ASGI middleware that serves `PARSE_PATH`, and passes everything else on."""

    def __init__(self, app: AsgiApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request with one server-sent event, as a streamed answer of one chunk."""
        if scope["type"] != "http" or scope["path"] != PARSE_PATH:
            await self._app(scope, receive, send)
            return
        from starlette.requests import Request
        from starlette.responses import JSONResponse, Response

        response: Response
        try:
            choices = await parse(scope["app"].state.openai_serving_chat, await Request(scope, receive).json())
            event = f"data: {json.dumps({'choices': choices})}\n\ndata: [DONE]\n\n"
            response = Response(event, media_type="text/event-stream")
        except Exception as error:  # of the request, or of a parser
            message = f"the answer cannot be parsed: {type(error).__name__}: {error}"
            response = JSONResponse({"error": {"message": message, "code": 400}}, status_code=400)
        await response(scope, receive, send)


async def parse(chat: Any, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Parse each choice into message and finish reason, as vLLM's chat route answers ``request`` without a stream.

    ``chat``: vLLM's ``OpenAIServingChat``. A choice has ``index``, ``token_ids``, ``finish_reason`` as the engine gave
    it, and ``stop_reason``.
    """
    from vllm.entrypoints.generate.base.protocol import RequestResponseMetadata
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.outputs import CompletionOutput, RequestOutput

    prompt_ids = body["prompt_token_ids"]
    request = ChatCompletionRequest.model_validate({
        **body["request"],
        "logprobs": False,
        "top_logprobs": None,
        "return_token_ids": False,
        "kv_transfer_params": {"prompt_token_ids": prompt_ids},  # so that nothing is rendered again
    })  # fmt: skip
    rendered = await chat.online_renderer.render_chat(request)  # the parsers adjust the request here
    if not isinstance(rendered, tuple):
        raise ValueError(rendered.error.message)
    tokenizer = chat.renderer.tokenizer
    outputs = [
        CompletionOutput(
            index=choice["index"],
            text=detokenize(tokenizer, request, prompt_ids, choice),
            token_ids=choice["token_ids"],
            cumulative_logprob=None,
            logprobs=None,
            finish_reason=choice["finish_reason"],
            stop_reason=choice["stop_reason"],
        )
        for choice in body["choices"]
    ]
    whole = RequestOutput("parse", None, prompt_ids, None, outputs, finished=True)
    kwargs = chat._effective_chat_template_kwargs(request)
    response = await chat.chat_completion_full_generator(
        request,
        _once(whole),
        "parse",
        str(request.model),
        rendered[0],
        tokenizer,
        RequestResponseMetadata(request_id="parse"),
        parser=chat._make_parser(request, tokenizer, kwargs) if chat.parser_cls is not None else None,
    )
    return [
        {
            "index": choice.index,
            "message": choice.message.model_dump(exclude_none=True),
            "finish_reason": choice.finish_reason,
        }
        for choice in response.choices
    ]


def detokenize(tokenizer: Any, request: Any, prompt_ids: list[int], choice: dict[str, Any]) -> str:
    """Decode an answer by vLLM's own detokenizer: without its end token, and up to a stop string."""
    tokens = choice["token_ids"]
    detokenizer = new_detokenizer(tokenizer, request, prompt_ids, len(tokens))
    ends_by_token = choice["finish_reason"] == "stop" and not isinstance(choice["stop_reason"], str)
    detokenizer.update(tokens, ends_by_token)
    return str(detokenizer.get_next_output_text(finished=True, delta=False))


def new_detokenizer(tokenizer: Any, request: Any, prompt_ids: list[int], num_tokens: int) -> Any:
    """Make vLLM's own detokenizer for an answer of so many tokens."""
    from vllm.v1.engine import EngineCoreRequest
    from vllm.v1.engine.detokenizer import IncrementalDetokenizer

    return IncrementalDetokenizer.from_new_request(
        tokenizer,
        EngineCoreRequest(
            request_id="parse",
            prompt_token_ids=prompt_ids,
            mm_features=None,
            sampling_params=request.to_sampling_params(max(num_tokens, 1), {}),
            pooling_params=None,
            arrival_time=0.0,
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
        ),
    )


async def _once(item: Any) -> AsyncIterator[Any]:
    yield item
