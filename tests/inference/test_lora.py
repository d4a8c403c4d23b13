"""Versions of adapters beside one another in a real vLLM: one node for all tests, each goes on from the last one's."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
import pytest_asyncio
import torch
from aiohttp import web
from nats.aio.msg import Msg
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from lightningbus.bus.client import Bus
from lightningbus.bus.embedded.nats_server import nats_server
from lightningbus.bus.fleet.heartbeats import Fleet
from lightningbus.bus.weights.registry import WeightRegistry
from lightningbus.common.aio import cancel_and_wait
from lightningbus.inference.gateway.server import PREFERRED_HEADER, VERSION_HEADER
from lightningbus.inference.node import Node
from lightningbus.inference.settings import InferenceSettings
from lightningbus.schemas import subjects
from lightningbus.schemas.codec import decode
from lightningbus.schemas.fleet import Heartbeat
from lightningbus.schemas.weights.events import WeightManifest, WeightsActivated
from lightningbus.tasks.task_publisher import TaskPublisher
from tests.polling import HANG_SECONDS
from tests.runners.conftest import calls_of, ended, running, task

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.e2e]

VOCABULARY, RANK, SCALE, KEPT = 128, 4, 0.5, 2
PROMPT = list(range(10, 40))
LONG = 1900
"""Tokens of an answer that is still being made when several versions have come and gone."""

Tensors = dict[str, torch.Tensor]


@dataclass
class LoraNode:
    """A bus, a node that holds adapters, and what was published."""

    bus: Bus
    fleet: Fleet
    directory: Path
    model: Qwen2ForCausalLM
    http: aiohttp.ClientSession
    node: "asyncio.Task[None]"
    numbers: "itertools.count[int]" = field(default_factory=itertools.count)
    published: dict[int, tuple[Tensors, Tensors]] = field(default_factory=dict)
    """Base and adapters by version."""

    async def publish(self, base: Tensors, rank: int = RANK, **more: torch.Tensor) -> int:
        """A version of new adapters on a base."""
        version = next(self.numbers)
        tensors = adapters(base, rank, seed=version) | more
        self.published[version] = (base, tensors)
        blobs = []
        for name, content, metadata in (("base", base, None), (str(version), tensors, {"scale": str(SCALE)})):
            save_file(content, self.directory / name, metadata)
            blobs.append(
                await self.bus.object_store.put(subjects.WEIGHT_BUCKET, f"policy-{name}", self.directory / name)
            )
        manifest = WeightManifest(
            run_id="r",
            model="policy",
            version=version,
            kind="lora",
            blobs=tuple(blobs),
            epoch=1,
            step=0,
            created_at_ns=1,
        )
        await self.bus.publish(subjects.weights("policy"), manifest, msg_id=f"w{version}")
        return version

    async def serve(self, base: Tensors, count: int = 1) -> list[int]:
        """Versions, each of them served before the next one comes."""
        results = [await self.serves(await self.publish(base)) for _ in range(count)]
        return [beat.version or 0 for beat in results]

    async def serves(self, version: int) -> Heartbeat:
        """Wait until the node says that a version is its newest."""
        return await self.beat(lambda beat: beat.version == version and beat.state == "ready")

    async def beat(self, fits: Callable[[Heartbeat], bool], seconds: float = 60.0) -> Heartbeat:
        """Wait for a heartbeat of the node; if it has failed, that is raised."""
        async with asyncio.timeout(seconds):
            while not (members := [beat for beat in self.fleet.members() if fits(beat)]):
                if self.node.done():
                    await self.node
                await self.fleet.wait_for_change()
        return members[0]

    async def ask(self, tokens: int = 16, **headers: Any) -> "Answer":
        """One answer, whole."""
        async with await self.stream(tokens, **headers) as answer:
            return await read(answer)

    async def stream(self, tokens: int, **headers: Any) -> aiohttp.ClientResponse:
        """One answer, as it comes."""
        (node,) = self.fleet.members()
        body = {"model": "policy", "prompt": PROMPT, "max_tokens": tokens, "ignore_eos": True, "logprobs": 0}
        body |= {"stream": True, "return_token_ids": True}
        fields = {name: str(value) for name, value in headers.items() if value is not None}
        return await self.http.post(f"{node.address}/v1/completions", json=body, headers=fields)

    async def holds(self, *versions: int) -> None:
        """Wait until vLLM names these versions and no other; it announces none."""
        (node,) = self.fleet.members()
        expected = {f"policy@{version}" for version in versions} | {"policy"}
        async with asyncio.timeout(HANG_SECONDS):
            while (names := await self._names(node)) != expected:
                await asyncio.sleep(0.02)
        assert names == expected

    async def _names(self, node: Heartbeat) -> set[str]:
        async with self.http.get(f"{node.address}/v1/models") as answer:
            return {model["id"] for model in (await answer.json())["data"]}

    def expected(self, version: int, tokens: list[int]) -> np.ndarray:
        """Log-probabilities of an answer as `transformers` computes them, a version's product added to the base."""
        base, added = self.published[version]
        self.model.load_state_dict(base, strict=False)
        for name, module in self.model.named_modules():
            key = f"base_model.model.{name}.lora_"
            if key + "A.weight" in added:
                module.weight.data = module.weight.data + SCALE * added[key + "B.weight"] @ added[key + "A.weight"]
        with torch.no_grad():
            logits = self.model(input_ids=torch.tensor([PROMPT + tokens])).logits[0, len(PROMPT) - 1 : -1]
        return torch.log_softmax(logits.double(), -1).gather(1, torch.tensor(tokens)[:, None])[:, 0].numpy()

    def check(self, answer: "Answer", version: int) -> None:
        """Whether an answer is a version's, to the last token."""
        assert answer.versions == {version} and len(answer.tokens) == len(answer.logprobs) > 0
        np.testing.assert_allclose(answer.logprobs, self.expected(version, answer.tokens), atol=1e-4)


