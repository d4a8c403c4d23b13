"""Asks a judge's endpoint: bounded, from the cache where it was asked before, and again while it does not answer."""

import asyncio
import hashlib
import json
import logging
import os
import time
from collections.abc import Mapping
from typing import Any

import aiohttp

from lightningbus.common.backoff import Backoff, RetryPolicy
from lightningbus.common.observability import metrics
from lightningbus.common.retry_after import read_retry_after
from lightningbus.graders.errors import GraderError, GradingFailedError
from lightningbus.graders.judges.answer import JudgeAnswer, JudgeCall
from lightningbus.graders.judges.cache import JudgeCache
from lightningbus.graders.judges.sampling_fields import SamplingFields
from lightningbus.graders.settings import JudgeSettings
from lightningbus.schemas.text import replace_surrogates, shorten_line

log = logging.getLogger(__name__)

RETRY_POLICY = RetryPolicy(0.5, 30.0)
REFUSED_STATUS = frozenset({401, 403})
"""Statuses of a refused key. After one call was answered, a proxy or the question itself causes them."""
RETRY_STATUS = frozenset({408, 425, 429})
"""Statuses after which a judge is asked again, as after every 5xx."""
MAX_ERROR_CHARS = 300
MAX_TOKENS = 2**40
"""No answer has more tokens; an endpoint that counts more is not believed."""


class RefusedError(Exception):
    """The endpoint refuses the request; the message is its reason."""


class UnansweredError(Exception):
    """The endpoint gave no answer this time; the message says why, ``retry_after`` the seconds to wait at least."""

    def __init__(self, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Judge:
    """One judge of a grader process."""

    def __init__(self, name: str, settings: JudgeSettings, cache: JudgeCache, session: aiohttp.ClientSession) -> None:
        """Prepare calls; raise `GraderError` if the environment lacks the endpoint's key."""
        self.name, self.settings = name, settings
        self._cache, self._session = cache, session
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._num_calls = 0
        self._is_key_accepted = False
        self.fields = SamplingFields()
        """Names of the sampling fields that the endpoint has not refused."""
        self._key = os.environ.get(settings.api_key_env, "").strip() if settings.api_key_env else ""
        if settings.api_key_env and not self._key:
            raise GraderError(f"graders.{name}: the environment has no {settings.api_key_env}, which api_key_env names")

    async def ask(self, request: Mapping[str, Any]) -> JudgeCall:
        """Return the answer to a request, from the cache if it is there.

        Raises `GradingFailedError` if there is none within the patience, or the limit of calls is reached, and
        `GraderError` if the endpoint refuses the key.
        """
        text = json.dumps(request, sort_keys=True, ensure_ascii=False)
        digest = hashlib.sha256(f"{self.settings.url}\n{text}".encode(errors="replace")).hexdigest()
        started_ns = time.time_ns()
        cached = self._cache.get(digest)
        answer = cached or await self._ask_until_answered(request)
        metrics.judge_calls.labels("endpoint" if cached is None else "cache").inc()
        price = self.settings.price if cached is None else None
        cost = price.compute_cost(answer.prompt_tokens, answer.response_tokens) if price is not None else 0.0
        metrics.judge_cost.inc(cost)
        return JudgeCall(
            self.name, self.settings.model, digest, answer, cached is not None, cost, started_ns, time.time_ns()
        )

    def keep(self, call: JudgeCall) -> None:
        """Keep an answer in the cache: one that was usable."""
        self._cache.put(call.request_sha256, call.answer)

    async def _ask_until_answered(self, request: Mapping[str, Any]) -> JudgeAnswer:
        backoff, loop = Backoff(RETRY_POLICY), asyncio.get_running_loop()
        gives_up_at = loop.time() + self.settings.patience_seconds
        while True:
            try:
                async with self._slots:
                    self._count_call()
                    return await self.ask_once(request)
            except (UnansweredError, aiohttp.ClientError, TimeoutError) as error:
                problem = f"judge {self.name!r} does not answer: {str(error) or type(error).__name__}"
                retry_after = error.retry_after if isinstance(error, UnansweredError) else 0.0
            delay = max(backoff.next_delay(), retry_after)
            if loop.time() + retry_after >= gives_up_at:
                raise GradingFailedError(problem)
            log.warning("%s; asking again", problem)
            await asyncio.sleep(min(delay, max(0.0, gives_up_at - loop.time())))

    def _count_call(self) -> None:
        if self.settings.max_calls is not None and self._num_calls >= self.settings.max_calls:
            raise GradingFailedError(f"judge {self.name!r} has made its {self.settings.max_calls} calls (max_calls)")
        self._num_calls += 1

    async def ask_once(self, request: Mapping[str, Any]) -> JudgeAnswer:
        """Ask with the fields of sampling that the endpoint takes; a field refused by name is not sent again.

        Raises `GradingFailedError` if the endpoint refuses the request, `GraderError` if it refuses the key, and
        `UnansweredError`, `aiohttp.ClientError` or TimeoutError if it does not answer.
        """
        fields = self.fields
        while True:
            try:
                answer = await self._post(fields.apply(request))
            except RefusedError as error:
                changed = fields.after_refusal(str(error))
                if changed is None:
                    reason = shorten_line(str(error), MAX_ERROR_CHARS)
                    raise GradingFailedError(f"judge {self.name!r} refuses a request: {reason}") from None
                fields = changed
            else:
                self.fields = fields
                return answer

    async def _post(self, request: Mapping[str, Any]) -> JudgeAnswer:
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        url = f"{self.settings.url}/chat/completions"
        timeout = aiohttp.ClientTimeout(total=self.settings.timeout_seconds)
        post = self._session.post(url, json=request, headers=headers, timeout=timeout, allow_redirects=False)
        async with post as response:
            body = await response.read()
            if response.status in REFUSED_STATUS and not self._is_key_accepted:
                key = f"the key in {self.settings.api_key_env}" if self._key else "calls without a key (api_key_env)"
                raise GraderError(f"graders.{self.name}: {self.settings.url} refuses {key}: status {response.status}")
            if response.status in RETRY_STATUS | REFUSED_STATUS or response.status >= 500:
                retry_after = read_retry_after(response.headers, time.time())
                raise UnansweredError(f"status {response.status}", retry_after)
            if response.status != 200:
                raise RefusedError(f"status {response.status}: {body.decode(errors='replace')}")
            self._is_key_accepted = True
        return read_answer(body)


def read_answer(body: bytes) -> JudgeAnswer:
    """Read a chat completion; raise `UnansweredError` for anything else."""
    try:
        answer = json.loads(body)
        message = answer["choices"][0]["message"]
        text = _join_text(message.get("content") or message.get("refusal"))
        usage = answer.get("usage")
        counts = usage if isinstance(usage, dict) else {}
        return JudgeAnswer(text, _read_count(counts, "prompt_tokens"), _read_count(counts, "completion_tokens"))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise UnansweredError(f"its answer is no chat completion: {body[:80]!r}") from error


def _join_text(content: Any) -> str:
    """Return the text of a message; a list has parts, some of which may be thoughts."""
    if isinstance(content, list):
        content = "".join(str(part.get("text") or "") for part in content if part.get("type") == "text")
    return replace_surrogates(str(content or ""))


def _read_count(usage: Mapping[str, Any], name: str) -> int:
    """Return a number of tokens; 0 where the endpoint counts none, or nonsense."""
    count = usage.get(name)
    return int(count) if isinstance(count, int | float) and 0 <= count <= MAX_TOKENS else 0
