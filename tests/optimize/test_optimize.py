"""`lightningbus optimize` against a real bus, ClickHouse and runners, with a scripted engine and reflecting model."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from lightningbus.bus.client import Bus
from lightningbus.bus.prompts import PromptRegistry
from lightningbus.bus.security.credentials import Credentials
from lightningbus.optimize.plan.budget import BudgetSpentError
from lightningbus.optimize.round import RoundResult, optimize_round
from lightningbus.run.errors import UserError
from lightningbus.run.evaluation.prompt_versions import read_prompt_versions
from lightningbus.run.settings.run_file import load_run_settings
from tests.agents.prompted import NUMBERS
from tests.commands import environment
from tests.examples.endpoint import Endpoint
from tests.optimize.conftest import HELDOUT, ROUND, SIGN, TASKS, World, follow, reflect, write_run_file
from tests.runners.conftest import AGENTS

pytestmark = pytest.mark.integration

KILLS = 10


async def start(path: Path, *options: str) -> asyncio.subprocess.Process:
    command = [sys.executable, "-m", "lightningbus", "optimize", "-c", path.name, "--json", *options]
    return await asyncio.create_subprocess_exec(
        *command, cwd=path.parent, env=environment(), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )


async def prompts_command(directory: Path, *arguments: str) -> tuple[int | None, str, str]:
    """Exit code, output and errors of ``lightningbus prompts``."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "lightningbus", "prompts", *arguments,
        cwd=directory, env=environment(), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, errors = await process.communicate()
    return process.returncode, out.decode(), errors.decode()


async def run_command(path: Path, *options: str) -> tuple[int | None, str, str]:
    """Exit code, output and errors of the command."""
    process = await start(path, *options)
    out, errors = await process.communicate()
    return process.returncode, out.decode(), errors.decode()


@asynccontextmanager
async def node_of(run: Path, address: str) -> AsyncIterator[Bus]:
    """An inference node at ``address`` on the bus that the run brings up, while the block runs."""
    while not (run / "endpoints.json").exists():
        await asyncio.sleep(0.05)  # a file announces itself by no event
    endpoints = json.loads((run / "endpoints.json").read_text())
    credentials = Credentials.read(Path(endpoints["credentials"]), "inference")
    alive = {"state": "ready", "address": address, "model": "policy", "version": 3}
    async with (
        Bus.connect(endpoints["bus"], name="node", credentials=credentials) as bus,
        bus.heartbeat("inference", "scripted", lambda: alive),
    ):
        yield bus


async def optimize(world: World, path: Path, *, kill_at: int | None = None, resume: bool = False) -> Any:
    """What the command prints; None if it was killed, with kill -9, once the store has so many of its rollouts."""
    process = await start(path, *(["--resume"] if resume else []))
    ending = asyncio.create_task(process.communicate())
    count = f"SELECT count() FROM tasks WHERE run_id = '{path.stem}'"
    while not ending.done() and kill_at is not None:
        if await asyncio.to_thread(world.store.fetch_value, count) >= kill_at:
            process.kill()
            await ending
            return None
        await asyncio.sleep(0.02)  # rows announce themselves by no event
    out, errors = await ending
    assert process.returncode == 0, errors.decode()[-3000:]
    return json.loads(out)


def rows(world: World, sql: str) -> list[Any]:
    return [tuple(row) for row in world.store.sql.query(sql).result_rows]


