"""Where an answer goes: no reply subject makes the broker do or store what its sender may not."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from nats.aio.msg import Msg

from lightningbus.bus.client import Bus
from lightningbus.bus.embedded.nats_server import find_server, nats_server
from lightningbus.bus.jetstream.batch_get import batch_get, sequence_of
from lightningbus.bus.security.accounts import is_within
from lightningbus.bus.security.credentials import Credentials
from lightningbus.bus.security.permissions import PERMISSIONS, make_permissions
from lightningbus.bus.security.users import create_users
from lightningbus.bus.streams.specs import DEFAULT_POLICIES, GRADERS, STREAMS, durable_consumers, runner_consumer
from lightningbus.schemas import subjects
from tests.polling import HANG_SECONDS

pytestmark = pytest.mark.integration

API = "$JS.API"
REQUESTS = (
    "INFO", "STREAM.CREATE.*", "STREAM.UPDATE.*", "STREAM.NAMES", "STREAM.LIST", "STREAM.INFO.*", "STREAM.DELETE.*",
    "STREAM.PURGE.*", "STREAM.SNAPSHOT.*", "STREAM.RESTORE.*", "STREAM.MSG.DELETE.*", "STREAM.MSG.GET.*",
    "STREAM.PEER.REMOVE.*", "STREAM.PEER.EVACUATE.*", "STREAM.CANCEL_MOVE.*", "STREAM.LEADER.STEPDOWN.*",
    "DIRECT.GET.*", "DIRECT.GET.*.lb.weights.version.policy",
    "CONSUMER.CREATE.*", "CONSUMER.CREATE.*.mine", "CONSUMER.CREATE.*.mine.lb.task.train.calc",
    "CONSUMER.DURABLE.CREATE.*.*", "CONSUMER.NAMES.*", "CONSUMER.LIST.*", "CONSUMER.INFO.*.*", "CONSUMER.DELETE.*.*",
    "CONSUMER.PAUSE.*.*", "CONSUMER.MSG.NEXT.*.*", "CONSUMER.RESET.*.*", "CONSUMER.UNPIN.*.*",
    "CONSUMER.LEADER.STEPDOWN.*.*", "CONSUMER.PEER.REMOVE.*.*", "CONSUMER.PEER.EVACUATE.*.*",
    "META.LEADER.STEPDOWN", "META.RESCUE", "SERVER.REMOVE", "SERVER.EVACUATE",
    "ACCOUNT.PURGE.*", "ACCOUNT.STREAM.MOVE.*.*", "ACCOUNT.STREAM.CANCEL_MOVE.*.*",
)  # fmt: skip
"""Every request JetStream's API knows, as nats-server's source lists them (jetstream_api.go)."""
SUBJECTS = {str(stream.name): stream.subjects or [] for stream in STREAMS}
Policies = tuple[str, ...]
PAIR = ("writer", "checker")
ROLES: list[tuple[Policies, str]] = [
    *((DEFAULT_POLICIES, role) for role in PERMISSIONS if role != "admin" and not role.startswith("leaf")),
    (PAIR, "learner-writer"),
]
"""With the models that learners train there."""
AGENTS = runner_consumer("calc", "train")
QUEUES = (AGENTS, GRADERS)
"""Readers whose role's own pulls take messages away."""
EMPTY = b"{}"
"""What lies in the streams: a body that any request takes."""
BODIES: dict[str, tuple[bytes, ...]] = {
    "MSG.NEXT": (b'{"batch": 1, "no_wait": true}', b'{"batch": 1, "expires": 1000000, "idle_heartbeat": 400000}'),
    "DIRECT.GET": (b"", b'{"seq": 1}', b'{"seq": 1, "batch": 2, "next_by_subj": ">"}'),
    "MSG.GET": (b'{"seq": 1}',),
    "STREAM.PURGE": (b'{"filter": "$O.weights.C.none"}',),
    "RESET": (b'{"seq": 1}',),
}
WORDS = (
    "lb.task.train.calc", "lb.grading.train",
    "lb.rollout.train", "lb.rollout.eval", "lb.event.training_step", "lb.alert",
    "lb.weights.version.policy", "lb.weights.version.checker", "lb.weights.activated.node", "lb.weights.release.policy",
    "lb.weights.swap_lock.policy", "lb.dlq.TASKS",
    "lb.prompts.version.solver", "lb.prompts.release.solver", "lb.dispatch.run",
    "lb.dlq.TRAIN_ROLLOUTS", "$O.weights.C.evil", "$O.weights.M.evil", "lb.heartbeat.inference.evil",
    "lb.heartbeat.store.evil",
)  # fmt: skip


