"""A real vLLM without a model, whose answers follow a script: template, checks and parsers are vLLM's own."""

import json
import re
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, Qwen2Config

from lightningbus.inference.engine.base import EngineResponse, Forward
from lightningbus.inference.engine.vllm_engine import VllmEngine
from lightningbus.inference.settings import InferenceSettings
from tests.runners import played_core
from tests.runners.played_core import ANSWER
from tests.runners.scripted_vllm import CHATS
from tests.runners.session_engine import DONE, Step

CONTEXT = 200_000
ADDED_TOKENS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]
"""Tokens of Qwen3's that are not special."""


def make_model(tokenizer: Path, directory: Path, template: str) -> Path:
    """Make the directory of a model with another one's tokens, a template and an empty file of weights."""
    tokens = AutoTokenizer.from_pretrained(tokenizer)
    tokens.chat_template = template
    tokens.add_tokens(ADDED_TOKENS)
    tokens.save_pretrained(directory)
    config = Qwen2Config(
        vocab_size=len(tokens), hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=CONTEXT, bos_token_id=None, eos_token_id=tokens.eos_token_id,
        dtype="float32", architectures=["Qwen2ForCausalLM"],
    )  # fmt: skip
    config.save_pretrained(directory)
    (directory / "model.safetensors").touch()
    return directory


class PlayedVllm(VllmEngine):
    """Answers chats that have tools by one step after another, and then says that it is done."""

    def __init__(self, settings: InferenceSettings) -> None:
        command = [sys.executable, "-P", str(played_core.__file__)]
        super().__init__(settings.model_copy(update={"vllm_command": command}))
        self.steps: list[Step] = []
        self._last = DONE

    def begin(self, steps: Sequence[Step], thought: str = "") -> None:
        """Begin a session, whose last answers have a thought."""
        self.steps, self._last = list(steps), replace(DONE, thought=thought)

    @property
    def forward(self) -> Forward:
        """Pass a request on, a chat with the text of its answer."""
        to_vllm = super().forward

        @asynccontextmanager
        async def forward(
            method: str, path: str, body: bytes | None, headers: Mapping[str, str]
        ) -> AsyncIterator[EngineResponse]:
            is_step = False
            if path == CHATS and body is not None:
                chat = json.loads(body)
                is_step = bool(chat.get("tools") and self.steps)
                text = write(self.steps[0] if is_step else self._last, chat)
                body = json.dumps({**chat, "vllm_xargs": {ANSWER: text}}).encode()
            async with to_vllm(method, path, body, headers) as response:
                if response.status == 200:
                    self.steps = self.steps[is_step:]
                yield response

        return forward


def write(step: Step, chat: dict[str, Any]) -> str:
    """Write a step in the form of hermes; the name of a tool stands for the offered tool that ends with it."""
    thought = f"<think>\n{step.thought}\n</think>\n\n" if step.thought else ""
    calls = [
        f'<tool_call>\n{{"name": "{find_tool(name, chat)}", "arguments": {arguments}}}\n</tool_call>'
        for name, arguments in step.calls
    ]
    return thought + "\n".join([*([step.text] if step.text else []), *calls])


def find_tool(name: str, chat: dict[str, Any]) -> str:
    """Find the whole name of a tool: in the list of a chat, or in its messages, where a search of tools found it."""
    offered = [tool["function"]["name"] for tool in chat["tools"]]
    in_messages = re.findall(
        r'"name": "([\w.-]+)"', " ".join(str(message.get("content")) for message in chat["messages"])
    )
    return next((each for each in [*offered, *in_messages] if re.search(rf"(^|[_.-]){name}$", each)), name)
