"""``lightningbus weights``: list, pin, revoke and export the versions of a model."""

import asyncio
import getpass
import json
import logging
import os
import socket
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer

from lightningbus.bus.client import Bus
from lightningbus.bus.fleet.node_state import SUSPECT_SECONDS, is_ready, serves_version
from lightningbus.bus.weights.registry import WeightRegistry, can_list_files
from lightningbus.cli.commands.manage.weights_export import export
from lightningbus.cli.options import BusOption, JsonOption, RunBusOption, check_names, run_async
from lightningbus.cli.output import print_result
from lightningbus.run.errors import UserError
from lightningbus.run.run_data.model_choice import choose_model_on_bus
from lightningbus.run.run_data.run_bus import WEIGHT_STREAMS, open_bus
from lightningbus.run.run_directory.discovery import BUS_VARIABLE, connect
from lightningbus.run.run_directory.lookup import find_run
from lightningbus.schemas.fleet import Heartbeat
from lightningbus.schemas.weights.events import ReleaseState, WeightManifest
from lightningbus.schemas.weights.release_policy import (
    find_pin,
    is_pending_canary,
    is_revoked,
    is_servable,
    is_temporary,
    latest_verdict,
)

if TYPE_CHECKING:
    from lightningbus.run.results.results import Results

log = logging.getLogger(__name__)
app = typer.Typer(
    help="List, pin, revoke and export the weight versions of a model.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.command()(export)

What = Literal["approved", "revoked", "pinned", "unpinned"]
VersionArgument = Annotated[int, typer.Argument(min=0, help="number of the version, as `list` shows it")]
ModelOption = Annotated[str | None, typer.Option(help="name of the model [default: the only one on the bus]")]
RunDecisionOption = Annotated[
    str | None,
    typer.Option(
        "--run",
        help="run whose version is meant, by name or directory; it may have ended [default: the bus that is up]",
    ),
]
ReasonOption = Annotated[str, typer.Option(help="reason to record with the decision")]


@app.command("list")
def list_(
    model: ModelOption = None,
    last: Annotated[int, typer.Option(min=1, help="most versions to list, the newest first")] = 20,
    as_json: JsonOption = False,
    run: RunBusOption = None,
    bus: BusOption = None,
) -> None:
    """List versions, one per line. A line has origin, state, the nodes that serve it, and whether it is exportable.

    Where the run has evaluations, it has the version's held-out reward too, with the evaluation's name, and marks the
    best one.
    """
    _check_model(model)

    async def look() -> tuple[str, list[dict[str, object]]]:
        async with open_bus(bus, run, "weights", streams=WEIGHT_STREAMS) as at:
            chosen = await choose_model_on_bus(model, at)
            releases, nodes = WeightRegistry(at, chosen), await _nodes(at, chosen)
            release, rows = await releases.refresh(), dict[int, dict[str, object]]()
            results = _read_results(run, bus)
            async for manifest, _ in releases.list_versions():
                if len(rows) == last and manifest.version not in rows:
                    break
                if manifest.version not in rows:
                    exportable = await _describe_export(releases, manifest, release)
                    reward = _describe_reward(results, chosen, manifest) if results is not None else {}
                    rows[manifest.version] = {**_fields(manifest, release, nodes), **reward, "exportable": exportable}
            return chosen, list(rows.values())

    name, rows = run_async(look())
    if not as_json:
        rows = [{**row, "nodes": ", ".join(row["nodes"])} for row in rows]  # type: ignore[arg-type]
    columns = list(rows[0]) if rows else []
    print_result(
        (columns, [tuple(row.values()) for row in rows]), as_json, none=f"model {name!r} has no version on this bus"
    )


@app.command("show")
def show_(version: VersionArgument, model: ModelOption = None, run: RunBusOption = None, bus: BusOption = None) -> None:
    """Print a version as JSON. It has the manifest, the decisions, and the nodes that loaded it, with seconds."""
    _check_model(model)

    async def look() -> dict[str, object]:
        async with open_bus(bus, run, "weights", streams=WEIGHT_STREAMS) as at:
            chosen = await choose_model_on_bus(model, at)
            releases, nodes = WeightRegistry(at, chosen), await _nodes(at, chosen)
            release, manifests = await releases.refresh(), await releases.manifests_of(version)
            manifest, first = manifests[0][0], manifests[-1][1]
            applied = await releases.activations_of(first, version)
            return {
                **_fields(manifest, release, nodes),
                "manifest": _readable(manifest),
                "decisions": [
                    msgspec.to_builtins(decision) for decision in release.decisions if decision.version == version
                ],
                "applied": [msgspec.to_builtins(activation) for activation in applied],
            }

    print(json.dumps(run_async(look()), indent=2, ensure_ascii=False))


@app.command()
def revoke(
    version: VersionArgument,
    reason: Annotated[str, typer.Option(help="reason to record with the decision")],
    model: ModelOption = None,
    run: RunDecisionOption = None,
    bus: BusOption = None,
) -> None:
    """Forbid nodes to serve a version. Nodes that serve it go back to the newest one before it."""
    _decide("revoked", version, model, run, bus, reason)


@app.command()
def approve(
    version: VersionArgument,
    reason: ReasonOption = "",
    model: ModelOption = None,
    run: RunDecisionOption = None,
    bus: BusOption = None,
) -> None:
    """Allow nodes to serve a version, even a revoked one."""
    _decide("approved", version, model, run, bus, reason)


@app.command()
def pin(
    version: VersionArgument,
    reason: ReasonOption = "",
    model: ModelOption = None,
    run: RunDecisionOption = None,
    bus: BusOption = None,
) -> None:
    """Make all nodes serve exactly this version, until it is unpinned."""
    _decide("pinned", version, model, run, bus, reason)


@app.command()
def unpin(
    reason: ReasonOption = "", model: ModelOption = None, run: RunDecisionOption = None, bus: BusOption = None
) -> None:
    """Remove the pin: nodes follow the newest version again."""
    _decide("unpinned", None, model, run, bus, reason)


@app.command()
def repair(model: ModelOption = None, bus: BusOption = None) -> None:
    """Remove messages that every reader skips. They are unreadable, or signed by a role without that permission."""
    _check_model(model)

    async def work() -> list[str]:
        async with connect(bus, "weights", "admin") as at:
            return await WeightRegistry(at, await choose_model_on_bus(model, at)).repair()

    removed = run_async(work())
    for reason in removed:
        print(reason)
    print(f"messages removed: {len(removed)}")


def _decide(what: What, version: int | None, model: str | None, run: str | None, bus: str | None, reason: str) -> None:
    _check_model(model)

    async def work() -> tuple[int, str]:
        async with open_bus(bus, run, "weights", "admin", WEIGHT_STREAMS) as at:
            chosen = await choose_model_on_bus(model, at)
            releases = WeightRegistry(at, chosen)
            before = await releases.refresh()
            which = version if version is not None else before.pinned
            if which is None:
                raise UserError(f"no version of model {chosen!r} is pinned")
            (manifest, _), *_ = await releases.manifests_of(which)
            if what == "pinned":
                if is_revoked(before, which):
                    raise UserError(f"version {which} is revoked: `lightningbus weights approve {which}` first")
                if gone := await releases.find_expired_blob(manifest):
                    raise UserError(f"version {which} cannot be served any more: {gone} has expired")
            actor = f"{getpass.getuser()}@{socket.gethostname()}"
            await releases.append_decision(what, which, actor=actor, reason=reason)
            return which, _describe_replaced(before, actor) if what in ("pinned", "unpinned") else ""

    which, note = run_async(work())
    print(f"version {which} is {what}{note}")


def _describe_replaced(before: ReleaseState, actor: str) -> str:
    """Describe the pin of somebody else that a decision ends, as the rest of a sentence; empty: there was none."""
    pin = find_pin(before)
    if pin is None or pin.actor == actor:
        return ""
    reason = f" ({pin.reason})" if pin.reason else ""
    effect = "; that evaluation may fail" if is_temporary(pin) else ""
    return f"; this ends the pin of version {pin.version} by {pin.actor}{reason}{effect}"


def _check_model(model: str | None) -> None:
    if model is not None:
        check_names(model=model)


def _read_results(run: str | None, bus: str | None) -> "Results | None":
    """Read the figures of ``run``, else of the latest run here; None where it has no evaluations that can be read."""
    if run is None and (bus or os.environ.get(BUS_VARIABLE)):
        return None
    directory = find_run(run)
    if directory is None or not (directory.path / "results.json").exists():
        return None
    from lightningbus.run.results.results import Results  # needs the extra `store`, as the job that wrote the file

    try:
        results = Results.read(directory.path)
    except UserError as error:
        log.warning("no rewards are listed: %s", error)
        return None
    return results if results is not None and results.evaluations else None


def _describe_reward(results: "Results", model: str, manifest: WeightManifest) -> dict[str, object]:
    """Return the held-out reward of a version by its evaluation, None without one, and whether it is the best. Pure."""
    from lightningbus.run.results.best_version import choose_label, find_best, list_rewards, version_of

    rewards = list_rewards(results.evaluations, model, results.best_by) if manifest.run_id == results.run else {}
    best = find_best(results.evaluations, results.best_by)
    is_best = manifest.version in rewards and best is not None and version_of(best, model) == manifest.version
    label = choose_label(results.evaluations, results.best_by) if manifest.version in rewards else ""
    return {"reward": rewards.get(manifest.version), "evaluation": label, "best": "yes" if is_best else ""}


async def _nodes(at: Bus, model: str) -> list[Heartbeat]:
    async with at.fleet("inference") as fleet:
        await asyncio.sleep(SUSPECT_SECONDS)  # a live node has sent a heartbeat by then
        return [beat for beat in fleet.members() if beat.model == model]


def _fields(manifest: WeightManifest, release: ReleaseState, nodes: Sequence[Heartbeat]) -> dict[str, object]:
    is_pinned = release.pinned == manifest.version
    decision = find_pin(release) if is_pinned else latest_verdict(release, manifest.version)
    return {
        "version": manifest.version,
        "step": manifest.step,
        "kind": manifest.kind,
        "bytes": sum(blob.size for blob in manifest.blobs),
        "published": datetime.fromtimestamp(manifest.created_at_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S"),
        "state": _state(manifest, release),
        "why": decision.reason if decision is not None else "",
        "nodes": [beat.id for beat in nodes if is_ready(beat.state) and serves_version(beat, manifest.version)],
    }


def _state(manifest: WeightManifest, release: ReleaseState) -> str:
    if release.pinned == manifest.version:
        return "pinned"
    if manifest.canary is not None and is_pending_canary(release, manifest):
        return f"awaits {manifest.canary.title}"
    verdict = latest_verdict(release, manifest.version)
    return verdict.action if verdict is not None else "approved"


async def _describe_export(registry: WeightRegistry, manifest: WeightManifest, release: ReleaseState) -> str:
    """Return whether `weights export` can write a version, as a short text."""
    if await registry.find_expired_blob(manifest):
        return "no: its files have expired"
    if not can_list_files(manifest):
        return f"unknown: its files are in {manifest.location}"
    return "yes" if is_servable(release, manifest) else "with --force"


def _readable(manifest: WeightManifest) -> Mapping[str, Any]:
    """Convert a manifest to builtins, without the tokens of its trial."""
    fields: dict[str, Any] = msgspec.to_builtins(manifest)
    if manifest.canary is not None:
        fields["canary"] = {**fields["canary"], "prompts": len(manifest.canary.prompts)}
    return fields