@dataclass
class Answer:
    """What was read of a stream."""

    tokens: list[int]
    logprobs: list[float]
    versions: set[int]
    models: set[str]


async def read(answer: aiohttp.ClientResponse) -> Answer:
    assert answer.status == 200, await answer.text()
    events = [json.loads(line[6:]) for line in (await answer.text()).splitlines() if line.startswith("data: {")]
    choices = [event["choices"][0] for event in events if event["choices"]]
    return Answer(
        [token for choice in choices for token in choice["token_ids"]],
        [value for choice in choices if choice["logprobs"] for value in choice["logprobs"]["token_logprobs"]],
        {event["weight_version"] for event in events},
        {event["model"] for event in events},
    )


def adapters(base: Tensors, rank: int, seed: int) -> Tensors:
    """Of every projection, in PEFT's names."""
    built, random = {}, torch.Generator().manual_seed(seed)
    for name, tensor in base.items():
        if name.endswith("_proj.weight"):
            module = "base_model.model." + name.removesuffix(".weight")
            built[f"{module}.lora_A.weight"] = 0.3 * torch.randn(rank, tensor.shape[1], generator=random)
            built[f"{module}.lora_B.weight"] = 0.3 * torch.randn(tensor.shape[0], rank, generator=random)
    return built


def make_model(directory: Path) -> Qwen2ForCausalLM:
    """A Qwen2 of chance, with a tokenizer of as many words."""
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=VOCABULARY,
            hidden_size=128,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=2048,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=0,
            dtype="float32",
        )
    )
    model.save_pretrained(directory)
    words = Tokenizer(WordLevel({f"w{number}": number for number in range(VOCABULARY)}, unk_token="w1"))
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w0").save_pretrained(directory)
    return model


@pytest.fixture(scope="module")
def base() -> Tensors:
    """The base of most versions here: not what lies beside the tokenizer."""
    return {}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lora_node(tmp_path_factory: pytest.TempPathFactory, base: Tensors) -> AsyncIterator[LoraNode]:
    """One node for all tests."""
    directory = tmp_path_factory.mktemp("adapters")
    model = make_model(directory / "model")
    base |= another(model, 1)
    settings = InferenceSettings.model_validate(
        {
            "model_path": directory / "model", "id": "n", "dtype": "float32", "max_num_seqs": 8, "cpu_threads": 1,
            "work_dir": directory / "work", "lora": {"rank": RANK, "max_loaded_versions": KEPT},
        }
    )  # fmt: skip
    stop = asyncio.Event()
    async with nats_server(directory / "nats") as server, Bus.connect(server.url, name="test") as bus:
        await bus.provision()
        async with bus.fleet("inference") as fleet, aiohttp.ClientSession() as http:
            node = asyncio.create_task(Node(bus, settings).run(stop))
            try:
                built = LoraNode(bus, fleet, directory, model, http, node)
                await built.beat(lambda beat: beat.state == "awaiting_weights", seconds=280)
                yield built
            finally:
                stop.set()
                await asyncio.wait({node}, timeout=HANG_SECONDS)
                await cancel_and_wait(node)