@pytest.mark.long
async def test_the_missing_rules_are_found_and_a_killed_optimiser_comes_to_the_same(
    world: World, tmp_path: Path
) -> None:
    steady = await optimize(world, world.write(tmp_path, "steady"))
    text = steady["texts"]["steady"]
    assert SIGN in text and ROUND in text and text.startswith(NUMBERS)
    assert steady["released"] and steady["heldout"]["before"] == 0.25 and steady["heldout"]["after"] == 1.0
    assert steady["rollouts"] <= 120
    asked_by_steady = len(world.reflecting.requests)

    path, killed = world.write(tmp_path, "killed"), None
    for kill in range(KILLS):
        kill_at = 1 + kill * steady["rollouts"] // KILLS
        assert await optimize(world, path, kill_at=kill_at, resume=kill > 0) is None, "it was to be killed"
    killed = await optimize(world, path, resume=True)
    assert killed["texts"]["killed"] == text
    by_name = dict.fromkeys(("texts", "versions", "prompts"))  # each run has a prompt of its own
    assert {**killed, **by_name} == {**steady, **by_name}
    assert list(killed["versions"].values()) == list(steady["versions"].values())

    # Nothing was paid for twice: each rollout once, one attempt of each, and a model call for each.
    evaluated = "SELECT count(), uniqExact(rollout_id), sum(num_calls) FROM attempts WHERE run_id = '{}'"
    (steady_row,), (killed_row,) = (rows(world, evaluated.format(run)) for run in ("steady", "killed"))
    assert killed_row == steady_row == (steady["rollouts"],) * 3
    assert len(world.node.requests) == 2 * steady["rollouts"]
    assert asked_by_steady <= len(world.reflecting.requests) - asked_by_steady <= asked_by_steady + KILLS

    # The record: every call has its version, and decisions have the figures that they were made on.
    (pinned,) = rows(
        world,
        "SELECT count() FROM model_calls AS c INNER JOIN tasks AS t USING (run_id, rollout_id) "
        "WHERE c.prompt_versions != t.prompt_versions OR empty(c.prompt_versions)",
    )
    assert pinned == (0,)
    version = steady["versions"]["steady"]
    decisions = rows(
        world, "SELECT version, action, actor, metrics['after'] FROM prompt_decisions WHERE name = 'steady'"
    )
    assert decisions == [(version, "approved", "optimize:steady", 1.0)]
    assert rows(world, f"SELECT text FROM prompt_versions WHERE name = 'steady' AND version = {version}") == [(text,)]
    target = (await PromptRegistry(world.bus, "steady").resolve_target()).serve
    assert target is not None and target.text == text


async def round_of(world: World, path: Path) -> RoundResult:
    settings = load_run_settings(path).optimize
    assert settings is not None
    return await optimize_round(world.bus, world.store.sql, path.stem, settings)


async def test_a_budget_for_one_proposal_is_kept_to_the_rollout(world: World, tmp_path: Path) -> None:
    needed = len(TASKS) + 2 * 3 + len(TASKS) + 2 * len(HELDOUT)
    done = await round_of(world, world.write(tmp_path, "steady", budget=needed))
    assert done.num_rollouts <= needed == 32
    assert rows(world, "SELECT count() FROM tasks WHERE run_id = 'steady'") == [(done.num_rollouts,)]


@pytest.mark.long
async def test_a_round_under_other_weights_is_a_round_of_its_own(world: World, tmp_path: Path) -> None:
    """Of the same run: it begins with what the first released, and the run's budget holds for both."""
    needed = len(TASKS) + 2 * 3 + len(TASKS) + 2 * len(HELDOUT)
    settings = load_run_settings(world.write(tmp_path, "steady", round_budget=2 * needed)).optimize
    assert settings is not None

    async def round_under(version: int) -> RoundResult:
        async with Endpoint(follow, weight_version=version).as_node(world.bus):
            return await optimize_round(world.bus, world.store.sql, "steady", settings, {"policy": version})

    first = await round_under(3)
    assert first.is_released and 0 < first.num_rollouts <= 2 * needed
    later = await round_under(4)
    assert not later.is_released and later.texts == first.texts, "what was released is right already"
    assert later.num_rollouts == len(TASKS)
    count = (
        "SELECT evaluation, weight_versions['policy'], count(), countIf(empty(prompt_versions)) FROM tasks "
        "WHERE run_id = 'steady' GROUP BY ALL ORDER BY ALL"
    )
    published = rows(world, count)
    assert published == [("optimize-v3", 3, first.num_rollouts, 0), ("optimize-v4", 4, len(TASKS), 0)]

    assert await round_under(3) == first, "a round that is over is not run again"
    assert rows(world, count) == published
    settings.budget = first.num_rollouts + len(TASKS) + needed - 1
    with pytest.raises(BudgetSpentError, match=f"{needed - 1} rollouts are left"):
        await round_under(5)
    settings.budget += 1
    assert (await round_under(5)).num_rollouts == len(TASKS)


