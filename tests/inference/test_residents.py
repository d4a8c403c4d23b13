"""Which versions stay and which go, through random orders of versions and calls; and what becomes of their files."""

import asyncio
import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bus.cancelling import cancel
from inference.adapters import Adapters
from inference.engine import EngineFailed
from inference.gateway import Gateway
from inference.peft import described, write_directory
from inference.residents import Residents, chosen, places
from schemas.tensorfile import BadTensorFile
from tests import tensorfiles


class Holding(RuleBasedStateMachine):
    """An engine that takes and loses versions while calls begin and end, and is killed."""

    @initialize(kept=st.integers(1, 3))
    def starts(self, kept: int) -> None:
        self.kept, self.newest = kept, -1
        self.residents = Residents("policy", kept)
        self.open_calls: list[tuple[Residents, int, ExitStack]] = []
        self.alive: list[int] = []
        """What it was given and has not lost or taken back, newest last."""

    @rule()
    def a_version_is_published(self) -> None:
        self.newest += 1
        self.is_to_be_served(self.newest)

    @rule(back=st.integers(0, 4))
    def an_older_one_is_gone_back_to(self, back: int) -> None:
        if self.newest >= back:
            self.is_to_be_served(self.newest - back)

    def is_to_be_served(self, version: int) -> None:
        if self.residents.room or version in self.residents:
            self.residents.add(version)
            self.alive = [*(other for other in self.alive if other < version), version]
        else:
            with pytest.raises(ValueError, match="has no place beside"):
                self.residents.add(version)

    @rule(pinned=st.none() | st.integers(0, 9), preferred=st.none() | st.integers(0, 9))
    def a_call_begins(self, pinned: int | None, preferred: int | None) -> None:
        wishes = [None if wish is None else str(wish) for wish in (pinned, preferred)]
        version = chosen(self.residents.open, *wishes)
        kept = self.alive[-self.kept :]
        wanted = preferred if pinned is None else pinned
        assert version == (wanted if wanted in kept else kept[-1] if pinned is None and kept else None)
        if version is not None:
            ends = ExitStack()
            ends.enter_context(self.residents.call(version))
            self.open_calls.append((self.residents, version, ends))

    @precondition(lambda self: getattr(self, "open_calls", []))
    @rule(which=st.integers(0, 99))
    def a_call_ends(self, which: int) -> None:
        *_, ends = self.open_calls.pop(which % len(self.open_calls))
        ends.close()

    @rule()
    def what_is_due_goes(self) -> None:
        for version in self.residents.due():
            self.residents.remove(version)
            self.alive = [other for other in self.alive if other != version]

    @rule()
    def the_engine_is_killed(self) -> None:
        self.residents.clear()
        self.alive.clear()
        self.open_calls = [(Residents("gone", 1), version, ends) for _, version, ends in self.open_calls]

    @invariant()
    def a_call_has_its_version(self) -> None:
        if hasattr(self, "residents"):
            used = {version for residents, version, _ in self.open_calls if residents is self.residents}
            assert used <= set(self.residents.held) and not used & set(self.residents.due())
            for version in used:
                with pytest.raises(ValueError, match=r"answers \d+ calls"):
                    self.residents.remove(version)

    @invariant()
    def the_newest_are_open_and_there_is_a_bound(self) -> None:
        if hasattr(self, "residents"):
            assert self.residents.open == tuple(self.alive[-self.kept :])
            assert set(self.residents.due()).isdisjoint(self.residents.open)
            assert len(self.residents.held) <= places(self.kept)
            assert self.residents.room or self.residents.due() or self.open_calls, "waiting for nobody"


TestHolding = Holding.TestCase


@given(st.lists(st.integers(0, 5), unique=True, max_size=4), st.none() | st.text(max_size=3))
def test_no_header_names_a_version_that_is_not_open(open_to: list[int], said: str | None) -> None:
    assert chosen(open_to, said, None) in (*open_to, None)
    assert chosen(open_to, None, said) in (open_to or [None])


def adapters(path: Path, rank: int = 2, metadata: dict[str, str] | None = None, **more: int) -> Path:
    shapes = {f"base_model.model.model.layers.0.mlp.{name}_proj": rank for name in ("up", "down")} | more
    contents = {}
    for module, of in shapes.items():
        contents[f"{module}.lora_A.weight"] = ("F32", (of, 4), bytes(16 * of))
        contents[f"{module}.lora_B.weight"] = ("F32", (4, of), bytes(16 * of))
    return tensorfiles.write(path, contents, {"scale": "0.5"} if metadata is None else metadata)


