"""Which version nodes serve: revoked, pinned, approved after a canary on one of them. On a real broker."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from lightningbus.bus.client import Bus
from lightningbus.bus.errors import BusError, FencedError
from lightningbus.bus.jetstream.nats_client import FastReconnectClient
from lightningbus.bus.weights import version_registry as releases_module
from lightningbus.bus.weights.registry import WeightRegistry
from lightningbus.bus.weights.version_cache import WeightCache
from lightningbus.common.aio import cancel_and_wait
from lightningbus.inference.engine.base import EngineRejectedError
from lightningbus.inference.weights import updater as subscriber_module
from lightningbus.inference.weights.canary import CanaryResult, evaluate, fit_to_context
from lightningbus.inference.weights.updater import WeightUpdater
from lightningbus.learner.publishing.delta_chain import versions_to_delete
from lightningbus.learner.publishing.publisher import BUCKET
from lightningbus.schemas import subjects
from lightningbus.schemas.weights.events import (
    MAX_REASON_CHARS,
    CanaryPrompt,
    CanarySpec,
    ReleaseDecision,
    ReleaseState,
    WeightManifest,
)
from lightningbus.schemas.weights.release_policy import (
    MAX_DECISIONS,
    apply_decision,
    latest_verdict,
    versions_to_retain,
)
from tests.inference.test_updater import Engine, publish
from tests.inference.test_version_cache import Learner
from tests.polling import HANG_SECONDS

BOUNDS = {"max_tokens": 8, "max_kl": 0.1, "min_entropy": 0.0, "max_entropy": 5.0, "max_length_ratio": 4.0}


def trial_of(*logprobs: float, **bounds: float) -> CanarySpec:
    """One case, whose tokens but the first the learner gives these log-probabilities."""
    ids, values = np.arange(len(logprobs) + 1, dtype="<u4"), np.array(logprobs, "<f4")
    return CanarySpec(prompts=(CanaryPrompt(ids=ids.tobytes(), logprobs=values.tobytes()),), **{**BOUNDS, **bounds})  # type: ignore[arg-type]


class Judge:
    """A node that says of each version what it was told to say, and remembers what happened to it."""

    def __init__(self, *bad: int) -> None:
        self.bad, self.happened = bad, list[str]()
        self.gate = asyncio.Event()
        self.gate.set()

    async def comes_to(self, what: str) -> None:
        """Wait for what is to happen."""
        async with asyncio.timeout(HANG_SECONDS):
            while what not in self.happened:
                await asyncio.sleep(0.01)

    async def drain_traffic(self) -> None:
        self.happened.append("canary_started")

    async def run(self, spec: CanarySpec, version: int, previous_length: float | None) -> CanaryResult:
        self.happened.append(f"judges {version}")
        await self.gate.wait()
        figures = {"length": 1.0 + version}
        return CanaryResult("it is bad" if version in self.bad else "", figures)

    async def await_next_version(self) -> None:
        self.happened.append("nothing stands")

    async def restart_engine(self) -> None:
        raise AssertionError("no result here has a tainted KV cache")


@asynccontextmanager
async def nodes(
    bus: Bus, directory: Path, count: int, *bad: int
) -> AsyncIterator[tuple[list[Engine], list[Judge], list[WeightUpdater]]]:
    """Nodes that follow, and try versions."""
    judges = [Judge(*bad) for _ in range(count)]
    engines = [Engine(judge) for judge in judges]
    built, running = [], []
    async with AsyncExitStack() as exits:
        for number, engine in enumerate(engines):
            name = f"n{number}"
            await exits.enter_async_context(
                bus.heartbeat("inference", name, lambda: {"state": "ready", "model": "policy"})
            )
            built.append(WeightUpdater(bus, name, "policy", directory / name, engine))
            running.append(asyncio.create_task(built[-1].run()))
        try:
            yield engines, judges, built
        finally:
            await cancel_and_wait(*running)


async def all_hold(engines: list[Engine], version: int) -> None:
    for engine in engines:
        await engine.holds(version)


async def test_a_version_that_is_revoked_is_left_by_all_and_taken_by_nobody(bus: Bus, tmp_path: Path) -> None:
    for version in range(3):
        await publish(bus, tmp_path, version)
    releases = WeightRegistry(bus, "policy")
    async with nodes(bus, tmp_path, 2) as (engines, _, _):
        await all_hold(engines, 2)
        await releases.append_decision("revoked", 2, actor="me", reason="it swears")
        await all_hold(engines, 1)
        await releases.append_decision("revoked", 1, actor="me")
        await all_hold(engines, 0)
        async with nodes(bus, tmp_path / "late", 1) as (late, _, _):
            await all_hold(late, 0)
            await publish(bus, tmp_path, 3)
            await all_hold([*engines, *late], 3)
            assert [version for version, _ in late[0].loaded] == [0, 3]
        await releases.append_decision("revoked", 3, actor="me")
        await releases.append_decision("approved", 2, actor="me", reason="it was a quotation")
        await all_hold(engines, 2)
    for engine in engines:
        assert all(content == b"weights of version %d" % version * 1000 for version, content in engine.loaded)


async def test_decisions_are_heeded_while_a_swap_waits_and_those_the_stream_refused_are_not(
    bus: Bus, tmp_path: Path
) -> None:
    await publish(bus, tmp_path, 0)
    releases = WeightRegistry(bus, "policy")
    async with nodes(bus, tmp_path, 1) as ((engine,), _, _), asyncio.timeout(HANG_SECONDS):
        await engine.holds(0)
        engine.gate.clear()
        await publish(bus, tmp_path, 1)
        refused = apply_decision(
            await releases.refresh(), ReleaseDecision(action="revoked", version=1, actor="x", decided_at_ns=1)
        )
        with pytest.raises(FencedError):
            await bus.publish(subjects.release("policy"), refused, msg_id="late", expect_last=99)
        decision = await releases.append_decision("pinned", 1, actor="me")
        while decision not in engine.heeded:
            await asyncio.sleep(0.01)
        assert refused not in engine.heeded
        engine.gate.set()
        await engine.holds(1)


async def test_a_version_that_is_revoked_while_a_node_fetches_it_is_not_loaded(
    bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish(bus, tmp_path, 0)
    await publish(bus, tmp_path, 1)
    fetching, decided_on, get = asyncio.Event(), asyncio.Event(), WeightCache.ensure

    async def slow(files: WeightCache, manifest: WeightManifest) -> list[Path]:
        if manifest.version == 1:
            fetching.set()
            await decided_on.wait()
        return await get(files, manifest)

    monkeypatch.setattr(WeightCache, "ensure", slow)
    async with nodes(bus, tmp_path, 1) as ((engine,), _, _), asyncio.timeout(HANG_SECONDS):
        await fetching.wait()
        await WeightRegistry(bus, "policy").append_decision("revoked", 1, actor="me")
        decided_on.set()
        await engine.holds(0)
    assert [version for version, _ in engine.loaded] == [0]


async def test_what_is_revoked_is_left_though_another_version_awaits_its_trial_and_not_gone_back_to(
    bus: Bus, tmp_path: Path
) -> None:
    await publish(bus, tmp_path, 0)
    releases = WeightRegistry(bus, "policy")
    async with nodes(bus, tmp_path, 1, 1) as ((engine,), (judge,), (subscriber,)), asyncio.timeout(HANG_SECONDS):
        await engine.holds(0)
        judge.gate.clear()
        await publish(bus, tmp_path, 1, canary=trial_of(-1.0))
        await judge.comes_to("judges 1")
        await releases.append_decision("revoked", 0, actor="me")
        judge.gate.set()
        await judge.comes_to("nothing stands")
        assert subscriber.version is None
        await publish(bus, tmp_path, 2)
        await engine.holds(2)
        judge.happened.clear()
        judge.gate.clear()
        await publish(bus, tmp_path, 3, canary=trial_of(-1.0))
        await judge.comes_to("judges 3")
        await releases.append_decision("pinned", 2, actor="me")
        judge.gate.set()
        await engine.holds(2)
        assert [version for version, _ in engine.loaded] == [0, 1, 2, 3, 2], "a good version is not served beside a pin"


@pytest.mark.parametrize(("is_of_cluster", "lag_seconds"), [(False, 2 * HANG_SECONDS), (True, 0.5)])
async def test_nodes_follow_a_stream_that_was_made_anew(
    bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_of_cluster: bool, lag_seconds: float
) -> None:
    """Its sequences begin again; a server of a cluster that is behind says the same, but not for long."""
    assert not bus.nc.is_of_cluster
    monkeypatch.setattr(FastReconnectClient, "is_of_cluster", is_of_cluster)
    monkeypatch.setattr(releases_module, "REPLICA_LAG_SECONDS", lag_seconds)
    monkeypatch.setattr(subscriber_module, "RECHECK_SECONDS", 0.1)
    releases = WeightRegistry(bus, "policy")
    for version in range(5):
        await publish(bus, tmp_path, version)
    await releases.append_decision("revoked", 4, actor="me")
    async with nodes(bus, tmp_path, 1) as ((engine,), _, _):
        await engine.holds(3)
        await bus.js.delete_stream(subjects.WEIGHTS)
        await bus.provision()
        await publish(bus, tmp_path, 5)
        await engine.holds(5)
        async with asyncio.timeout(HANG_SECONDS):
            after = await releases.append_decision("pinned", 5, actor="me")
        assert [decision.action for decision in after.decisions] == ["pinned"], (
            "what was decided of the old ones went with them"
        )


async def test_a_pinned_version_is_served_whatever_comes_until_it_is_unpinned(bus: Bus, tmp_path: Path) -> None:
    for version in range(3):
        await publish(bus, tmp_path, version)
    releases = WeightRegistry(bus, "policy")
    async with nodes(bus, tmp_path, 2) as (engines, _, built):
        await all_hold(engines, 2)
        await releases.append_decision("pinned", 1, actor="me")
        await all_hold(engines, 1)
        await publish(bus, tmp_path, 3)
        async with nodes(bus, tmp_path / "late", 1) as (late, _, _):
            await all_hold(late, 1)
        await releases.append_decision("pinned", 7, actor="me")
        async with asyncio.timeout(HANG_SECONDS):
            while "version 7 is pinned and is not on the bus" not in built[0].problem:
                await asyncio.sleep(0.01)
        await releases.append_decision("unpinned", 7, actor="me")
        await all_hold(engines, 3)
    assert [version for version, _ in engines[0].loaded] == [2, 1, 3]


async def test_one_node_tries_a_version_and_the_others_see_it_only_if_it_passes(bus: Bus, tmp_path: Path) -> None:
    await publish(bus, tmp_path, 0)
    async with nodes(bus, tmp_path, 3, 1, 2) as (engines, judges, built):
        await all_hold(engines, 0)
        releases = WeightRegistry(bus, "policy")
        for version in (1, 2):
            await publish(bus, tmp_path, version, canary=trial_of(-1.0))
            async with asyncio.timeout(HANG_SECONDS):
                while latest_verdict(await releases.refresh(), version) is None:
                    await asyncio.sleep(0.01)
            await all_hold(engines, 0)
        revoked = latest_verdict(releases.state, 1)
        assert revoked is not None and (revoked.action, revoked.reason) == ("revoked", "it is bad")
        async with asyncio.timeout(HANG_SECONDS):
            while not any("version 2 was revoked: it is bad" in node.problem for node in built):
                await asyncio.sleep(0.01)  # said by who tried it
        await publish(bus, tmp_path, 3, canary=trial_of(-1.0))
        await all_hold(engines, 3)
        assert built[0].problem == ""
    tried = [item for judge in judges for item in judge.happened if item.startswith("judges")]
    assert sorted(tried) == ["judges 1", "judges 2", "judges 3"], "each once"
    for engine, judge in zip(engines, judges, strict=True):
        local = {int(item.split()[1]) for item in judge.happened if item.startswith("judges")}
        assert {version for version, _ in engine.loaded} == {0, 3} | local
    passed = latest_verdict(releases.state, 3) or latest_verdict(await releases.refresh(), 3)
    assert passed is not None and passed.action == "approved" and passed.metrics == {"length": 4.0}


async def test_the_first_version_is_tried_too_and_nobody_serves_what_is_revoked(bus: Bus, tmp_path: Path) -> None:
    await publish(bus, tmp_path, 0, canary=trial_of(-1.0))
    async with nodes(bus, tmp_path, 1, 0) as (engines, judges, built):
        await judges[0].comes_to("nothing stands")
        assert built[0].version is None and [version for version, _ in engines[0].loaded] == [0]
        assert not engines[0].changed.is_set(), "it was never said to serve"
        await publish(bus, tmp_path, 1, canary=trial_of(-1.0))
        await engines[0].holds(1)
        assert built[0].version == 1


async def test_where_nothing_else_stands_a_revoked_version_is_served_no_more(bus: Bus, tmp_path: Path) -> None:
    await publish(bus, tmp_path, 0)
    async with nodes(bus, tmp_path, 1) as (engines, judges, built):
        await engines[0].holds(0)
        await WeightRegistry(bus, "policy").append_decision("revoked", 0, actor="me")
        await judges[0].comes_to("nothing stands")
        assert built[0].version is None and "no other stands" in built[0].problem
        await publish(bus, tmp_path, 1)
        await engines[0].holds(1)


async def test_a_trial_that_cannot_be_made_here_is_left_to_others(bus: Bus, tmp_path: Path) -> None:
    """Adapters of too large a rank say nothing of the version: the node serves on, and does not try again at once."""
    await publish(bus, tmp_path, 0)
    async with nodes(bus, tmp_path, 2) as (engines, judges, built):
        await all_hold(engines, 0)
        engines[0].refuses[1] = engines[1].refuses[1] = ValueError("adapters of rank 64 do not fit")
        await publish(bus, tmp_path, 1, canary=trial_of(-1.0))
        for judge in judges:
            await judge.comes_to("canary_started")
        await all_hold(engines, 0)
        async with asyncio.timeout(HANG_SECONDS):
            while not all("do not fit" in node.problem for node in built):
                await asyncio.sleep(0.01)
        await WeightRegistry(bus, "policy").append_decision("approved", 0, actor="me")  # all look again
        await publish(bus, tmp_path, 2)
        await all_hold(engines, 2)
    assert [judge.happened for judge in judges] == [["canary_started"], ["canary_started"]]


async def test_a_version_that_an_engine_refuses_is_revoked(bus: Bus, tmp_path: Path) -> None:
    await publish(bus, tmp_path, 0)
    async with nodes(bus, tmp_path, 1) as (engines, _, _):
        await engines[0].holds(0)
        engines[0].refuses[1] = EngineRejectedError("vLLM answered 500 to /update_weights: a tensor of another shape")
        await publish(bus, tmp_path, 1, canary=trial_of(-1.0))
        releases = WeightRegistry(bus, "policy")
        async with asyncio.timeout(HANG_SECONDS):
            while (verdict := latest_verdict(await releases.refresh(), 1)) is None:
                await asyncio.sleep(0.01)
        assert verdict.action == "revoked" and "another shape" in verdict.reason


async def test_if_the_node_that_tries_is_lost_another_one_does(bus: Bus, tmp_path: Path) -> None:
    await publish(bus, tmp_path, 0)
    async with nodes(bus, tmp_path / "a", 1) as (engines, judges, _):
        await engines[0].holds(0)
        judges[0].gate.clear()
        await publish(bus, tmp_path, 1, canary=trial_of(-1.0))
        await judges[0].comes_to("judges 1")
    assert latest_verdict(await WeightRegistry(bus, "policy").refresh(), 1) is None
    async with nodes(bus, tmp_path / "b", 1) as (others, _, _):
        await others[0].holds(1)
    assert [version for version, _ in others[0].loaded] == [0, 1]
    assert latest_verdict(await WeightRegistry(bus, "policy").refresh(), 1) is not None


async def test_what_is_decided_at_once_is_all_kept(bus: Bus) -> None:
    each = [WeightRegistry(bus, "policy") for _ in range(8)]
    await asyncio.gather(
        *(item.append_decision("revoked", number, actor=str(number)) for number, item in enumerate(each))
    )
    state = await each[0].refresh()
    assert {decision.version for decision in state.decisions} == set(range(8))
    await each[0].append_decision("revoked", 9, actor="me", reason="because " * 5000)
    verdict = latest_verdict(await WeightRegistry(bus, "policy").refresh(), 9)
    assert verdict is not None and len(verdict.reason) == MAX_REASON_CHARS, "whatever is said can be read by all"
    with pytest.raises(BusError, match="has no version 3 on this bus"):
        await each[0].manifests_of(3)


async def test_files_that_nodes_may_go_back_to_are_kept(bus: Bus, tmp_path: Path) -> None:
    learner, releases = Learner(bus, tmp_path, {}, keep_weight_versions=2), WeightRegistry(bus, "policy")
    for _ in range(6):
        await learner.publish()
    await releases.append_decision("pinned", 5, actor="me")
    for version in (6, 7, 8):
        await learner.publish()
        await releases.append_decision("revoked", version, actor="canary")
    for _ in range(4):
        await learner.publish()
    async with nodes(bus, tmp_path, 1) as (engines, _, _):
        await engines[0].holds(5)
        await releases.append_decision("unpinned", 5, actor="me")
        await engines[0].holds(12)
    assert learner.right(engines[0])
    await learner.publish()
    kept = [name.removeprefix("policy-0000") for name in await learner.transport.list_names(BUCKET)]
    assert kept == ["12-1", "13-1-delta"], "and no longer than they are needed"


def test_what_a_delta_that_is_needed_is_built_upon_is_kept() -> None:
    names = ["0", "1-delta", "2-delta", "3", "4-delta", "5"]
    assert versions_to_delete(names, 1) == ["0", "1-delta", "2-delta", "3", "4-delta"]
    assert versions_to_delete(names, 1, ["1-delta"]) == ["2-delta", "3", "4-delta"]
    assert versions_to_delete(names, 2) == ["0", "1-delta", "2-delta"]


WORDS = st.sampled_from(["approved", "revoked", "pinned", "unpinned", "kept"])


@given(st.lists(st.tuples(WORDS, st.integers(0, 6)), max_size=30), st.sets(st.integers(0, 6), min_size=1))
def test_the_last_word_counts_and_nothing_revoked_is_needed(reported: list[tuple[str, int]], there: set[int]) -> None:
    release = ReleaseState(model="m")
    for at, (what, version) in enumerate(reported):
        release = apply_decision(release, ReleaseDecision(action=what, version=version, actor="x", decided_at_ns=at))  # type: ignore[arg-type]
    words = {version: what for what, version in reported if what in ("approved", "revoked")}
    for version in range(7):
        verdict = latest_verdict(release, version)
        assert (verdict.action if verdict else None) == words.get(version)
    keeps = versions_to_retain(release, there)
    assert keeps <= there and not any(words.get(version) == "revoked" for version in keeps - {release.pinned})
    assert bool(keeps) >= any(words.get(version) != "revoked" for version in there)
    best = next((version for what, version in reversed(reported) if what == "kept"), None)
    assert release.kept == best
    assert (best in keeps) >= (best in there and words.get(best) != "revoked")


def test_decisions_are_bounded() -> None:
    best = ReleaseDecision(action="kept", version=3, actor="x", decided_at_ns=0)
    release = apply_decision(ReleaseState(model="m"), best)
    for version in range(MAX_DECISIONS + 5):
        release = apply_decision(
            release, ReleaseDecision(action="revoked", version=version, actor="x", decided_at_ns=version)
        )
    assert len(release.decisions) == MAX_DECISIONS and release.decisions[-1].version == MAX_DECISIONS + 4
    assert release.kept == 3


@pytest.mark.parametrize(
    ("engine", "sampled", "before", "words"),
    [
        ([-1.0, -2.0], [[-1.0] * 4], 4.0, ""),
        ([-1.05, -2.1], [[-1.0] * 4], None, ""),
        ([float("nan"), -2.0], [[-1.0]], None, "1 of 2 log-probabilities of the engine are not finite"),
        ([-9999.0, -2.0], [[-1.0]], None, "of the engine are not finite"),
        ([-1.0, -2.0], [[float("-inf")]], None, "1 of 1 log-probabilities of a sampled token are not finite"),
        ([-5.0, -0.1], [[-1.0] * 4], None, "k3-KL to the learner is"),
        ([-1.0, -2.0], [[-8.0] * 4], None, "entropy is 8 nats per token, outside 0 to 5"),
        ([-1.0, -2.0], [[-1.0] * 8, [-1.0] * 9], 2.0, "more than 4 times"),
        ([-1.0, -2.0], [[-1.0]], 8.0, "more than 4 times"),
        ([-1.0], [[-1.0]], None, "1 log-probabilities for 2 tokens"),
        ([-1.0, -2.0], [[]], None, "no token was sampled"),
    ],
)
def test_a_version_is_judged_by_what_it_shows(
    engine: list[float], sampled: list[list[float]], before: float | None, words: str
) -> None:
    actual = evaluate(trial_of(-1.0, -2.0), [engine], sampled, before)
    assert (words in actual.reason) if words else not actual.reason, actual
    assert actual.is_kv_cache_tainted == any(value != value for value in (*engine, *sampled[0])), (
        "only NaN stays in a cache"
    )


def test_the_figures_are_what_they_are_called() -> None:
    metrics = evaluate(trial_of(-1.0, -2.0), [[-1.2, -1.9]], [[-1.0, -3.0], [-2.0]], None).metrics
    k3 = np.mean([np.exp(0.2) - 1 - 0.2, np.exp(-0.1) - 1 + 0.1])
    difference = pytest.approx(0.15, rel=1e-5)
    assert metrics.pop("k3_kl") == pytest.approx(k3, rel=1e-5)
    assert metrics == {"difference": difference, "entropy": 2.0, "length": 1.5, "tokens": 2.0}
    learners = evaluate(trial_of(float("nan"), -2.0), [[-1.0, -2.0]], [[-1.0]], None)
    assert "1 of 2 log-probabilities of the learner are not finite" in learners.reason


def test_prompts_are_cut_to_an_engines_context() -> None:
    cut = fit_to_context(trial_of(*[-1.0] * 99), 20)
    assert cut.max_tokens == 8 and len(cut.prompts[0].ids) == 4 * 12 and len(cut.prompts[0].logprobs) == 4 * 11
    assert fit_to_context(trial_of(-1.0), 20).prompts == trial_of(-1.0).prompts
