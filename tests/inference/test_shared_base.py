"""Adapters of two models in one engine: one base for both, and neither ends what the other serves."""

import asyncio
from pathlib import Path

import pytest

from lightningbus.inference.gateway.served_model import ServedModel
from lightningbus.inference.lora.manager import LoraManager
from lightningbus.inference.lora.shared_base import SharedBase
from lightningbus.inference.version_registry import LoadedVersions
from tests.inference.fake_engine import FakeEngine
from tests.inference.test_version_registry import adapters

MODELS = ("writer", "checker")


class Vllm(FakeEngine):
    """An engine whose weights are replaced by a caller."""

    def __init__(self) -> None:
        super().__init__(is_running=True)
        self.bases: list[Path] = []

    @property
    def names(self) -> set[str]:
        return set(self.adapters)

    async def replace(self, files: "list[Path]", version: int) -> float:
        await asyncio.sleep(0)
        assert not self.names, "no adapters are left on a base that goes"
        self.bases += files
        return 0.0


class Engine:
    """An engine, and the adapters of two models in it."""

    def __init__(self, directory: Path) -> None:
        self.vllm, self.base = Vllm(), SharedBase(len(MODELS))
        self.models: dict[str, ServedModel] = {}
        self._managers: dict[str, LoraManager] = {}
        for name in MODELS:
            versions = LoadedVersions(name, 2)
            self.models[name] = model = ServedModel(name, versions)
            self._managers[name] = LoraManager(versions, 2, directory / name, model, self.vllm, self.base)
        self.file = adapters(directory / "adapters")

    async def load(self, name: str, version: int, base: Path) -> None:
        await self._managers[name].load_version([base, self.file], version, self.vllm.replace)

    async def load_whole(self, name: str, version: int) -> None:
        await self._managers[name].load_version([self.file], version, self.vllm.replace)

    def restart(self) -> None:
        for manager in self._managers.values():
            manager.on_engine_restart()
        self.base.on_engine_restart()
        self.vllm.adapters.clear()
        self.vllm.bases.clear()

    def versions(self) -> list[tuple[int, ...]]:
        return [model.versions for model in self.models.values()]


async def test_models_that_come_at_once_share_a_base_that_is_loaded_once(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    await asyncio.gather(*(engine.load(name, 7, tmp_path / "base") for name in MODELS))
    assert engine.vllm.bases == [tmp_path / "base"]
    assert engine.vllm.names == {"writer@7", "checker@7"}
    assert engine.versions() == [(7,), (7,)]


async def test_adapters_of_another_base_are_refused_while_another_model_needs_this_one(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    await engine.load("writer", 0, tmp_path / "base")
    sentence = "adapters of 'checker' and of 'writer' start from different bases: use a node for each"
    with pytest.raises(ValueError, match=sentence):
        await engine.load("checker", 0, tmp_path / "other")
    assert engine.versions() == [(0,), ()]
    await engine.load("writer", 1, tmp_path / "other")  # nobody else needs the base
    await engine.load("checker", 0, tmp_path / "other")
    assert engine.versions() == [(1,), (0,)] and engine.vllm.names == {"writer@1", "checker@0"}


async def test_whole_weights_of_one_model_are_refused(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    await engine.load("writer", 0, tmp_path / "base")
    with pytest.raises(ValueError, match="'checker' has whole weights, not adapters"):
        await engine.load_whole("checker", 0)
    assert engine.versions() == [(0,), ()]


async def test_a_new_engine_is_given_all_versions_whichever_model_comes_first(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    for version in (1, 2):
        for name in MODELS:
            await engine.load(name, version, tmp_path / "base")
    engine.restart()
    for name in reversed(MODELS):
        await engine.load(name, 2, tmp_path / "base")
    assert engine.vllm.bases == [tmp_path / "base"]
    assert engine.versions() == [(1, 2), (1, 2)]