def test_what_may_not_be_served_answers_no_new_call_and_goes() -> None:
    residents = Residents("policy", 3)
    for version in (5, 6, 7):
        residents.add(version)
    with residents.call(6):
        residents.close({6})
        assert residents.open == (5, 7) and residents.due() == ()
        residents.close({5, 6})
        assert residents.open == (7,) and residents.due() == (5,)
    assert residents.due() == (5, 6)
    residents.close(())
    assert residents.open == (5, 6, 7), "released again before it went"


def test_adapters_become_pefts_directory_without_a_copy(tmp_path: Path) -> None:
    file, directory = adapters(tmp_path / "policy-7.safetensors"), tmp_path / "policy@7"
    for _ in range(2):  # the second time it is there already
        write_directory(file, directory, 2)
    assert (directory / "adapter_model.safetensors").samefile(file)
    said = json.loads((directory / "adapter_config.json").read_text())
    assert (said["r"], said["lora_alpha"] / said["r"], said["target_modules"]) == (2, 0.5, ["down_proj", "up_proj"])


def test_adapters_that_do_not_fit_are_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"adapters of rank 3 do not fit: set lora\.rank of the node to 3 at least"):
        write_directory(adapters(tmp_path / "large", 3), tmp_path / "d", 2)
    for file, sentence in (
        (adapters(tmp_path / "ranks", head_proj=1), r"adapters of one rank: \[1, 2\]"),
        (adapters(tmp_path / "unsaid", metadata={}), "does not say the scale"),
        (tensorfiles.write(tmp_path / "whole", {"weight": ("F32", (1,), bytes(4))}), "does not hold LoRA adapters"),
    ):
        with pytest.raises(BadTensorFile, match=sentence):
            described(file)
    assert not (tmp_path / "d").exists()


class Names:
    """The part of vLLM that knows adapters by name: each once, and none it has not got."""

    def __init__(self) -> None:
        self.known: dict[str, Path] = {}

    async def tell(self, path: str, body: object = None) -> None:
        await asyncio.sleep(0)
        assert isinstance(body, dict)
        name = body["lora_name"]
        if (name in self.known) == path.endswith("/load_lora_adapter"):
            raise EngineFailed(f"400 to {path} of {name}")
        if name in self.known:
            del self.known[name]
        else:
            self.known[name] = Path(body["lora_path"])

    async def replace(self, files: Sequence[Path], version: int) -> float:
        assert not self.known, "no adapters are left on a base that goes"
        return 0.0

    async def become(self, *versions: int) -> None:
        async with asyncio.timeout(10):
            while set(self.known) != {f"policy@{version}" for version in versions}:
                await asyncio.sleep(0)
        assert all((place / "adapter_model.safetensors").exists() for place in self.known.values())


async def test_versions_come_go_and_come_again(tmp_path: Path) -> None:
    file, base, vllm, residents = adapters(tmp_path / "a"), tmp_path / "base", Names(), Residents("policy", 1)
    async with aiohttp.ClientSession() as http:
        gateway = Gateway(lambda: "", http, "127.0.0.1", 0, residents=residents)
        held = Adapters(residents, 2, tmp_path / "held", gateway, vllm.tell)
        retiring = asyncio.create_task(held.retire())

        def lie() -> set[str]:
            return {place.name for place in (tmp_path / "held").iterdir()}

        for version in (0, 1):
            await held.take([base, file], version, vllm.replace)
            await vllm.become(version)
        with residents.call(1):
            await held.take([base, file], 2, vllm.replace)
            await vllm.become(1, 2)
            assert (gateway.versions, gateway.version) == ((2,), 2)
            waiting = asyncio.create_task(held.take([base, file], 3, vllm.replace))
            await asyncio.wait({waiting}, timeout=0.05)
            assert not waiting.done(), "there is no place while the call goes on"
        await waiting
        await vllm.become(3)
        assert lie() == {"policy@1", "policy@2", "policy@3"}, "vLLM may ask for what has just left"
        with residents.call(3):
            await held.take([base, file], 4, vllm.replace)
            await held.take([base, file], 3, vllm.replace)  # 4 is taken back
            await vllm.become(3)
            assert (gateway.versions, gateway.version) == ((3,), 3)
        await held.take([base, file], 5, vllm.replace)
        await vllm.become(5)
        assert lie() == {"policy@3", "policy@4", "policy@5"}
        await held.take([tmp_path / "other", file], 6, vllm.replace)
        await vllm.become(6)
        await held.take([tmp_path / "whole"], 7, vllm.replace)
        await vllm.become()
        assert not retiring.done()
        await cancel(retiring)