def another(model: Qwen2ForCausalLM, seed: int) -> Tensors:
    """Weights that are nobody's."""
    random = torch.Generator().manual_seed(seed)
    state = {name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    return {name: tensor + 0.1 * torch.randn(tensor.shape, generator=random) for name, tensor in state.items()}


async def test_each_version_answers_with_its_own_adapters_side_by_side(lora_node: LoraNode, base: Tensors) -> None:
    old, new = await lora_node.serve(base, 2)
    await lora_node.holds(old, new)
    wishes: list[tuple[dict[str, int], int]] = [
        ({VERSION_HEADER: old}, old), ({VERSION_HEADER: new}, new), ({}, new),
        ({PREFERRED_HEADER: old}, old), ({PREFERRED_HEADER: 99}, new),
    ]  # fmt: skip
    answers = await asyncio.gather(*(lora_node.ask(**headers) for headers, _ in wishes))
    for answer, (_, version) in zip(answers, wishes, strict=True):
        lora_node.check(answer, version)
        assert answer.models == {"policy"}


async def test_a_call_ends_on_the_version_it_began_with_and_then_that_version_goes(
    lora_node: LoraNode, base: Tensors
) -> None:
    """Nothing stands still for the versions that come, and they do not wait for it until there is no place left."""
    (first,) = await lora_node.serve(base)
    paused: dict[int, float] = {}

    async def applied(message: Msg) -> None:
        event = decode(WeightsActivated, message.data)
        paused[event.version] = event.pause_seconds

    listening = await lora_node.bus.nc.subscribe(subjects.activated("n"), cb=applied)
    async with await lora_node.stream(LONG) as answer:
        second, third = await lora_node.serve(base, 2)
        lora_node.check(await lora_node.ask(), third)
        await lora_node.holds(first, second, third)
        async with await lora_node.stream(8, **{VERSION_HEADER: first}) as refused:
            assert refused.status == 409
            assert f"serves version {second}, {third}, not {first}" in await refused.text()
        last = await lora_node.publish(base)  # has no place before the long call has ended
        assert lora_node.fleet.members()[0].status["inflight"] >= 1, "or this test shows nothing"
        whole = await read(answer)
    lora_node.check(whole, first)
    assert len(whole.tokens) == LONG
    assert (await lora_node.serves(last)).status["versions"] == [third, last]
    await lora_node.holds(third, last)
    await listening.unsubscribe()
    assert paused.keys() == {second, third, last}


async def test_a_version_that_is_revoked_gives_its_place_to_one_that_waits(lora_node: LoraNode, base: Tensors) -> None:
    (first,) = await lora_node.serve(base)
    async with await lora_node.stream(LONG) as answer:
        second, third = await lora_node.serve(base, 2)
        last = await lora_node.publish(base)  # has no place
        await WeightRegistry(lora_node.bus, "policy").append_decision("revoked", third, actor="me")
        beat = await lora_node.serves(last)
        assert beat.status["versions"] == [second, last]
        assert beat.status["inflight"] >= 1, "or this test shows nothing"
        lora_node.check(await read(answer), first)
    lora_node.check(await lora_node.ask(), last)
    await lora_node.holds(second, last)


async def test_where_nothing_may_be_served_the_base_by_itself_answers_nobody(
    lora_node: LoraNode, base: Tensors
) -> None:
    *_, new = await lora_node.serve(base, 2)
    releases = WeightRegistry(lora_node.bus, "policy")
    await releases.append_decision("pinned", 999, actor="me")  # is not to be had
    assert (await lora_node.beat(lambda beat: beat.status["versions"] == [])).version is None
    async with await lora_node.stream(8) as refused:
        assert refused.status == 503 and "taking weights" in await refused.text()
    await lora_node.holds(new)
    await releases.append_decision("unpinned", 999, actor="me")
    await lora_node.serves(new)
    lora_node.check(await lora_node.ask(), new)


async def test_another_base_waits_for_the_calls_on_the_old_one(lora_node: LoraNode, base: Tensors) -> None:
    """Adapters are never served on a base that is not theirs."""
    (old,) = await lora_node.serve(base)
    async with await lora_node.stream(LONG // 4) as answer:
        new = await lora_node.publish(another(lora_node.model, 2))
        await lora_node.beat(lambda beat: beat.version == new)
        lora_node.check(await read(answer), old)
    lora_node.check(await lora_node.ask(), new)
    await lora_node.holds(new)


async def test_adapters_that_cannot_be_loaded_leave_the_old_ones_serving(lora_node: LoraNode, base: Tensors) -> None:
    (old,) = await lora_node.serve(base)
    sentence = f"adapters of rank {2 * RANK} do not fit: set lora.rank"
    await lora_node.publish(base, rank=2 * RANK)
    await lora_node.beat(lambda beat: sentence in beat.status["problem"])
    await lora_node.publish(base, **{"base_model.model.model.nowhere.lora_A.weight": torch.zeros(RANK, 8)})
    await lora_node.beat(lambda beat: "the engine rejects the adapters" in beat.status["problem"])
    lora_node.check(await lora_node.ask(), old)
    (new,) = await lora_node.serve(base)
    lora_node.check(await lora_node.ask(**{VERSION_HEADER: old}), old)
    lora_node.check(await lora_node.ask(), new)


@pytest.mark.integration
@pytest.mark.parametrize("sticky_weight_version", [True, False])
async def test_a_rollout_ends_on_the_version_it_began_with_where_that_is_wished(
    lora_node: LoraNode, base: Tensors, sticky_weight_version: bool
) -> None:
    (first,) = await lora_node.serve(base)
    between: asyncio.Queue[asyncio.Event] = asyncio.Queue()
    async with (
        gate(between) as url,
        running(lora_node.bus, entrypoint="gated:asks_three_times", sticky_weight_version=sticky_weight_version),
    ):
        name = f"gated-{sticky_weight_version}"
        await TaskPublisher(lora_node.bus).publish_tasks([task(id=name, input={"gate": url})])
        for versions in (1, KEPT):  # by the second time the first version is gone
            go_on = await asyncio.wait_for(between.get(), HANG_SECONDS)
            newest = (await lora_node.serve(base, versions))[-1]
            go_on.set()
        (batch,) = await ended(lora_node.bus)
    assert batch.end is not None and batch.end.outcome == "ok"
    calls = [run.version for call in calls_of(batch) for run in call.weight_versions]
    assert calls == ([first, first, newest] if sticky_weight_version else [first, first + 1, newest])


@pytest.mark.integration
async def test_a_pinned_rollout_finds_its_version_while_it_is_held(lora_node: LoraNode, base: Tensors) -> None:
    gone, kept, _ = await lora_node.serve(base, 1 + KEPT)
    async with running(lora_node.bus, entrypoint="gated:asks_once"):
        for version, seconds in ((kept, 60.0), (gone, 1.0)):
            pinned = task(id=f"pinned-{version}", weight_versions={"policy": version}, deadline=seconds, max_attempts=1)
            await TaskPublisher(lora_node.bus).publish_task(pinned)
        by_name = {batch.task_id: batch for batch in await ended(lora_node.bus, 2)}
    ends = {name: batch.end.outcome for name, batch in by_name.items() if batch.end is not None}
    assert ends == {f"pinned-{gone}": "infra_error", f"pinned-{kept}": "ok"}
    (call,) = calls_of(by_name[f"pinned-{kept}"])
    assert [run.version for run in call.weight_versions] == [kept]


@asynccontextmanager
async def gate(between: "asyncio.Queue[asyncio.Event]") -> AsyncIterator[str]:
    """Where an agent asks whether it may go on; each question is an event in the queue, to be set."""

    async def ask(_: web.Request) -> web.Response:
        may = asyncio.Event()
        between.put_nowait(may)
        await may.wait()
        return web.Response()

    app = web.Application()
    app.router.add_get("/", ask)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()
