"""A real vLLM with adapters of two models over one base, and one with the weights of its own directory."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from lightningbus.bus.client import Bus
from lightningbus.common.aio import cancel_and_wait
from lightningbus.inference import node
from lightningbus.inference.engine.base import Engine, OpenEngine
from lightningbus.inference.engine.peft import write_directory
from lightningbus.inference.engine.vllm_engine import VllmEngine
from lightningbus.inference.settings import InferenceSettings
from lightningbus.schemas import subjects
from lightningbus.schemas.fleet import Heartbeat
from lightningbus.schemas.weights.events import WeightManifest
from tests.inference.engine_contract import check_engine
from tests.inference.test_lora import PROMPT, RANK, SCALE, Answer, adapters, another, make_model, read
from tests.polling import HANG_SECONDS

pytestmark = pytest.mark.e2e

NUM_TOKENS = 16
TOLERANCE = 1e-4
"""In nats; as for one model's adapters."""


@asynccontextmanager
async def ready(
    bus: Bus, directory: Path, num_models: int, open_engine: OpenEngine = VllmEngine, **settings: Any
) -> AsyncIterator[list[Heartbeat]]:
    """A node, once all of its models are ready."""
    fields = {"model_path": directory / "model", "id": "n", "dtype": "float32", "max_num_seqs": 8, "cpu_threads": 1}
    checked = InferenceSettings.model_validate({**fields, "work_dir": directory / "work", **settings})
    stop = asyncio.Event()
    async with bus.fleet("inference") as fleet:
        running = asyncio.create_task(node.run(bus, checked, stop, open_engine))
        try:
            async with asyncio.timeout(280):
                while len(beats := [beat for beat in fleet.members() if beat.state == "ready"]) < num_models:
                    if running.done():
                        await running
                    await fleet.wait_for_change()
            yield beats
        finally:
            stop.set()
            await asyncio.wait({running}, timeout=HANG_SECONDS)
            await cancel_and_wait(running)


async def ask(address: str, model: str, **changes: Any) -> Answer:
    body = {"model": model, "prompt": PROMPT, "max_tokens": NUM_TOKENS, "ignore_eos": True, "logprobs": 0}
    body |= {"stream": True, "return_token_ids": True, **changes}
    async with aiohttp.ClientSession() as http, http.post(f"{address}/v1/completions", json=body) as answer:
        return await read(answer)


def logprobs_of(model: torch.nn.Module, tokens: list[int]) -> np.ndarray:
    """As `transformers` computes them, in nats."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([PROMPT + tokens])).logits[0, len(PROMPT) - 1 : -1]
    return torch.log_softmax(logits.double(), -1).gather(1, torch.tensor(tokens)[:, None])[:, 0].numpy()


async def test_a_frozen_node_samples_from_the_weights_of_its_directory(bus: Bus, tmp_path: Path) -> None:
    """The head is tied: the CPU build computes from a packed copy of it."""
    model = make_model(tmp_path / "model")
    model.load_state_dict(another(model, 1), strict=False)
    model.save_pretrained(tmp_path / "model")
    expected = model.generate(
        torch.tensor([PROMPT]), do_sample=False, min_new_tokens=NUM_TOKENS, max_new_tokens=NUM_TOKENS,
        suppress_tokens=[], eos_token_id=None,
    )  # fmt: skip
    async with ready(bus, tmp_path, 1, frozen=True, model="judge") as (beat,):
        greedy, drawn = await asyncio.gather(
            ask(beat.address, "judge", temperature=0.0), ask(beat.address, "judge", temperature=1.0)
        )
    assert greedy.tokens == expected[0, len(PROMPT) :].tolist()
    assert greedy.versions == drawn.versions == {0} and drawn.models == {"judge"}
    np.testing.assert_allclose(drawn.logprobs, logprobs_of(model, drawn.tokens), atol=TOLERANCE)


async def test_two_models_over_one_base_answer_each_with_its_own_adapters(bus: Bus, tmp_path: Path) -> None:
    model = make_model(tmp_path / "model")
    base = another(model, 1)
    added = {name: adapters(base, RANK, seed) for seed, name in enumerate(("writer", "checker"))}
    for name, tensors in added.items():
        blobs = []
        for kind, content, metadata in (("base", base, None), ("0", tensors, {"scale": str(SCALE)})):
            save_file(content, tmp_path / kind, metadata)
            blobs.append(await bus.object_store.put(subjects.WEIGHT_BUCKET, f"{name}-{kind}", tmp_path / kind))
        manifest = WeightManifest(
            run_id="r", model=name, version=0, kind="lora", blobs=tuple(blobs), epoch=1, step=0, created_at_ns=1
        )
        await bus.publish(subjects.weights(name), manifest, msg_id=f"{name}-0")
    lora = {"rank": RANK, "max_loaded_versions": 2, "models": [*added]}
    engines: list[Engine] = []

    def open_engine(settings: InferenceSettings) -> VllmEngine:
        engine = VllmEngine(settings)
        engines.append(engine)
        return engine

    async with ready(bus, tmp_path, 2, open_engine, lora=lora) as beats:
        (address,) = {beat.address for beat in beats}
        answers = await asyncio.gather(*(ask(address, name) for name in added))
        write_directory(tmp_path / "0", tmp_path / "peft", RANK)
        await check_engine(engines[0], tmp_path / "peft", PROMPT)
    for (name, tensors), answer in zip(added.items(), answers, strict=True):
        model.load_state_dict(base, strict=False)
        for path, module in model.named_modules():
            key = f"base_model.model.{path}.lora_"
            if key + "A.weight" in tensors:
                module.weight.data = module.weight.data + SCALE * tensors[key + "B.weight"] @ tensors[key + "A.weight"]
        assert answer.models == {name} and answer.versions == {0} and len(answer.tokens) == NUM_TOKENS
        np.testing.assert_allclose(answer.logprobs, logprobs_of(model, answer.tokens), atol=TOLERANCE)
