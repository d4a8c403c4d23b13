"""``lightningbus prompts``: what there is, what it says, and decisions that runners follow."""

import asyncio
import json
from typing import Any

from typer.testing import CliRunner

from lightningbus.bus.client import Bus
from lightningbus.bus.prompts import PromptRegistry
from lightningbus.cli.app import app
from lightningbus.runners.prompts import AgentPrompts
from lightningbus.schemas import subjects
from lightningbus.schemas.codec import schema_of
from lightningbus.schemas.prompts import PromptCanary, PromptVersion, digest_of
from lightningbus.schemas.tasks import Task

TASK = Task(id="a", run_id="r", agent="default", input=1)


async def prompts(url: str, *arguments: object, code: int = 0) -> str:
    """``lightningbus prompts …``; its output, or its error if it is to fail."""
    words = ["prompts", *map(str, arguments), "--bus", url]
    done = await asyncio.to_thread(CliRunner().invoke, app, words)
    assert done.exit_code == code, (done.output, done.exception)
    return done.stderr if code else done.stdout


async def states(url: str) -> list[tuple[Any, ...]]:
    rows = json.loads(await prompts(url, "list", "--json"))
    return [(row["version"], row["state"], row["in_use"]) for row in rows]


async def publish(bus: Bus, *texts: str) -> None:
    for number, text in enumerate(texts):
        version = PromptVersion(
            name="solver", version=0, text=text, sha256=digest_of(text), created_at_ns=0,
            canary=PromptCanary() if number else None,
        )  # fmt: skip
        await PromptRegistry(bus, "solver").publish(version)


async def test_versions_are_listed_shown_released_revoked_and_pinned(bus: Bus, nats_url: str) -> None:
    assert "no prompt is on this bus" in await prompts(nats_url, "list")
    await publish(bus, "Add.", "Add up.", "Add twice.")
    async with AgentPrompts(bus, "default").following() as followed:

        async def used() -> str:
            await bus.nc.flush()  # the decision's own message has been heard by then
            return (await followed.choose(TASK))[0].text

        waiting = "awaits its evaluation"
        assert await states(nats_url) == [(2, waiting, False), (1, waiting, False), (0, "released", True)]
        assert await used() == "Add."
        assert "version 2 of prompt solver is released" in await prompts(nats_url, "release", "solver", 2)
        assert (await used(), await prompts(nats_url, "show", "solver")) == ("Add twice.", "Add twice.\n")
        await prompts(nats_url, "pin", "solver", 1)
        assert await states(nats_url) == [(2, "released", False), (1, "pinned", True), (0, "released", False)]
        assert await used() == "Add up."
        await prompts(nats_url, "unpin", "solver")
        await prompts(nats_url, "revoke", "solver", 2, "--reason", "it swears")
        assert await used() == "Add."
        fields = json.loads(await prompts(nats_url, "show", "solver", 2, "--json"))
        assert [each["action"] for each in fields["decisions"]] == ["approved", "revoked"]
        assert fields["decisions"][1]["reason"] == "it swears" and fields["text"] == "Add twice."


async def test_what_cannot_be_done_is_said_in_a_sentence(bus: Bus, nats_url: str) -> None:
    await publish(bus, "Add.", "Add up.")
    sentence = "no prompt is called 'other' on this bus; these are: solver"
    assert sentence in await prompts(nats_url, "show", "other", code=2)
    assert "no version of prompt 'solver' is pinned" in await prompts(nats_url, "unpin", "solver", code=2)
    missing = "prompt 'solver' has no version 9 on this bus: see `lightningbus prompts list`"
    assert missing in await prompts(nats_url, "pin", "solver", 9, code=2)
    await prompts(nats_url, "revoke", "solver", 1, "--reason", "bad")
    again = "version 1 is revoked: `lightningbus prompts release solver 1` first"
    assert again in await prompts(nats_url, "pin", "solver", 1, code=2)


async def test_a_message_that_nobody_can_read_is_passed_over_and_removed(bus: Bus, nats_url: str) -> None:
    await publish(bus, "Add.")
    headers = {subjects.SCHEMA_HEADER: schema_of(PromptVersion), subjects.MSG_ID_HEADER: "x"}
    await bus.publish_bytes(subjects.prompt("solver"), b"\xc1", headers, 10)
    assert [version.text for version in await PromptRegistry(bus, "solver").read_all()] == ["Add."]
    assert "messages removed: 1" in await prompts(nats_url, "repair", "solver")
    assert "messages removed: 0" in await prompts(nats_url, "repair", "solver")


async def test_two_writers_never_give_two_texts_one_number(bus: Bus) -> None:
    from lightningbus.bus.errors import FencedError

    await publish(bus, "Add.")
    version = PromptVersion(name="solver", version=0, text="x", sha256=digest_of("x"), created_at_ns=0)
    done = await asyncio.gather(
        *(PromptRegistry(bus, "solver").publish(version) for _ in range(5)), return_exceptions=True
    )
    assert all(isinstance(each, PromptVersion | FencedError) for each in done)
    numbers = [each.version for each in await PromptRegistry(bus, "solver").read_all()]
    assert numbers == list(range(len(numbers))) and len(numbers) >= 2