def targets(policies: Policies) -> Iterator[str]:
    """Every subject at which an answer could do harm."""
    names = [str(stream.name) for stream in STREAMS]
    durables = [(reader.stream, reader.durable) for reader in (*durable_consumers(policies), AGENTS)]
    for request in REQUESTS:
        head, stars = f"{API}.{request}", request.count("*")
        if stars == 2:
            yield from (head.replace("*", stream, 1).replace("*", durable, 1) for stream, durable in durables)
        else:
            yield from (head.replace("*", name) for name in (names if stars else [""]))
    yield from (f"$JS.ACK.{stream}.{durable}.1.1.1.1.1" for stream, durable in durables)
    yield from WORDS
    yield subjects.API_ADVISORY


def literal(subject: str) -> str:
    """One subject of a filter, of something that is there."""
    if subject.startswith("$JS.ACK."):  # of a sequence nobody has: the role's own deliveries are not in question
        return subject.replace("*", AGENTS.durable).replace(">", "1.999.999.1.0")
    known = {
        f"{API}.CONSUMER": AGENTS.durable, "lb.task": "train", "lb.rollout": "eval", "lb.event": "training_step",
        "lb.dlq": "EVENTS",
    }  # fmt: skip
    token = next((token for start, token in known.items() if subject.startswith(start)), "policy")
    return re.sub(r">$", "train.calc", subject).replace("*", token)


