"""An agent that goes on from a recorded prompt: it samples one answer, in no environment."""

import os
from collections.abc import Mapping
from typing import Any

import aiohttp

LIMITS = ("max_tokens", "stop", "stop_token_ids", "include_stop_str_in_output")
"""Fields of a request that say where its answer ends."""


async def answer(task: Mapping[str, Any], endpoint: Any = None) -> float:
    """Sample one answer to a recorded prompt, as an agent of a runner, and return 0: a teacher scores its tokens.

    ``endpoint`` is the model's address if many rollouts share this process; else the environment variables have it.
    Raises `aiohttp.ClientError` if the call is refused.
    """
    base_url = endpoint.base_url if endpoint is not None else os.environ["OPENAI_BASE_URL"]
    api_key = endpoint.api_key if endpoint is not None else os.environ["OPENAI_API_KEY"]
    limits = {name: task[name] for name in LIMITS if name in task}
    body = {"model": os.environ.get("MODEL", "policy"), "prompt": task["prompt_ids"], **limits}
    headers, timeout = {"Authorization": f"Bearer {api_key}"}, aiohttp.ClientTimeout(total=None)
    async with (
        aiohttp.ClientSession(headers=headers, timeout=timeout, raise_for_status=True) as http,
        http.post(f"{base_url}/completions", json=body) as response,
    ):
        await response.read()
    return 0.0
