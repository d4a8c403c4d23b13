"""What `lightningbus.inference.engine.base.Engine` promises, held of any engine."""

import json
from pathlib import Path

import pytest

from lightningbus.inference.engine.base import Engine, EngineError, EngineRejectedError

NAME = "contract"


async def check_engine(engine: Engine, adapters: Path, prompt: list[int]) -> None:
    """Check an engine that runs and may load adapters; ends it. ``adapters``: their directory in PEFT's format."""
    assert engine.capabilities.engine_id and engine.capabilities.max_model_len
    await engine.load_adapter(NAME, adapters)
    for refused in (
        engine.load_adapter(NAME, adapters),
        engine.load_adapter("missing", adapters / "missing"),
        engine.unload_adapter("unknown"),
        engine.score("unknown", [prompt], 0),
        engine.sample(NAME, [prompt], 10**6, 0),
    ):
        with pytest.raises(EngineRejectedError):
            await refused
    long, short = await engine.score(NAME, [prompt, prompt[:2]], 0)
    assert (len(long), len(short)) == (len(prompt) - 1, 1) and max(*long, *short) <= 0
    answers = await engine.sample(NAME, [prompt, prompt[:2]], 3, 0)
    assert all(1 <= len(answer) <= 3 and max(answer) <= 0 for answer in answers) and len(answers) == 2
    async with engine.forward("GET", "/v1/models", None, {}) as response:
        assert (response.status, response.content_type) == (200, "application/json")
        assert NAME in str(json.loads(await response.read()))
    await engine.unload_adapter(NAME)
    with pytest.raises(EngineRejectedError):
        await engine.score(NAME, [prompt], 0)
    await engine.pause(recompute_kv_cache=False)
    await engine.resume()
    await engine.pause(recompute_kv_cache=True)
    with pytest.raises(EngineRejectedError):
        await engine.load_weights([adapters / "missing"], 1)
    await engine.stop()
    await engine.stop()
    with pytest.raises(EngineError):
        await engine.resume()
