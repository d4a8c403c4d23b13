"""A teacher over HTTP: vLLM, which scores the tokens of a prompt."""

import asyncio
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import msgspec
import numpy as np

from lightningbus.learner.errors import LearnerError
from lightningbus.learner.rollouts.teacher_scores import TeacherScores
from lightningbus.learner.settings.loss_parts import TeacherSettings
from lightningbus.schemas.text import shorten_line

WRONG_KEY = 401
"""Status with which a server says that waiting does not help; a proxy before the server may give any other one."""
UNSCORABLE = (400, 413, 422)
"""Statuses of a prompt that the teacher cannot score, as one beyond its context."""
PROBE_TOKENS = 2000
"""Most tokens of the vocabulary whose text both tokenizers are compared on."""
SAMPLE = "Grüße, 你好, مرحبا 👋🏽\n\tdef f(x):  return x**2 # 1234567.89"


M = TypeVar("M")


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

    async def score(self, address: str, token_ids: Sequence[int]) -> TeacherScores:
        """Return the scores of each token after those before it; the first has none.

        Raises `TeacherUnreachableError`, `UnscorableError`, and `LearnerError` where the server refuses the key.
        """
        data = await self._post(address, "/v1/completions", self._body(token_ids))
        return await asyncio.to_thread(_read_scores, data, address, token_ids, self._settings.top_k)

    async def check(self, address: str, model_path: Path) -> None:
        """Raise `LearnerError` for a server that can be no teacher of the model in ``model_path``.

        It has to read text as the same tokens, and to give ``top_k`` log-probabilities.
        """
        text, expected = await asyncio.to_thread(_make_probe, model_path)
        body = {"prompt": text, "add_special_tokens": False}
        try:
            actual = _decode(await self._post(address, "/tokenize", body), _Tokenized, address).tokens
        except UnscorableError as error:
            raise LearnerError(f"the teacher at {address} does not tokenize a text: {error}") from error
        if actual != expected:
            raise LearnerError(
                f"the teacher at {address} has another tokenizer than {model_path}: it reads a text of "
                f"{len(expected)} tokens as {_describe(actual, expected)}. A teacher scores the student's tokens, so "
                "take one of the same family"
            )
        top_k = self._settings.top_k
        if not top_k:
            return
        try:
            await self._post(address, "/v1/completions", self._body([0, 0]))
        except UnscorableError as error:
            raise LearnerError(
                f"teacher.top_k: the teacher at {address} gives no {top_k} log-probabilities of a token: start its "
                f"server with --max-logprobs {top_k}, or take a smaller top_k ({error})"
            ) from error

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    def _body(self, token_ids: Sequence[int]) -> dict[str, Any]:
        top_k = self._settings.top_k
        return {"prompt": list(token_ids), "max_tokens": 1, "temperature": 1.0, "prompt_logprobs": top_k}

    async def _post(self, address: str, path: str, body: dict[str, Any]) -> bytes:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=self._settings.timeout_seconds)
            self._session = aiohttp.ClientSession(timeout=timeout, headers=self._headers)
        body = {**body, "model": self._model} if self._model else body
        url = address.rstrip("/").removesuffix("/v1") + path
        try:
            async with self._session.post(url, json=body) as response:
                data = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise TeacherUnreachableError(f"{url}: {error or type(error).__name__}") from error
        text = shorten_line(data.decode(errors="replace"), 200) if response.status != 200 else ""
        if response.status in UNSCORABLE:
            raise UnscorableError(text)
        if response.status == WRONG_KEY:
            raise LearnerError(f"the teacher at {url} answers {response.status}: {text}")
        if response.status != 200:
            raise TeacherUnreachableError(f"{url} answers {response.status}: {text}")
        return data


class _Entry(msgspec.Struct):
    logprob: float


class _Choice(msgspec.Struct):
    prompt_logprobs: list[dict[int, _Entry] | None]


class _Completion(msgspec.Struct):
    choices: list[_Choice]


class _Tokenized(msgspec.Struct):
    tokens: list[int]


def _decode(data: bytes, kind: type[M], address: str) -> M:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TeacherUnreachableError(f"{address} does not answer as vLLM's OpenAI server: {error}") from error


def _read_scores(data: bytes, address: str, token_ids: Sequence[int], top_k: int) -> TeacherScores:
    """Read a completion's ``prompt_logprobs``: at each place the token's own, and those of the likeliest ones."""
    scores = TeacherScores.empty(len(token_ids), top_k)
    try:
        entries = _decode(data, _Completion, address).choices[0].prompt_logprobs
        for place, (token, by_id) in enumerate(zip(token_ids, entries, strict=True)):
            if place == 0 or by_id is None:
                continue
            scores.logprobs[place] = by_id[token].logprob
            best = sorted((-entry.logprob, id) for id, entry in by_id.items())[:top_k]
            for rank, (cost, id) in enumerate(best):
                scores.top_ids[place, rank], scores.top_logprobs[place, rank] = id, -cost
    except (LookupError, ValueError) as error:
        raise TeacherUnreachableError(f"{address} gives prompt_logprobs of other tokens than the prompt's") from error
    except OverflowError as error:
        raise TeacherUnreachableError(f"{address} gives token ids beyond 32 bits, which no vocabulary has") from error
    scores.logprobs[~np.isfinite(scores.logprobs)] = np.nan
    return scores


def _make_probe(model_path: Path) -> tuple[str, list[int]]:
    """Return a text with every special token and many others of a model, and its tokens."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_path)
    step = max(1, len(tokenizer) // PROBE_TOKENS)
    special = "".join(str(token) for token in tokenizer.get_added_vocab())
    text = SAMPLE + special + str(tokenizer.decode(list(range(0, len(tokenizer), step))))
    return text, list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def _describe(actual: Sequence[int], expected: Sequence[int]) -> str:
    num_equal = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(actual, expected, strict=False))))
    return f"{len(actual)} tokens, of which number {num_equal} is the first to differ"