@pytest.mark.long
async def test_what_was_revoked_under_other_weights_may_be_released_under_these(world: World, tmp_path: Path) -> None:
    """And of equal texts the one of this round is in use, though it is not the oldest."""
    path = world.write(tmp_path, "steady")
    good = (tmp_path / "heldout.jsonl").read_text()
    worse = [{"id": f"w{n}", "input": {"number": f"{n}.5", "right": f"{n}.5"}} for n in range(3)]
    (tmp_path / "heldout.jsonl").write_text("".join(json.dumps(line) + "\n" for line in worse))
    settings = load_run_settings(path).optimize
    assert settings is not None
    revoked = await optimize_round(world.bus, world.store.sql, "steady", settings, {"policy": 3})
    (tmp_path / "heldout.jsonl").write_text(good)
    async with Endpoint(follow, weight_version=4).as_node(world.bus):
        released = await optimize_round(world.bus, world.store.sql, "steady", settings, {"policy": 4})
    assert released.is_released and not revoked.is_released and released.texts == revoked.texts
    target = (await PromptRegistry(world.bus, "steady").resolve_target()).serve
    assert target is not None
    assert (target.version, target.text) == (released.versions["steady"], released.texts["steady"])
    assert await read_prompt_versions(world.bus, "steady") == released.versions
    assert await read_prompt_versions(world.bus, "killed") == {}


async def test_what_makes_heldout_tasks_worse_is_revoked(world: World, tmp_path: Path) -> None:
    path = world.write(tmp_path, "steady")
    worse = [{"id": f"w{n}", "input": {"number": f"{n}.5", "right": f"{n}.5"}} for n in range(3)]
    (tmp_path / "heldout.jsonl").write_text("".join(json.dumps(line) + "\n" for line in worse))
    done = await round_of(world, path)
    assert done.comparison is not None and not done.is_released
    registry = PromptRegistry(world.bus, "steady")
    target = (await registry.resolve_target()).serve
    assert target is not None and target.version == 0
    decision = registry.state.decisions[-1]
    assert (decision.action, decision.version) == ("revoked", done.versions["steady"])
    assert decision.reason == "held-out reward worse: 1 before, 0 after"


@pytest.mark.long
async def test_a_run_with_a_bus_of_its_own_is_stopped_and_goes_on(tmp_path: Path) -> None:
    """Its users and signing keys are made in its directory; the whole of it is ended by SIGTERM amid the search."""
    settings = {
        "name": "own",
        "bus": {"port": 0},
        "store": {"http_port": 0, "flush_interval_seconds": 0.05},
        "runners": [{"entrypoint": "prompted:notes", "working_dir": str(AGENTS), "concurrency": 1}],
    }
    async with Endpoint(reflect).serving() as reflecting, Endpoint(follow).serving() as node:
        path = write_run_file(tmp_path, "own", f"{reflecting.url}/v1", settings, agent="default")
        first = asyncio.create_task(run_command(path))
        async with node_of(tmp_path / "runs" / "own", node.url) as bus:
            while len(node.requests) < 12:
                await asyncio.sleep(0.05)  # an agent's calls announce themselves by no event
            endpoints = json.loads((tmp_path / "runs" / "own" / "endpoints.json").read_text())
            os.kill(endpoints["pid"], signal.SIGTERM)
            assert bus.nc.is_connected
        code, _, errors = await first
        assert code == 2 and f"lightningbus optimize --resume -c {path.name} goes on" in errors, errors[-2000:]
        second = asyncio.create_task(run_command(path, "--resume"))
        async with node_of(tmp_path / "runs" / "own", node.url):
            code, out, errors = await second
        assert code == 0, errors[-3000:]
        done = json.loads(out)
        assert done["released"] and SIGN in done["texts"]["own"] and ROUND in done["texts"]["own"]
        assert len(node.requests) == done["rollouts"]
    run, version = tmp_path / "runs" / "own", done["versions"]["own"]
    assert done["prompts"] == {"own": {"version": version, "file": "prompts/own.txt"}}
    assert (run / "prompts" / "own.txt").read_text() == done["texts"]["own"]
    assert json.loads((run / "results.json").read_text()) == done
    code, out, errors = await prompts_command(tmp_path, "show", "own", str(version), "--run", "own")
    assert (code, out) == (0, done["texts"]["own"] + "\n"), errors
    code, out, _ = await prompts_command(tmp_path, "list", "--run", str(run), "--json")
    assert code == 0 and [row["in_use"] for row in json.loads(out) if row["version"] == version] == [True]


async def test_a_prompt_that_the_agent_does_not_send_ends_the_run_after_the_first_evaluation(
    world: World, tmp_path: Path
) -> None:
    path = world.write(tmp_path, "steady", prompts={"solvr": {"text": "No agent of this test sends this text."}})
    with pytest.raises(UserError, match=r"prompt 'solvr' is in no model call of 9 rollouts \(9 calls\)"):
        await round_of(world, path)
    assert rows(world, "SELECT count() FROM tasks WHERE run_id = 'steady'") == [(len(TASKS),)]
    assert not world.reflecting.requests
