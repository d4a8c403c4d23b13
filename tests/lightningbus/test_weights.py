"""``lightningbus weights``: what there is, who serves it, and decisions that nodes follow."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from lightningbus.bus.client import Bus
from lightningbus.bus.fleet import heartbeats
from lightningbus.bus.weights import version_registry
from lightningbus.bus.weights.registry import WeightRegistry
from lightningbus.cli.app import app
from lightningbus.common.observability import metrics
from lightningbus.schemas import subjects
from tests.inference.test_releases import Judge, trial_of
from tests.inference.test_updater import following, publish
from tests.polling import HANG_SECONDS


async def weights(url: str, *arguments: object, code: int = 0) -> str:
    """``lightningbus weights …``; its output, or its error if it is to fail."""
    words = ["weights", *map(str, arguments), "--bus", url]
    done = await asyncio.to_thread(CliRunner().invoke, app, words)
    assert done.exit_code == code, (done.output, done.exception)
    return done.stderr if code else done.stdout


async def listed(url: str, *arguments: object) -> list[dict[str, Any]]:
    actual: list[dict[str, Any]] = json.loads(await weights(url, "list", "--json", *arguments))
    return actual


async def test_two_lookups_at_once_pass_over_no_decision(bus: Bus, tmp_path: Path) -> None:
    await publish(bus, tmp_path, 0)
    releases, other = WeightRegistry(bus, "policy"), WeightRegistry(bus, "policy")
    for version in range(3):
        await other.append_decision("pinned", version, actor="me")
        first, second = await asyncio.gather(releases.refresh(), releases.refresh())
        assert first.pinned == second.pinned == version and releases.problem == ""


async def test_versions_are_listed_shown_revoked_released_and_pinned(
    bus: Bus, nats_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeats, "INTERVAL_SECONDS", 0.1)  # many of them while the command listens
    assert "model 'policy' has no version on this bus" in await weights(nats_url, "list")
    for version in range(3):
        await publish(bus, tmp_path, version)
    async with following(bus, tmp_path) as (subscriber, engine):
        await engine.holds(2)
        fields = {"state": "ready", "model": "policy", "address": "http://x"}
        beside = {**fields, "version": 2, "status": {"versions": [1, 2]}}
        async with (
            bus.heartbeat("inference", "node", lambda: {**fields, "version": subscriber.version}),
            bus.heartbeat("inference", "adapters", lambda: beside),
        ):
            rows = await listed(nats_url)
            assert [(row["version"], row["state"], sorted(row["nodes"])) for row in rows] == [
                (2, "approved", ["adapters", "node"]), (1, "approved", ["adapters"]), (0, "approved", []),
            ]  # fmt: skip
            assert rows[0]["bytes"] == 20000 and rows[0]["kind"] == "full" and rows[0]["step"] == 2
            assert "version 2 is revoked" in await weights(nats_url, "revoke", 2, "--reason", "it swears")
            await engine.holds(1)
            table = await weights(nats_url, "list", "--last", 2)
            assert "it swears" in table and len(table.strip().splitlines()) == 3
            assert "approve 2` first" in await weights(nats_url, "pin", 2, code=2)
            assert "version 0 is pinned" in await weights(nats_url, "pin", 0, "--reason", "to compare")
            await engine.holds(0)
            assert [(row["state"], row["why"]) for row in await listed(nats_url)] == [
                ("revoked", "it swears"), ("approved", ""), ("pinned", "to compare"),
            ]  # fmt: skip
            assert await weights(nats_url, "unpin") == "version 0 is unpinned\n"
            await engine.holds(1)
            job = WeightRegistry(bus, "policy")
            await job.append_decision("pinned", 1, actor="train:small", reason="held-out tasks are being answered")
            assert await weights(nats_url, "pin", 0) == (
                "version 0 is pinned; this ends the pin of version 1 by train:small (held-out tasks are being "
                "answered); that evaluation may fail\n"
            )
            await engine.holds(0)
            await weights(nats_url, "unpin")
            await engine.holds(1)
            assert "no version of model 'policy' is pinned" in await weights(nats_url, "unpin", code=2)
            assert "version 2 is approved" in await weights(nats_url, "approve", 2)
            await engine.holds(2)
    await bus.object_store.delete(subjects.WEIGHT_BUCKET, "policy-0")
    assert "policy-0 has expired" in await weights(nats_url, "pin", 0, code=2)
    displayed = json.loads(await weights(nats_url, "show", 2))
    assert [(item["action"], item.get("reason", "")) for item in displayed["decisions"]] == [
        ("revoked", "it swears"),
        ("approved", ""),
    ]
    assert all("@" in item["actor"] for item in displayed["decisions"])
    assert [item["node"] for item in displayed["applied"]] == ["node", "node"]
    assert {"fetch_seconds", "verify_seconds", "pause_seconds"} <= set(displayed["applied"][0])
    assert displayed["manifest"]["blobs"][0]["name"] == "policy-2"
    assert "has no version 9 on this bus" in await weights(nats_url, "show", 9, code=2)
    assert "has no version 9 on this bus" in await weights(nats_url, "revoke", 9, "--reason", "x", code=2)


async def test_a_version_that_waits_for_the_check_of_an_engine_says_so(bus: Bus, nats_url: str, tmp_path: Path) -> None:
    await publish(bus, tmp_path, 0, canary=replace(trial_of(-1.0, -2.0), max_difference=0.1))
    (row,) = await listed(nats_url)
    assert row["state"] == "awaits the check of an engine"


async def test_a_trial_is_shown_with_its_figures(bus: Bus, nats_url: str, tmp_path: Path) -> None:
    await publish(bus, tmp_path, 0, canary=trial_of(-1.0, -2.0))
    (row,) = await listed(nats_url)
    assert row["state"] == "awaits its canary"
    await WeightRegistry(bus, "policy").append_decision(
        "approved", 0, actor="n0", metrics=(await Judge().run(trial_of(-1.0), 0, None)).metrics
    )
    displayed = json.loads(await weights(nats_url, "show", 0))
    assert displayed["state"] == "approved" and displayed["decisions"][0]["metrics"] == {"length": 1.0}
    assert displayed["manifest"]["canary"]["prompts"] == 1 and displayed["manifest"]["canary"]["max_kl"] == 0.1


async def test_bytes_of_a_stranger_stop_no_node_and_a_command_removes_them(
    bus: Bus, nats_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the server answers a publisher, stored where versions, decisions and turns are."""
    monkeypatch.setattr(version_registry, "REPLICA_LAG_SECONDS", 2.0)
    answer = b'{"stream":"WEIGHTS","seq":1,"duplicate":true}'
    strangers = [subject("policy") for subject in (subjects.weights, subjects.release, subjects.swap_lock)]
    skipped = metrics.messages_skipped.labels("WeightManifest")._value.get()
    await publish(bus, tmp_path, 0)
    async with following(bus, tmp_path) as (subscriber, engine):
        await engine.holds(0)
        for subject in strangers:
            await bus.publish_bytes(subject, answer, {}, 10)
        await publish(bus, tmp_path, 1)
        await engine.holds(1)
        await weights(nats_url, "revoke", 1, "--reason", "it swears")
        await engine.holds(0)
        await bus.publish_bytes(strangers[0], answer, {}, 10)
        async with asyncio.timeout(HANG_SECONDS):
            while "is passed over: this is not a WeightManifest" not in subscriber.last_error:
                await asyncio.sleep(0.02)
        assert [row["version"] for row in await listed(nats_url)] == [1, 0]
        assert "messages removed: 4" in await weights(nats_url, "repair")
        async with asyncio.timeout(HANG_SECONDS):
            while subscriber.last_error:
                await asyncio.sleep(0.02)
    assert "messages removed: 0" in await weights(nats_url, "repair")
    assert metrics.messages_skipped.labels("WeightManifest")._value.get() >= skipped + 2
    for subject in strangers:
        message = await bus.js.get_last_msg(subjects.WEIGHTS, subject, direct=True)
        assert message.data != answer


async def test_a_model_is_named_where_the_bus_has_several(bus: Bus, nats_url: str, tmp_path: Path) -> None:
    await publish(bus, tmp_path, 0, model="checker")
    assert [row["version"] for row in await listed(nats_url)] == [0], "the only one need not be named"
    await publish(bus, tmp_path, 3, model="writer")
    for words in (["list"], ["show", 3], ["pin", 3], ["revoke", 3, "--reason", "x"], ["unpin"], ["repair"]):
        error = await weights(nats_url, *words, code=2)
        assert "--model: there are several models, name one of checker, writer" in error
    assert "version 3 is pinned" in await weights(nats_url, "pin", 3, "--model", "writer")
    assert [row["state"] for row in await listed(nats_url, "--model", "writer")] == ["pinned"]
    assert (await WeightRegistry(bus, "checker").refresh()).pinned is None
