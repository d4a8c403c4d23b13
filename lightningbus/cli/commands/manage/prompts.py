"""``lightningbus prompts``: list, release, revoke and pin the versions of prompts."""

import getpass
import json
import socket
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec
import typer

from lightningbus.bus.prompts import PromptRegistry, check_prompt_exists, find_prompt_names
from lightningbus.cli.options import BusOption, JsonOption, RunBusOption, check_names, run_async
from lightningbus.cli.output import print_result
from lightningbus.run.errors import UserError
from lightningbus.run.run_data.run_bus import open_bus
from lightningbus.run.run_directory.discovery import connect
from lightningbus.schemas.prompts import PromptReleaseState, PromptVersion
from lightningbus.schemas.weights.release_policy import is_pending_canary, is_revoked, latest_verdict

app = typer.Typer(
    help="List, release and revoke the versions of prompts.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Action = Literal["approved", "revoked", "pinned", "unpinned"]
NameArgument = Annotated[str, typer.Argument(help="name of the prompt, as `list` shows it")]
VersionArgument = Annotated[int, typer.Argument(min=0, help="number of the version, as `list` shows it")]
ReasonOption = Annotated[str, typer.Option(help="reason to record with the decision")]
MAX_TEXT_CHARS = 60


@app.command("list")
def list_(
    name: Annotated[str | None, typer.Argument(help="list only the versions of this prompt")] = None,
    last: Annotated[int, typer.Option(min=1, help="most versions of each prompt to list, the newest first")] = 20,
    as_json: JsonOption = False,
    run: RunBusOption = None,
    bus: BusOption = None,
) -> None:
    """List versions, one per line. A line has origin, state, and the beginning of the text."""
    if name is not None:
        check_names(name=name)

    async def look() -> list[dict[str, Any]]:
        async with open_bus(bus, run, "prompts") as at:
            if name is not None:
                await check_prompt_exists(at, name)
            rows = []
            for each in [name] if name is not None else await find_prompt_names(at):
                registry = PromptRegistry(at, each)
                target = (await registry.resolve_target()).serve
                versions = sorted(await registry.read_all(), key=lambda version: -version.version)
                in_use = target.version if target is not None else 0
                rows += [_fields(version, registry.state, in_use) for version in versions[:last]]
            return rows

    rows = run_async(look())
    if not as_json:
        rows = [{**row, "text": _beginning(row["text"])} for row in rows]
    columns = list(rows[0]) if rows else []
    print_result((columns, [tuple(row.values()) for row in rows]), as_json, none="no prompt is on this bus")


@app.command("show")
def show_(
    name: NameArgument,
    version: Annotated[
        int | None, typer.Argument(min=0, help="number of the version [default: the one in use]")
    ] = None,
    as_json: JsonOption = False,
    run: RunBusOption = None,
    bus: BusOption = None,
) -> None:
    """Print the text of a version. With --json print also its origin and the decisions about it."""
    check_names(name=name)

    async def look() -> tuple[PromptVersion, PromptReleaseState]:
        async with open_bus(bus, run, "prompts") as at:
            await check_prompt_exists(at, name)
            registry = PromptRegistry(at, name)
            target = (await registry.resolve_target()).serve
            if version is None and target is not None:
                return target, registry.state
            ((manifest, _), *_) = await registry.manifests_of(version or 0)
            return manifest, registry.state

    prompt, release = run_async(look())
    if not as_json:
        print(prompt.text)
        return
    decisions = [msgspec.to_builtins(each) for each in release.decisions if each.version == prompt.version]
    print(json.dumps({**msgspec.to_builtins(prompt), "decisions": decisions}, indent=2, ensure_ascii=False))


@app.command()
def release(name: NameArgument, version: VersionArgument, reason: ReasonOption = "", bus: BusOption = None) -> None:
    """Allow a version in training, even if its evaluation was worse."""
    _decide("approved", name, version, bus, reason)


@app.command()
def revoke(
    name: NameArgument,
    version: VersionArgument,
    reason: Annotated[str, typer.Option(help="reason to record with the decision")],
    bus: BusOption = None,
) -> None:
    """Forbid a version. Rollouts that start from now on use another, unless their task is pinned to it."""
    _decide("revoked", name, version, bus, reason)


@app.command()
def pin(name: NameArgument, version: VersionArgument, reason: ReasonOption = "", bus: BusOption = None) -> None:
    """Make all rollouts use exactly this version, until it is unpinned."""
    _decide("pinned", name, version, bus, reason)


@app.command()
def unpin(name: NameArgument, reason: ReasonOption = "", bus: BusOption = None) -> None:
    """Remove the pin: rollouts use the newest released version again."""
    _decide("unpinned", name, None, bus, reason)


@app.command()
def repair(name: NameArgument, bus: BusOption = None) -> None:
    """Remove messages that every reader skips. They are unreadable, or signed by a role without that permission."""
    check_names(name=name)

    async def work() -> list[str]:
        async with connect(bus, "prompts", "admin") as at:
            return await PromptRegistry(at, name).repair()

    removed = run_async(work())
    for reason in removed:
        print(reason)
    print(f"messages removed: {len(removed)}")


def _decide(action: Action, name: str, version: int | None, bus: str | None, reason: str) -> None:
    check_names(name=name)

    async def work() -> int:
        async with connect(bus, "prompts", "admin") as at:
            await check_prompt_exists(at, name)
            registry = PromptRegistry(at, name)
            before = await registry.refresh()
            which = version if version is not None else before.pinned
            if which is None:
                raise UserError(f"no version of prompt {name!r} is pinned")
            await registry.manifests_of(which)
            if action == "pinned" and is_revoked(before, which):
                raise UserError(f"version {which} is revoked: `lightningbus prompts release {name} {which}` first")
            actor = f"{getpass.getuser()}@{socket.gethostname()}"
            await registry.append_decision(action, which, actor=actor, reason=reason)
            return which

    word = "released" if action == "approved" else action
    print(f"version {run_async(work())} of prompt {name} is {word}")


def _fields(version: PromptVersion, release: PromptReleaseState, in_use: int) -> dict[str, Any]:
    verdict = latest_verdict(release, version.version)
    return {
        "name": version.name,
        "version": version.version,
        "parent": version.parent,
        "agent": version.agent,
        "role": version.role or "",
        "run": version.run_id or "",
        "published": datetime.fromtimestamp(version.created_at_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S"),
        "state": _state(version, release),
        "in_use": version.version == in_use,
        "why": verdict.reason if verdict is not None else "",
        "text": version.text,
    }


def _state(version: PromptVersion, release: PromptReleaseState) -> str:
    if release.pinned == version.version:
        return "pinned"
    if is_pending_canary(release, version):
        return "awaits its evaluation"
    verdict = latest_verdict(release, version.version)
    return "revoked" if verdict is not None and verdict.action == "revoked" else "released"


def _beginning(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_TEXT_CHARS else f"{line[: MAX_TEXT_CHARS - 1]}…"
