"""Client of the reflecting model, at any OpenAI-compatible endpoint, which proposes better prompts."""

import asyncio
import os
from collections.abc import Sequence
from typing import Any

import aiohttp
from gepa.strategies.instruction_proposal import InstructionProposalSignature

from lightningbus.optimize.feedback import Record
from lightningbus.run.errors import UserError
from lightningbus.run.settings.optimize import ReflectionSettings
from lightningbus.schemas.text import shorten

RETRY_STATUS = frozenset({408, 409, 429, 500, 502, 503, 504})
RETRY_SECONDS = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
MAX_ERROR_CHARS = 300


def build_request(text: str, records: Sequence[Record]) -> str:
    """Return the request to the reflecting model: GEPA's instructions, the current prompt, and the examples."""
    rendered = InstructionProposalSignature.prompt_renderer(
        {"current_instruction_doc": text, "dataset_with_feedback": records, "prompt_template": None}
    )
    assert isinstance(rendered, str), "it is a list only with images"
    return rendered


def extract_prompt(answer: str) -> str:
    """Extract the proposed prompt from an answer; empty if there is none."""
    return InstructionProposalSignature.output_extractor(answer)["new_instruction"].strip()


class ReflectingModel:
    """One endpoint and model."""

    def __init__(self, settings: ReflectionSettings) -> None:
        """Read the API key from its environment variable; raises `UserError` if that is not set."""
        self._settings = settings
        key = os.environ.get(settings.api_key_env, "") if settings.api_key_env is not None else ""
        if settings.api_key_env is not None and not key:
            raise UserError(f"optimize.reflection.api_key_env: the variable {settings.api_key_env} is not set")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}

    async def ask(self, content: str) -> str:
        """Return the model's answer; raises `UserError` where it refuses, or does not answer after some tries."""
        body: dict[str, Any] = {"model": self._settings.model, "messages": [{"role": "user", "content": content}]}
        if self._settings.temperature is not None:
            body["temperature"] = self._settings.temperature
        timeout = aiohttp.ClientTimeout(total=self._settings.timeout)
        url = f"{self._settings.url.rstrip('/')}/chat/completions"
        async with aiohttp.ClientSession(timeout=timeout, headers=self._headers) as session:
            for pause in (*RETRY_SECONDS, None):
                try:
                    async with session.post(url, json=body) as response:
                        if response.status == 200:
                            return _content(await response.json(content_type=None))
                        problem = f"status {response.status}: {shorten(await response.text(), MAX_ERROR_CHARS)}"
                        if response.status not in RETRY_STATUS:
                            break
                except (aiohttp.ClientError, TimeoutError) as error:
                    problem = str(error) or type(error).__name__
                except (ValueError, LookupError, TypeError) as error:
                    reason = f"{type(error).__name__}: {error}"
                    problem = f"its answer is no chat completion: {shorten(reason, MAX_ERROR_CHARS)}"
                    break
                if pause is not None:
                    await asyncio.sleep(pause)
        raise UserError(f"the reflecting model at {self._settings.url} gives no answer: {problem}")


def _content(answer: object) -> str:
    if not isinstance(answer, dict):
        raise TypeError("it is no JSON object")
    content = answer["choices"][0]["message"]["content"]
    if not isinstance(content, str):
        raise TypeError("its message has no text")
    return content
