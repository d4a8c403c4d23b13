"""A route in a scripted vLLM server that tells which tool parsers read a call, whole and token by token."""

import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from typing import Any

from lightningbus.inference.engine.answer_parser import new_detokenizer

MIDDLEWARE = f"{__name__}.ParserTrial"
"""The value of vLLM's ``--middleware`` that adds the route."""
TRIAL_PATH = "/lightningbus/parser_trial"

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]


class ParserTrial:
    """ASGI middleware that serves `TRIAL_PATH`, and passes everything else on."""

    def __init__(self, app: AsgiApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with the names of the parsers that read the call, of which the server's own is the empty one."""
        if scope["type"] != "http" or scope["path"] != TRIAL_PATH:
            await self._app(scope, receive, send)
            return
        from starlette.requests import Request
        from starlette.responses import JSONResponse

        body = await Request(scope, receive).json()
        response = JSONResponse({"fitting": list(find_fitting(scope["app"].state.openai_serving_chat, body))})
        await response(scope, receive, send)


def find_fitting(chat: Any, body: dict[str, Any]) -> Iterator[str]:
    """Yield the empty name where the server's own parser fits, else the names of all that do.

    ``chat``: vLLM's ``OpenAIServingChat``. ``body`` has a chat's ``request``, ``prompt_token_ids``, ``token_ids`` of an
    answer that calls one tool, the call's ``name`` and ``arguments``, and the server's ``reasoning_parser``.
    """
    from vllm.parser import ParserManager
    from vllm.tool_parsers import ToolParserManager

    if _reads(chat, chat.parser_cls, body):
        yield ""
        return
    reasoning = body["reasoning_parser"]
    for name in ToolParserManager.list_registered():
        try:
            kind = ParserManager.get_parser(name, reasoning, enable_auto_tools=True)
        except Exception:  # it needs a package that is not here
            continue
        if _reads(chat, kind, body):
            yield name


def _reads(chat: Any, kind: Any, body: dict[str, Any]) -> bool:
    """Return whether a parser reads the call in both ways."""
    expected = [(body["name"], body["arguments"])]
    try:
        return all(_load(parse(chat, kind, body)) == expected for parse in (_parse_whole, _parse_stream))
    except Exception:  # parsers raise anything at a text of another form
        return False


def _parse_whole(chat: Any, kind: Any, body: dict[str, Any]) -> list[tuple[str, str]]:
    request, parser, tokens = _prepare(chat, kind, body)
    detokenizer = new_detokenizer(chat.renderer.tokenizer, request, body["prompt_token_ids"], len(tokens))
    detokenizer.update(tokens, True)
    text = detokenizer.get_next_output_text(finished=True, delta=False)
    _, _, calls = parser.parse(text, request, enable_auto_tools=True, model_output_token_ids=tokens)
    return [(call.name, call.arguments) for call in calls or ()]


def _parse_stream(chat: Any, kind: Any, body: dict[str, Any]) -> list[tuple[str, str]]:
    request, parser, tokens = _prepare(chat, kind, body)
    prompt = body["prompt_token_ids"]
    detokenizer = new_detokenizer(chat.renderer.tokenizer, request, prompt, len(tokens))
    calls: dict[int, list[str]] = {}
    for number, token in enumerate(tokens, 1):
        is_last = number == len(tokens)
        detokenizer.update([token], is_last)
        text = detokenizer.get_next_output_text(finished=is_last, delta=True)
        delta = parser.parse_delta(text, [token], request, prompt_token_ids=prompt, finished=is_last)
        for piece in (delta.tool_calls if delta is not None else None) or ():
            call = calls.setdefault(piece.index, ["", ""])
            if piece.function is not None:
                call[0] = piece.function.name or call[0]
                call[1] += piece.function.arguments or ""
    return [(name, arguments) for name, arguments in calls.values()]


def _prepare(chat: Any, kind: Any, body: dict[str, Any]) -> tuple[Any, Any, list[int]]:
    """Make a request as the parser changes it, a new parser, and the answer's tokens up to the end token."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    request = ChatCompletionRequest.model_validate(body["request"])
    tokenizer, tokens = chat.renderer.tokenizer, list(body["token_ids"])
    kwargs = chat._effective_chat_template_kwargs(request)
    parser = kind(tokenizer, request.tools, chat_template_kwargs=kwargs, model_config=chat.model_config)
    end = tokenizer.eos_token_id
    tokens = tokens[: tokens.index(end)] if end in tokens else tokens
    return parser.adjust_request(request), parser, [*tokens, end if end is not None else 0]


def _load(calls: Iterable[tuple[str, str]]) -> list[tuple[str, Any]]:
    return [(name, json.loads(arguments)) for name, arguments in calls]
