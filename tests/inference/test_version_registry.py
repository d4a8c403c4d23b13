"""Which versions stay and which go, through random orders of versions and calls; and what becomes of their files."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lightningbus.common.aio import cancel_and_wait
from lightningbus.inference.engine.peft import inspect_adapter, write_directory
from lightningbus.inference.gateway.served_model import ServedModel
from lightningbus.inference.lora.manager import LoraManager
from lightningbus.inference.lora.shared_base import SharedBase
from lightningbus.inference.version_registry import LoadedVersions, capacity, select_version
from lightningbus.schemas.weights.events import ReleaseDecision, ReleaseState
from lightningbus.schemas.weights.safetensors_header import InvalidSafetensorsError
from tests import tensorfiles
from tests.inference.fake_engine import FakeEngine
from tests.polling import HANG_SECONDS


class Holding(RuleBasedStateMachine):
    """An engine that takes and loses versions while calls begin and end and all is decided anew, and is killed."""

    @initialize(kept=st.integers(1, 3))
    def starts(self, kept: int) -> None:
        self.kept, self.newest = kept, -1
        self.residents = LoadedVersions("policy", kept)
        self.open_calls: list[tuple[LoadedVersions, int, ExitStack]] = []
        self.alive: list[int] = []
        """What it was given and has not lost or taken back, newest last."""
        self.closed: frozenset[int] = frozenset()
        self.last: int | None = None
        """What came last and was not lost."""

    @property
    def kept_open(self) -> list[int]:
        return [version for version in self.alive if version not in self.closed][-self.kept :]

    @property
    def in_use(self) -> set[int]:
        return {version for residents, version, _ in self.open_calls if residents is self.residents}

    @rule()
    def a_version_is_published(self) -> None:
        self.newest += 1
        self.is_to_be_served(self.newest)

    @rule(back=st.integers(0, 4))
    def an_older_one_is_gone_back_to(self, back: int) -> None:
        if self.newest >= back:
            self.is_to_be_served(self.newest - back)

    def is_to_be_served(self, version: int) -> None:
        if self.residents.has_capacity or version in self.residents:
            self.residents.add(version)
            self.alive = [*(other for other in self.alive if other < version), version]
            self.last = version
        else:
            with pytest.raises(ValueError, match="does not fit beside"):
                self.residents.add(version)

    @rule(closed=st.frozensets(st.integers(0, 12)))
    def some_are_closed(self, closed: frozenset[int]) -> None:
        self.closed = closed
        self.residents.block(closed.__contains__)

    @rule(pinned=st.none() | st.integers(0, 9), preferred=st.none() | st.integers(0, 9))
    def a_call_begins(self, pinned: int | None, preferred: int | None) -> None:
        wishes = [None if wish is None else str(wish) for wish in (pinned, preferred)]
        version = select_version(self.residents.routable, *wishes)
        kept = self.kept_open
        wanted = preferred if pinned is None else pinned
        assert version == (wanted if wanted in kept else kept[-1] if pinned is None and kept else None)
        if version is not None:
            ends = ExitStack()
            ends.enter_context(self.residents.track_call(version))
            self.open_calls.append((self.residents, version, ends))

    @precondition(lambda self: bool(getattr(self, "open_calls", [])))
    @rule(which=st.integers(0, 99))
    def a_call_ends(self, which: int) -> None:
        *_, ends = self.open_calls.pop(which % len(self.open_calls))
        ends.close()

    @rule(waiting=st.booleans(), data=st.data())
    def what_is_due_goes(self, waiting: bool, data: st.DataObject) -> None:
        """While the engine is told calls begin and end, and closed versions are opened."""
        with self.residents.pending_load() if waiting else nullcontext():
            while due := self.residents.evictable():
                self.residents.mark_draining(due[0])
                self.alive = [other for other in self.alive if other != due[0]]
                self.some_are_closed(data.draw(st.just(self.closed) | st.frozensets(st.integers(0, 12))))
                self.a_call_begins(None, due[0])
                self.residents.remove(due[0])
                self.last = None if due[0] == self.last else self.last
            needed = self.in_use | set(self.residents.routable)
            assert self.residents.has_capacity or needed >= set(self.residents.loaded) or not waiting, (
                "waiting for nobody"
            )

    @rule()
    def the_engine_is_killed(self) -> None:
        self.residents.clear()
        self.alive.clear()
        self.last = None
        self.open_calls = [(LoadedVersions("gone", 1), version, ends) for _, version, ends in self.open_calls]

    @invariant()
    def a_call_has_its_version(self) -> None:
        if hasattr(self, "residents"):
            used = self.in_use
            assert used <= set(self.residents.loaded) and not used & set(self.residents.evictable())
            for version in used:
                with pytest.raises(ValueError, match=r"serves \d+ calls"):
                    self.residents.remove(version)

    @invariant()
    def the_newest_are_open_and_there_is_a_bound(self) -> None:
        if hasattr(self, "residents"):
            assert self.residents.routable == tuple(self.kept_open)
            assert set(self.residents.evictable()).isdisjoint([*self.residents.routable, self.last])
            assert self.last is None or self.last in self.residents, "what came last stays"
            assert len(self.residents.loaded) <= capacity(self.kept)


TestHolding = Holding.TestCase


@given(st.lists(st.integers(0, 5), unique=True, max_size=4), st.none() | st.text(max_size=3))
def test_no_header_names_a_version_that_is_not_open(open_to: list[int], text: str | None) -> None:
    assert select_version(open_to, text, None) in (*open_to, None)
    assert select_version(open_to, None, text) in (open_to or [None])


def adapters(path: Path, rank: int = 2, metadata: dict[str, str] | None = None, **more: int) -> Path:
    shapes = {f"base_model.model.model.layers.0.mlp.{name}_proj": rank for name in ("up", "down")} | more
    contents = {}
    for module, of in shapes.items():
        contents[f"{module}.lora_A.weight"] = ("F32", (of, 4), bytes(16 * of))
        contents[f"{module}.lora_B.weight"] = ("F32", (4, of), bytes(16 * of))
    return tensorfiles.write(path, contents, {"scale": "0.5"} if metadata is None else metadata)


def test_what_may_not_be_served_answers_no_new_call_and_goes() -> None:
    residents = LoadedVersions("policy", 3)
    for version in (5, 6, 7):
        residents.add(version)
    with residents.track_call(6):
        residents.block({6}.__contains__)
        assert residents.routable == (5, 7) and residents.evictable() == ()
        residents.block({5, 6}.__contains__)
        assert residents.routable == (7,) and residents.evictable() == (5,)
    assert residents.evictable() == (5, 6)
    residents.block(lambda version: False)
    assert residents.routable == (5, 6, 7), "released again before it went"


def test_adapters_become_pefts_directory_without_a_copy(tmp_path: Path) -> None:
    file, directory = adapters(tmp_path / "policy-7.safetensors"), tmp_path / "policy@7"
    for _ in range(2):  # the second time it is there already
        write_directory(file, directory, 2)
    assert (directory / "adapter_model.safetensors").samefile(file)
    text = json.loads((directory / "adapter_config.json").read_text())
    assert (text["r"], text["lora_alpha"] / text["r"], text["target_modules"]) == (2, 0.5, ["down_proj", "up_proj"])


def test_adapters_that_do_not_fit_are_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"adapters of rank 3 do not fit: set lora\.rank of the node to 3 at least"):
        write_directory(adapters(tmp_path / "large", 3), tmp_path / "d", 2)
    for file, sentence in (
        (adapters(tmp_path / "ranks", head_proj=1), r"adapters of one rank: \[1, 2\]"),
        (adapters(tmp_path / "unsaid", metadata={}), "does not say the scale"),
        (tensorfiles.write(tmp_path / "whole", {"weight": ("F32", (1,), bytes(4))}), "does not hold LoRA adapters"),
    ):
        with pytest.raises(InvalidSafetensorsError, match=sentence):
            inspect_adapter(file)
    assert not (tmp_path / "d").exists()


class Names(FakeEngine):
    """An engine that unloads adapters when a test lets it."""

    def __init__(self) -> None:
        super().__init__(is_running=True)
        self.known = self.adapters
        self.model: ServedModel
        self.forgets, self.may_forget = asyncio.Event(), asyncio.Event()
        """It is forgetting a name; it may go on with that."""
        self.may_forget.set()

    async def unload_adapter(self, name: str) -> None:
        self.forgets.set()
        await self.may_forget.wait()
        await super().unload_adapter(name)

    async def replace(self, files: Sequence[Path], version: int) -> float:
        assert not self.known, "no adapters are left on a base that goes"
        self.model.version = version  # as the node does
        return 0.0

    async def become(self, *versions: int) -> None:
        async with asyncio.timeout(HANG_SECONDS):
            while set(self.known) != {f"policy@{version}" for version in versions}:
                await asyncio.sleep(0)
        assert all((place / "adapter_model.safetensors").exists() for place in self.known.values())


@dataclass
class Engine:
    """What a node has of an engine that holds adapters."""

    vllm: Names
    residents: LoadedVersions
    model: ServedModel
    base: SharedBase
    manager: LoraManager
    files: list[Path]

    async def take(self, *versions: int) -> None:
        """Adapters of one base."""
        for version in versions:
            await asyncio.wait_for(self.manager.load_version(self.files, version, self.vllm.replace), HANG_SECONDS)

    def heed(self, pinned: int | None = None, revoked: Sequence[int] = ()) -> None:
        """What was decided."""
        texts = [ReleaseDecision(action="revoked", version=version, actor="me", decided_at_ns=1) for version in revoked]
        self.manager.apply_release_state(ReleaseState(model="policy", pinned=pinned, decisions=tuple(texts)))


@asynccontextmanager
async def engine(directory: Path, kept: int) -> AsyncIterator[Engine]:
    """One that retires what may go, and does so to the end."""
    vllm, residents = Names(), LoadedVersions("policy", kept)
    vllm.model = model = ServedModel("policy", residents)
    base = SharedBase()
    manager = LoraManager(residents, 2, directory / "held", model, vllm, base)
    retiring = asyncio.create_task(manager.unload_loop())
    yield Engine(vllm, residents, model, base, manager, [directory / "base", adapters(directory / "a")])
    assert not retiring.done()
    await cancel_and_wait(retiring)


async def test_versions_come_go_and_come_again(tmp_path: Path) -> None:
    async with engine(tmp_path, kept=1) as built:
        vllm, residents, model, kept, (base, file) = (
            built.vllm,
            built.residents,
            built.model,
            built.manager,
            built.files,
        )

        def lie() -> set[str]:
            return {place.name for place in (tmp_path / "held").iterdir()}

        for version in (0, 1):
            await kept.load_version([base, file], version, vllm.replace)
            await vllm.become(version)
        with residents.track_call(1):
            await kept.load_version([base, file], 2, vllm.replace)
            await vllm.become(1, 2)
            assert (model.versions, model.newest) == ((2,), 2)
            waiting = asyncio.create_task(kept.load_version([base, file], 3, vllm.replace))
            await asyncio.wait({waiting}, timeout=0.05)
            assert not waiting.done(), "there is no place while the call goes on"
        await waiting
        await vllm.become(3)
        assert lie() == {"policy@1", "policy@2", "policy@3"}, "vLLM may ask for what has just left"
        with residents.track_call(3):
            await kept.load_version([base, file], 4, vllm.replace)
            await kept.load_version([base, file], 3, vllm.replace)  # 4 is taken back
            await vllm.become(3)
            assert (model.versions, model.newest) == ((3,), 3)
        await kept.load_version([base, file], 5, vllm.replace)
        await vllm.become(5)
        assert lie() == {"policy@3", "policy@4", "policy@5"}
        await kept.load_version([tmp_path / "other", file], 6, vllm.replace)
        await vllm.become(6)
        await kept.load_version([tmp_path / "whole"], 7, vllm.replace)
        await vllm.become()
        assert (model.versions, model.newest) == ((7,), 7)


async def test_where_nothing_may_be_served_the_base_by_itself_answers_nobody(tmp_path: Path) -> None:
    async with engine(tmp_path, kept=2) as built:
        await built.take(40, 41)
        built.heed(pinned=38)
        assert (built.model.versions, built.model.newest) == ((), None)
        await built.vllm.become(41)  # which comes first when 38 cannot be had and is unpinned
        assert built.model.versions == ()
        built.heed()
        assert built.model.versions == (41,)
        built.heed(pinned=38)
        await built.take(38)
        await built.vllm.become(38)
        assert built.model.versions == (38,)


async def test_a_version_on_trial_stays_whatever_is_decided_meanwhile(tmp_path: Path) -> None:
    async with engine(tmp_path, kept=2) as built:
        await built.take(7, 8, 9)
        built.heed(pinned=7)
        assert 9 not in built.residents.evictable(), "its trial would end in a refusal, which revokes it for ever"


async def test_what_was_revoked_before_it_came_is_never_open(tmp_path: Path) -> None:
    async with engine(tmp_path, kept=2) as built:
        await built.take(7)
        with built.residents.track_call(7):
            await built.take(8, 9)
            waiting = asyncio.create_task(built.take(10))
            await asyncio.wait({waiting}, timeout=0.05)
            built.heed(revoked=[10])
        await waiting
        assert (built.model.versions, built.model.newest) == ((8, 9), 9)
        built.manager.on_engine_restart()  # another engine
        built.base.on_engine_restart()
        built.vllm.known.clear()
        built.heed(revoked=[8, 10])
        await built.take(9)
        assert built.model.versions == (9,), "not what was open before and is revoked since"
        await built.vllm.become(9)


async def test_what_is_about_to_go_answers_no_call_and_what_was_to_follow_may_stay(tmp_path: Path) -> None:
    async with engine(tmp_path, kept=2) as built:
        await built.take(1, 2, 3)
        await built.vllm.become(2, 3)
        built.vllm.forgets.clear()
        built.vllm.may_forget.clear()
        await built.take(4)
        await asyncio.wait_for(built.vllm.forgets.wait(), HANG_SECONDS)
        built.heed(revoked=[4])
        assert built.model.versions == (3,), "vLLM is forgetting 2"
        built.vllm.may_forget.set()
        await built.vllm.become(3, 4)

        built.heed()
        built.vllm.forgets.clear()
        built.vllm.may_forget.clear()
        with built.residents.track_call(3), built.residents.track_call(4):
            await built.take(5)
            built.heed(pinned=5)
        assert built.residents.evictable() == (3, 4)
        await asyncio.wait_for(built.vllm.forgets.wait(), HANG_SECONDS)
        built.heed()
        with built.residents.track_call(4):
            built.vllm.may_forget.set()
            await built.vllm.become(4, 5)
            await built.take(6)
            await built.vllm.become(4, 5, 6)
        await built.vllm.become(5, 6)