def requests(allowed: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """What a role may ask or publish, with every body that matters."""
    for right in allowed:
        bodies = next((some for kind, some in BODIES.items() if f".{kind}." in right), (b"", EMPTY))
        yield from ((literal(right), body) for body in bodies)


@pytest.fixture
async def secured(tmp_path: Path, policies: Policies) -> AsyncIterator[tuple[str, Path]]:
    """A server with users."""
    list(create_users(tmp_path / "users", tls=False, policies=policies))
    async with nats_server(tmp_path / "nats", users=tmp_path / "users") as server:
        yield server.url, tmp_path / "users"


async def contents(admin: Bus) -> dict[str, Any]:
    """Streams with their configuration, consumers with theirs, and every message by stream and sequence."""
    snapshot: dict[str, Any] = {}
    for info in await admin.js.streams_info():
        name = str(info.config.name)
        snapshot[name] = info.config
        for consumer in await admin.js.consumers_info(name):
            snapshot[f"{name} {consumer.name}"] = (consumer.config, consumer.created)
            if consumer.name not in {queue.durable for queue in QUEUES}:
                snapshot[f"{name} {consumer.name} acknowledged"] = consumer.ack_floor and consumer.ack_floor.stream_seq
    return snapshot


async def stored(admin: Bus) -> set[tuple[str, int, str]]:
    """(stream, sequence, subject) of everything stored, less what the server itself has put into its record."""
    entries = set()
    for stream in STREAMS:
        request = {"seq": 1, "batch": 1_000_000, "next_by_subj": ">"}
        async with batch_get(admin.nc, str(stream.name), request, 10) as messages:
            async for message in messages:
                if stream.name == subjects.AUDIT and b"io.nats.jetstream.advisory.v1.api_audit" in message.data:
                    continue
                entries.add((str(stream.name), sequence_of(message), str((message.headers or {})["Nats-Subject"])))
    return entries


async def prepare(admin: Bus, policies: Policies, many: int) -> None:
    """Streams with messages in each, more than will be pulled, of which the readers hold some."""
    await admin.provision(policies=policies)
    await admin.ensure_consumer(AGENTS)
    for word in WORDS:
        if not word.startswith("lb.heartbeat"):
            await asyncio.gather(*(admin.publish_bytes(word, EMPTY, {}, 30) for _ in range(many)))
    for reader in durable_consumers(policies):
        pull = await admin.js.pull_subscribe_bind(reader.durable, reader.stream)
        await pull.fetch(1, timeout=HANG_SECONDS)


@pytest.mark.parametrize(
    ("policies", "role"),
    [pytest.param(*each, id=each[1], marks=[] if each[1] == "runner" else pytest.mark.long) for each in ROLES],
)
async def test_no_answer_does_what_its_receiver_may_not(
    secured: tuple[str, Path], policies: Policies, role: str
) -> None:
    """Every subject of JetStream's API, and of all that is stored, as the reply subject of all a role may send."""
    url, users = secured
    landed: set[str] = set()
    allowed, replies = make_permissions(policies)[role].publish, list(targets(policies))

    def taking(word: str) -> Callable[[Msg], Awaitable[None]]:
        async def take(message: Msg) -> None:
            landed.add(word)  # a message shows the subject it was stored under; only its reader counts

        return take

    async with (
        Bus.connect(url, credentials=Credentials.read(users, "admin")) as admin,
        Bus.connect(url, credentials=Credentials.read(users, role)) as bus,
    ):
        await prepare(admin, policies, 4 * len(replies))
        before, entries = await contents(admin), await stored(admin)
        for target in {*replies} - {subjects.API_ADVISORY}:
            await admin.nc.subscribe(target, cb=taking(target))
        await admin.nc.flush()
        everything = list(requests(allowed))
        for reply in replies:
            for subject, body in everything:
                await bus.nc.publish(subject, body, reply=reply)
                await bus.nc.publish(subject, body, headers={"Nats-Trace-Dest": reply})
            await bus.nc.flush()
        await admin.nc.flush()
        foreign = {word for word in landed if not _may(word, allowed)}
        now = await contents(admin)
        assert now.keys() == before.keys(), "a stream or a consumer is gone, or new"
        assert now == before, "streams and consumers are as they were"
        assert foreign == set(), "an answer came to a subject its receiver may not publish to"
        after = await stored(admin)
        gone = {stream for stream, _, subject in entries - after if not _may_remove(stream, subject, allowed)}
        assert gone == set(), "no message is gone"
        # A message in another stream keeps its subject there, which no reader's filter has.
        written = {subject for stream, _, subject in after - entries if _may(subject, SUBJECTS[stream])}
        assert {subject for subject in written if not _may(subject, allowed)} == set()


def _may_remove(stream: str, subject: str, allowed: Sequence[str]) -> bool:
    """Whether a role may purge a stream, settle what it took from it, or replace the last message of a subject."""
    purge = f"{API}.STREAM.PURGE.{stream}"
    replaces = stream == subjects.DISPATCH and _may(subject, allowed)
    settles = any(stream == queue.stream and _may(f"$JS.ACK.{stream}.{queue.durable}.1", allowed) for queue in QUEUES)
    return replaces or settles or _may(purge, allowed)


def _may(subject: str, allowed: Sequence[str]) -> bool:
    return any(is_within(subject, right) for right in allowed)


def test_every_request_of_this_servers_jetstream_is_tried() -> None:
    """The names that the program itself holds are all in the table."""
    program = Path(find_server()).read_bytes()
    known = {re.sub(r"(\.\*)+(\..*)?$", "", request) for request in REQUESTS}
    served = {name.decode() for name in re.findall(rb"\$JS\.API\.([A-Z_]+(?:\.[A-Z_]+)*)(?:\.\*)+", program)}
    assert served, "no request is in the program: the server is made otherwise now"
    assert served - known == set()
