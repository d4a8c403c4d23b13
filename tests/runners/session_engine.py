"""An engine that plays a coding agent's session: real tokens of a template, answers by script, summaries when asked."""

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import jinja2
from aiohttp import web

from tests.runners.chat_templates import STRICT, RenderingEngine, render_text

PIECES = re.compile(r"<\|im_\w+\|>|</?tool_call>|\w+|\W")
END = "<|im_end|>"
SUMMARY = "So far a.txt was read and mended; the tests were run. Next: go on with the list."
DELEGATED = "look at a.txt for me"
"""Words of a task that an agent gives to another."""
SUMMARY_WORDS = (
    "detailed summary of the conversation", "CONTEXT CHECKPOINT COMPACTION", "context-aware state summary",
    "anchored summary",
)  # fmt: skip
"""Words of the harnesses' requests for a summary."""


@dataclass(frozen=True)
class Step:
    """An answer: text, and calls of tools as (name, arguments)."""

    text: str = ""
    calls: Sequence[tuple[str, str]] = ()
    is_interrupted: bool = False
    """The answer does not end before its client leaves."""
    thought: str = ""
    """The model thinks this before it answers."""


DONE = Step("done")


def call(name: str, **arguments: Any) -> Step:
    """An answer that calls a tool."""
    return Step(calls=[(name, json.dumps(arguments))])


def split(text: str) -> tuple[list[int], list[str]]:
    """Divide a text into tokens whose borders do not depend on what follows."""
    pieces = PIECES.findall(text)
    return [crc32(piece.encode()) for piece in pieces], pieces


def join_texts(content: Any) -> Any:
    """Join parts of text as vLLM does for a template of plain contents; raise `jinja2.TemplateError` for an image."""
    if not isinstance(content, list):
        return content
    if any(part.get("type") != "text" for part in content):
        raise jinja2.TemplateError("it is not a multimodal model")
    return "\n".join(part["text"] for part in content)


def wants_summary(messages: Sequence[Any]) -> bool:
    """Whether a harness asks for a summary of its conversation, since the last answer or by its instructions."""
    since = next((at for at in reversed(range(len(messages))) if messages[at]["role"] == "assistant"), 0)
    return any(word in str([messages[0], *messages[since + 1 :]]) for word in SUMMARY_WORDS)


class SessionEngine(RenderingEngine):
    """Plays one step after another, where the agent has the step's tools, and then says that it is done."""

    def __init__(self, steps: Sequence[Step], others: Sequence[Step] = (), max_model_len: int = 200_000) -> None:
        """Prepare a session; ``others`` are the steps of an agent that is asked `DELEGATED`."""
        super().__init__(STRICT, max_model_len=max_model_len)
        self.steps, self.others = list(steps), list(others)
        self.num_refused = self.num_full = 0
        """Chats that the template refused, and prompts that left no room."""
        self._vocabulary: dict[int, str] = {}
        self.tools: set[str] = set()
        """All tools that the agent has offered."""
        self.num_summaries = 0
        self.is_amid = asyncio.Event()
        """Set while an answer waits for its client to leave."""
        self.unknown: list[str] = []
        """Tools that a step calls and the agent does not have."""

    def choose(self, body: dict[str, Any]) -> Step:
        """Choose the answer to a request."""
        tools = {tool["function"]["name"] for tool in body.get("tools") or ()}
        self.tools |= tools
        if wants_summary(body["messages"]):
            self.num_summaries += 1
            return Step(f"<summary>{SUMMARY} This is part {self.num_summaries} of the story.</summary>")
        is_other = any(m["role"] == "user" and DELEGATED in str(m.get("content")) for m in body["messages"])
        steps = self.others if is_other else self.steps
        if not tools or not steps:
            return DONE
        step = steps.pop(0)
        self.unknown += [name for name, _ in step.calls if name not in tools]
        return step

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """Join the strings of tokens that it has seen."""
        return "".join(self._vocabulary[token] for token in token_ids)

    async def tokenize(self, request: web.Request) -> web.Response:
        """Render a chat, or divide a text, into tokens and their strings."""
        body = await request.json()
        self.num_rendered += 1
        try:
            text = self._render(body) if "messages" in body else body["prompt"]
        except jinja2.TemplateError as error:
            return web.json_response({"error": {"message": str(error)}}, status=400)
        tokens, pieces = split(text)
        return web.json_response({"tokens": tokens, "token_strs": pieces if body.get("return_token_strs") else None})

    def _render(self, body: dict[str, Any]) -> str:
        messages = [{**message, "content": join_texts(message.get("content"))} for message in body["messages"]]
        return render_text(self.template, messages, body.get("add_generation_prompt", True))

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Sample the next step as tokens of its rendering."""
        body = await request.json()
        try:
            prompt_text = self._render(body)
        except jinja2.TemplateError as error:
            self.num_refused += 1
            return web.json_response({"error": {"message": str(error)}}, status=400)
        token_prompt = (body.get("kv_transfer_params") or {}).get("prompt_token_ids")
        rendered, prompt_pieces = split(prompt_text)
        prompt = token_prompt or rendered
        limit = body.get("max_tokens") or body.get("max_completion_tokens") or 0
        if self.max_model_len is not None and len(prompt) + limit > self.max_model_len:
            self.num_full += len(prompt) >= self.max_model_len
            return web.json_response({"error": {"message": "the model's maximum context length is less"}}, status=400)
        self.requests.append(body)
        step, number = self.choose(body), len(self.requests)
        calls = [
            {
                "index": at,
                "id": f"call_{number}_{at}",
                "type": "function",
                "function": {"name": name, "arguments": args},
            }
            for at, (name, args) in enumerate(step.calls)
        ]
        message = {"role": "assistant", "content": step.text or None, **({"tool_calls": calls} if calls else {})}
        whole = self._render({"messages": [*body["messages"], message], "add_generation_prompt": False})
        sampled = whole[len(prompt_text) : whole.rindex(END) + len(END)]
        tokens, pieces = split(sampled)
        self._vocabulary |= zip([*rendered, *tokens], [*prompt_pieces, *pieces], strict=True)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        half = max(len(tokens) // 2, 1)
        head = {"weight_version": 3, "id": f"chatcmpl-{number:032x}", "object": "chat.completion.chunk"}
        head |= {"model": "policy", "created": 1}
        await self._send(response, head, {"role": "assistant", "content": None}, tokens[:half], pieces[:half], prompt)
        if step.is_interrupted:
            self.is_amid.set()
            assert request.transport is not None
            while request.transport is not None and not request.transport.is_closing():
                await asyncio.sleep(0.02)
            return response
        reason = "tool_calls" if calls else "stop"
        await self._send(response, head, message, tokens[half:], pieces[half:], None, reason)
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(tokens)}
        usage["total_tokens"] = len(prompt) + len(tokens)
        await response.write(f"data: {json.dumps({**head, 'choices': [], 'usage': usage})}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response

    @staticmethod
    async def _send(
        response: web.StreamResponse,
        head: dict[str, Any],
        delta: dict[str, Any],
        tokens: list[int],
        pieces: list[str],
        prompt: list[int] | None,
        reason: str | None = None,
    ) -> None:
        logprobs = {"content": [{"token": piece, "logprob": -0.5} for piece in pieces]}
        choice = {"index": 0, "delta": delta, "token_ids": tokens, "logprobs": logprobs, "finish_reason": reason}
        chunk = {**head, "choices": [choice], "prompt_token_ids": prompt}
        await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
