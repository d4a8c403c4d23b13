"""Checks the calls of a dry run against vLLM's own server, with an engine that computes nothing."""

import json
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightningbus.inference.engine.base import Engine, EngineError
from lightningbus.inference.engine.parser_trial import MIDDLEWARE
from lightningbus.inference.engine.vllm_engine import VllmEngine
from lightningbus.inference.settings import InferenceSettings
from lightningbus.run.errors import UserError
from lightningbus.runners.protocol.request import TOKEN_LIMITS
from lightningbus.schemas.text import shorten_line

ADVICE = {
    "--tool-call-parser": "set inference.tool_parser, which says how the model writes that it calls a tool",
    "max_model_len": "ask for fewer tokens, or raise inference.max_model_len",
    "maximum context length": "ask for fewer tokens, or raise inference.max_model_len",
    "maximum model length": "ask for fewer tokens, or raise inference.max_model_len",
    "chat template": "take a model whose template fits, or name one by --chat-template in inference.vllm_args",
}
"""Advice by words in vLLM's error message."""


class VllmStartError(UserError):
    """The server of a node's vLLM does not start here."""


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A request as a node receives it."""

    path: str
    body: dict[str, Any]


@asynccontextmanager
async def scripted_vllm(node: InferenceSettings, models: Sequence[str]) -> AsyncIterator[Engine]:
    """Run a node's vLLM server, with its parsers, template and limits but without a model, while the block runs.

    It serves all ``models``. Raises `VllmStartError`.
    """
    work = Path(tempfile.mkdtemp(prefix="lightningbus-dry-run-"))
    python = str(node.python_executable or sys.executable)
    scripted = node.model_copy(
        update={
            "vllm_command": [python, "-P", "-m", "lightningbus.inference.engine.scripted_core"],
            "vllm_args": [*node.vllm_args, "--middleware", MIDDLEWARE, "--served-model-name", *models],
            "model": models[0],
            "lora": None,
            "frozen": True,  # there are no weights to take
            "work_dir": work,
        }
    )
    async with VllmEngine(scripted) as engine:
        try:
            await engine.start()
        except EngineError as error:
            raise VllmStartError(f"{node.model_path}: vLLM would not start: {error}") from error  # which names its log
        try:
            yield engine
        finally:
            shutil.rmtree(work, ignore_errors=True)


async def find_refusals(engine: Engine, calls: Iterable[ModelCall]) -> AsyncIterator[str]:
    """Yield a sentence for each call that vLLM refuses."""
    for call in calls:
        body = call.body
        if "messages" in body:  # a runner bounds what a chat asks for by what the context has left
            body = {name: value for name, value in body.items() if name not in TOKEN_LIMITS}
        status, text = await post(engine, call.path, body)
        if status >= 400:
            yield explain(status, text)


def explain(status: int, text: str) -> str:
    """Describe an error answer of vLLM in a sentence, with advice. Pure."""
    try:
        message = str(json.loads(text)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        message = text
    message = shorten_line(message, 300).rstrip(".")
    advice = next((advice for words, advice in ADVICE.items() if words in message), "")
    return f"vLLM answers {status}: {message}" + (f"; {advice}" if advice else "")


async def post(engine: Engine, path: str, body: dict[str, Any]) -> tuple[int, str]:
    """Post a request; return status and text of the answer. Raises `VllmStartError` where vLLM has ended."""
    headers = {"Connection": "close", "Content-Type": "application/json"}
    try:
        async with engine.forward("POST", path, json.dumps(body).encode(), headers) as response:
            return response.status, (await response.read()).decode()
    except EngineError as error:
        raise VllmStartError(f"vLLM ended amid the checks: {error}") from error
