"""A teacher over HTTP: vLLM, which scores the tokens of a prompt."""

import asyncio
import json
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from lightningbus.learner.errors import LearnerError
from lightningbus.learner.settings.loss_parts import TeacherSettings
from lightningbus.learner.trainer import Floats

AGAIN = (408, 409, 425, 429)
"""Statuses below 500 with which a server asks to try again."""
UNSCORABLE = (400, 413, 422)
"""Statuses of a prompt that the teacher cannot score, as one beyond its context."""
PROBE_TOKENS = 2000
"""Most tokens of the vocabulary whose text both tokenizers are compared on."""
SAMPLE = "Grüße, 你好, مرحبا 👋🏽\n\tdef f(x):  return x**2 # 1234567.89"


class TeacherUnreachableError(Exception):
    """The teacher does not answer now, and may later."""


class UnscorableError(Exception):
    """The teacher will not score this sequence."""


class TeacherClient:
    """Requests to a teacher at the addresses that the caller finds."""

    def __init__(self, settings: TeacherSettings) -> None:
        self._settings = settings
        self._model = settings.model or settings.served_model
        self._headers = {}
        self._session: aiohttp.ClientSession | None = None
        if settings.api_key_file is not None:
            try:
                self._headers["Authorization"] = f"Bearer {settings.api_key_file.read_text().strip()}"
            except OSError as error:
                raise LearnerError(
                    f"teacher.api_key_file: {settings.api_key_file} cannot be read: {error.strerror}"
                ) from error

    async def score(self, address: str, token_ids: Sequence[int]) -> Floats:
        """Return ``float32[N]``: the log-probability of each token after those before it; NaN for the first.

        Raises `TeacherUnreachableError`, `UnscorableError`, and `LearnerError` where the server can be no teacher.
        """
        body = {"prompt": list(token_ids), "max_tokens": 1, "temperature": 1.0, "prompt_logprobs": 0}
        answer = await self._post(address, "/v1/completions", body)
        try:
            entries = answer["choices"][0]["prompt_logprobs"]
            pairs = zip(entries[1:], token_ids[1:], strict=True)
            values = [np.nan, *(float(entry[str(token)]["logprob"]) for entry, token in pairs)]
        except (LookupError, TypeError, ValueError) as error:
            raise LearnerError(
                f"the teacher at {address} gives no prompt_logprobs: it has to be vLLM's OpenAI server"
            ) from error
        scores = np.array(values, np.float32)
        scores[~np.isfinite(scores)] = np.nan
        return scores

    async def check_tokenizer(self, address: str, model_path: Path) -> None:
        """Raise `LearnerError` unless the teacher reads text as the tokens that the model in ``model_path`` does."""
        text, expected = await asyncio.to_thread(_make_probe, model_path)
        body = {"prompt": text, "add_special_tokens": False}
        try:
            answer = await self._post(address, "/tokenize", body)
        except UnscorableError as error:
            raise LearnerError(f"the teacher at {address} does not tokenize a text: {error}") from error
        actual = answer.get("tokens")
        if actual != expected:
            raise LearnerError(
                f"the teacher at {address} has another tokenizer than {model_path}: it reads a text of "
                f"{len(expected)} tokens as {_describe(actual, expected)}. A teacher scores the student's tokens, so "
                "take one of the same family"
            )

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def _post(self, address: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=self._settings.timeout_seconds)
            self._session = aiohttp.ClientSession(timeout=timeout, headers=self._headers)
        body = {**body, "model": self._model} if self._model else body
        url = address.rstrip("/").removesuffix("/v1") + path
        try:
            async with self._session.post(url, json=body) as response:
                text = await response.text()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise TeacherUnreachableError(f"{url}: {error or type(error).__name__}") from error
        if response.status >= 500 or response.status in AGAIN:
            raise TeacherUnreachableError(f"{url} answers {response.status}: {text[:200]}")
        if response.status in UNSCORABLE:
            raise UnscorableError(text[:200])
        if response.status != 200:
            raise LearnerError(f"the teacher at {url} answers {response.status}: {text[:200]}")
        try:
            answer = json.loads(text)
        except ValueError as error:
            raise TeacherUnreachableError(f"{url} answers no JSON") from error
        if not isinstance(answer, dict):
            raise TeacherUnreachableError(f"{url} answers no JSON object")
        return answer


def _make_probe(model_path: Path) -> tuple[str, list[int]]:
    """Return a text with every special token and many others of a model, and its tokens."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_path)
    step = max(1, len(tokenizer) // PROBE_TOKENS)
    special = "".join(str(token) for token in tokenizer.get_added_vocab())
    text = SAMPLE + special + str(tokenizer.decode(list(range(0, len(tokenizer), step))))
    return text, list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _describe(actual: object, expected: Sequence[int]) -> str:
    if not isinstance(actual, list):
        return "something that is no list of tokens"
    num_equal = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(actual, expected, strict=False))))
    return f"{len(actual)} tokens, of which number {num_equal} is the first to differ"
