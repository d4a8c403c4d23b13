"""Users of the bus: what each role needs it may do, and nothing else; who is none of them is not let in."""

import asyncio
import itertools
import json
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from nats.aio.msg import Msg
from nats.errors import StaleConnectionError

from lightningbus.bus.client import Bus
from lightningbus.bus.dead_letters import DeadLetterQueue
from lightningbus.bus.embedded.nats_server import nats_server
from lightningbus.bus.errors import BusError, CredentialsError
from lightningbus.bus.jetstream.message import Message
from lightningbus.bus.lease import LeaseRenewer
from lightningbus.bus.prompts import PromptRegistry
from lightningbus.bus.security.credentials import Credentials
from lightningbus.bus.security.identities import identity_of
from lightningbus.bus.security.permissions import (
    LEAF_ROLES,
    PERMISSIONS,
    inbox_prefix,
    make_permissions,
    via_hub_domain,
)
from lightningbus.bus.security.users import create_users
from lightningbus.bus.streams.specs import (
    BUCKET,
    DEFAULT_POLICIES,
    GRADERS,
    STORE_CONSUMERS,
    STORE_DLQ,
    STORE_EVENTS,
    STORE_PROMPTS,
    STORE_TRAIN,
    STORE_WEIGHTS,
    ConsumerSpec,
    learner_consumer,
    runner_consumer,
)
from lightningbus.bus.weights.audit_log import AuditLog
from lightningbus.bus.weights.registry import WeightRegistry
from lightningbus.bus.weights.version_cache import WeightCache
from lightningbus.common.aio import cancel_and_wait
from lightningbus.inference.weights.updater import WeightUpdater
from lightningbus.learner.dispatch.dispatch_mark import RunDispatch
from lightningbus.learner.publishing.publisher import WeightPublisher
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.settings.weights import WeightSettings
from lightningbus.runners.prompts import AgentPrompts
from lightningbus.schemas import subjects
from lightningbus.schemas.audits.events import AuditVerdict, RolloutAudit
from lightningbus.schemas.codec import decode, encode
from lightningbus.schemas.fleet import Alert, Heartbeat
from lightningbus.schemas.grading import GradingRequest, RolloutGraded
from lightningbus.schemas.prompts import PromptCanary, PromptReleaseState, PromptVersion, digest_of
from lightningbus.schemas.reviews import RolloutReviewed
from lightningbus.schemas.tasks import Task, TaskBatchRecord
from lightningbus.schemas.training import DispatchMark
from lightningbus.schemas.weights.events import ReleaseState, SwapLockState, WeightManifest, WeightsActivated
from lightningbus.tasks.task_publisher import TaskPublisher
from tests import tensorfiles
from tests.commands import environment
from tests.factories import batches
from tests.inference.test_updater import Engine
from tests.pausing import paused
from tests.polling import HANG_SECONDS

pytestmark = pytest.mark.integration

LIGHTNINGBUS = [sys.executable, "-P", "-m", "lightningbus"]
ENVIRONMENT = environment()


@dataclass(frozen=True)
class Secured:
    """A server with users and mutual TLS, and the directory they were made in."""

    url: str
    users: Path
    policies: tuple[str, ...] = DEFAULT_POLICIES

    @asynccontextmanager
    async def as_(self, role: str, **changes: Any) -> AsyncIterator[Bus]:
        """A connection of a role; ``changes`` are of its access."""
        access = replace(Credentials.read(self.users, role), **changes)
        async with Bus.connect(self.url, name=role, wait=HANG_SECONDS, credentials=access) as bus:
            yield bus


def lightningbus(*arguments: object, cwd: Path) -> "subprocess.CompletedProcess[str]":
    command = [*LIGHTNINGBUS, *map(str, arguments)]
    return subprocess.run(
        command, cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, timeout=HANG_SECONDS, check=False
    )


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """Made and started as a user would: one server for every test here."""
    with serving(tmp_path_factory.mktemp("secured"), DEFAULT_POLICIES) as secured:
        yield secured


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """As `secured`, where learners train two models."""
    with serving(tmp_path_factory.mktemp("pair"), ("writer", "checker")) as pair:
        yield pair


@contextmanager
def serving(place: Path, policies: tuple[str, ...]) -> Iterator[Secured]:
    """Users of the learners of these models, and a server that knows them."""
    options = [option for model in policies for option in ("--policy", model)]
    names = ["--out", "secrets", "--tls", "--host", "bus.example.org"]
    process = lightningbus("bus", "create-users", *names, *options, cwd=place)
    assert process.returncode == 0, process.stderr
    command = [*LIGHTNINGBUS, "--credentials", "secrets", "bus", "--port", "0", "--dir", "bus", *options]
    with (place / "bus.log").open("w") as log:
        server = subprocess.Popen(command, cwd=place, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=log, text=True)
    assert server.stdout is not None
    try:
        line = server.stdout.readline()
        assert line.startswith("bus: nats://127.0.0.1:"), (place / "bus.log").read_text()
        yield Secured(line.removeprefix("bus: ").strip(), place / "secrets", policies)
    finally:
        server.terminate()
        server.wait(HANG_SECONDS)
        server.stdout.close()


async def take_next(bus: Bus, consumer: ConsumerSpec) -> Message:
    """The next message of a consumer, acknowledged for certain."""
    async with bus.pull(consumer, slots=1) as puller, asyncio.timeout(HANG_SECONDS):
        message = await anext(puller)
        await message.ack(sync=True)
        return message


@pytest.mark.parametrize(
    ("system", "as_learner", "model"),
    [("secured", "learner", "policy"), ("pair", "learner-checker", "checker")],
)
async def test_each_role_does_its_work_and_is_denied_nothing(
    system: str, as_learner: str, model: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The whole wire, over TLS: tasks, leases, spans, versions with their blobs, heartbeats, dead letters."""
    secured: Secured = request.getfixturevalue(system)
    consumer_of_learner = learner_consumer(model)
    async with AsyncExitStack() as exits:
        names = make_permissions(secured.policies)
        roles = {role: await exits.enter_async_context(secured.as_(role)) for role in names}
        runner, store, learner, node, client = (
            roles[role] for role in ("runner", "store", as_learner, "inference", "client")
        )
        await roles["admin"].provision(policies=secured.policies)
        fleet = await exits.enter_async_context(store.fleet("*"))
        watching = [await exits.enter_async_context(role.fleet("inference")) for role in (runner, learner)]
        for role, name in (
            ("runner", "runner"),
            ("inference", "inference"),
            ("store", "store"),
            (as_learner, "learner"),
        ):
            await exits.enter_async_context(roles[role].heartbeat(name, "one", lambda: {"state": "ready"}))
        async with asyncio.timeout(HANG_SECONDS):
            while len(fleet.members()) < 4:
                await fleet.wait_for_change()
            for nodes in watching:
                while not nodes.members():
                    await nodes.wait_for_change()
        for consumer in STORE_CONSUMERS:
            await store.ensure_consumer(consumer)

        tasks = runner_consumer("calc", "train", ack_wait=1.0)
        with pytest.raises(
            CredentialsError, match=r"run `lightningbus provision --agent calc --ack-wait 1` once as admin"
        ):
            await runner.ensure_consumer(tasks)
        await roles["admin"].provision(more=[tasks])
        await runner.ensure_consumer(tasks)
        runner.permission_errors.clear()
        published = [Task(id=name, run_id="r", agent="calc", input=1) for name in ("good", "bad")]
        await TaskPublisher(client).publish_tasks(published)
        assert (await store.js.stream_info(subjects.TASKS)).state.messages == 2
        async with runner.pull(tasks, slots=2) as puller, asyncio.timeout(HANG_SECONDS):
            good, bad = await anext(puller), await anext(puller)
            async with LeaseRenewer(good, ack_wait=1.0) as lease:
                renewed = lease.renewed
                while lease.renewed == renewed:
                    await asyncio.sleep(0.05)
            (batch,) = batches("good", 0, parts=1)
            await runner.publish(subjects.rollout("train"), batch, msg_id="b")
            await good.ack(sync=True)
            await DeadLetterQueue(runner).add(bad, "nobody could use it")
        assert isinstance((await take_next(store, STORE_EVENTS)).event(), TaskBatchRecord)
        assert (await take_next(store, STORE_TRAIN)).event() == batch
        assert (await take_next(learner, consumer_of_learner)).event() == batch
        assert (await learner.backlog(consumer_of_learner)).num_delivered == 1
        await learner.reset_consumer(consumer_of_learner, 1)
        await store.reset_consumer(consumer_of_learner, 1)
        assert (await learner.stream_state(subjects.TRAIN_ROLLOUTS)).last_seq == 1
        assert (await learner.stream_state(subjects.TASKS)).created_at
        verdict = AuditVerdict(
            engine_id="node:1", version=1, failed_version=1, reason="it differs", num_tokens=9, evidence=30,
            decided_at_ns=1,
        )  # fmt: skip
        audit = RolloutAudit(
            run_id="r", rollout_id="good.0", execution_id="e", call=0, model=model, engine_id="node:1", version=1,
            num_tokens=3, num_differing=3, mean_difference=1.0, max_difference=1.0, tolerance=0.01, evidence=30,
            audited_at_ns=1,
        )  # fmt: skip
        alert = Alert(role="learner", reason="the bus lost messages", fired_at_ns=1)
        await learner.publish(subjects.ALERT, alert, msg_id="alert")
        grader, grading = roles["grader"], GradingRequest(ending=batch)
        await runner.publish(subjects.grading("train"), grading, msg_id="grading")
        assert await grader.get_ack_wait(GRADERS) == GRADERS.ack_wait
        assert (await take_next(grader, GRADERS)).event() == grading
        await grader.publish(subjects.rollout("train"), batch, msg_id="end")
        grade = RolloutGraded(
            run_id="r", task_id="good", rollout_id="good.0", execution_id="e", grading="live", graders_sha256="",
            started_at_ns=1, graded_at_ns=1,
        )  # fmt: skip
        await grader.publish(subjects.ROLLOUT_GRADED, grade, msg_id="graded")
        review = RolloutReviewed(run_id="r", rollout_id="good.0", execution_id="e", score=1.0, reviewed_at_ns=1)
        await client.publish(subjects.ROLLOUT_REVIEWED, review, msg_id="reviewed")
        await exits.enter_async_context(grader.heartbeat("grader", "one", lambda: {"state": "grading"}))
        await exits.enter_async_context(grader.fleet("grader"))
        assert (await store.backlog(GRADERS)).num_pending == 0

        assert (await client.backlog(STORE_EVENTS)).num_unacknowledged > 0
        ((number, letter),) = [each async for each in DeadLetterQueue(client).list_letters()]
        assert letter.reason == "nobody could use it" and (await DeadLetterQueue(client).get(number)) == letter
        assert (await take_next(store, STORE_DLQ)).event() == letter
        await DeadLetterQueue(roles["admin"]).delete(number)

        contents = tensorfiles.weights(0, 200_000)
        settings = LearnerSettings(
            model=model,
            model_path=tmp_path,
            checkpoint_dir=tmp_path,
            keep_weight_versions=2,
            weights=WeightSettings(full_interval=2),
        )
        publisher = WeightPublisher(learner, settings)
        assert await publisher.refresh() is None
        for version in range(4):  # whole, a delta, whole, which purges both, and a delta
            contents = tensorfiles.stepped(contents, version)
            weights = tensorfiles.write(tmp_path / f"{version}.safetensors", contents)
            await publisher.publish(weights, version=version, epoch=1, step=version)
        assert publisher.last is not None and publisher.last.kind == "delta"
        engine = Engine()
        following = asyncio.create_task(WeightUpdater(node, "node", model, tmp_path / "node", engine).run())
        await engine.holds(3)
        await WeightRegistry(roles["admin"], model).append_decision("pinned", 2, actor="admin")
        await engine.holds(2)  # in its turn, and back to the manifest of an older version
        written = {version: (tmp_path / f"{version}.safetensors").read_bytes() for version in (3, 2)}
        assert engine.loaded == list(written.items())
        await WeightRegistry(node, model).append_decision("revoked", 3, actor="node")
        await publisher.publish(weights, version=4, epoch=1, step=4)  # looks at what is still needed
        auditor = roles["auditor"]
        for _ in range(2):
            await AuditLog(auditor, model).append(verdict)
        await auditor.publish(subjects.ROLLOUT_AUDITED, audit, msg_id="audit")
        await auditor.publish(subjects.ALERT, alert, msg_id="another alert")
        await WeightRegistry(auditor, model).append_decision("revoked", 0, actor="auditor")
        for reader in (learner, node, auditor):
            assert (await AuditLog(reader, model).refresh()).verdicts == (verdict, verdict)
        ((first_manifest, _),) = await WeightRegistry(auditor, model).manifests_of(2)
        assert await WeightCache(auditor, model, tmp_path).ensure(first_manifest)
        looking = WeightRegistry(client, model)
        assert [manifest.version async for manifest, _ in looking.list_versions()] == [4, 3, 2, 1, 0]
        ((_, first),) = await looking.manifests_of(2)
        async with asyncio.timeout(HANG_SECONDS):
            while [event.node for event in await looking.activations_of(first, 2)] != ["node"]:
                await asyncio.sleep(0.02)
        await cancel_and_wait(following)
        prompts = PromptRegistry(roles["admin"], "solver")
        async with AgentPrompts(runner, "calc").following() as followed:
            task = Task(id="a", run_id="r", agent="calc", input=1)
            assert await followed.choose(task) == ()
            for text in ("Add.", "Add up."):
                prompt = PromptVersion(
                    name="solver", version=0, text=text, sha256=digest_of(text), agent="calc", created_at_ns=1,
                    canary=PromptCanary() if text == "Add up." else None,
                )  # fmt: skip
                await prompts.publish(prompt)
            await prompts.append_decision("approved", 1, actor="admin")
            async with asyncio.timeout(HANG_SECONDS):
                while [choice.text for choice in await followed.choose(task)] != ["Add up."]:
                    await asyncio.sleep(0.02)
        assert [version.text for version in await PromptRegistry(client, "solver").read_all()] == ["Add.", "Add up."]
        kinds = [type((await take_next(store, STORE_PROMPTS)).event()) for _ in range(3)]
        assert kinds == [PromptVersion, PromptVersion, PromptReleaseState]
        kinds = [type((await take_next(store, STORE_WEIGHTS)).event()) for _ in range(8)]
        assert kinds[:6] == [*4 * [WeightManifest], WeightsActivated, ReleaseState]
        assert SwapLockState in kinds[6:]
        assert {role: list(bus.permission_errors) for role, bus in roles.items()} == {role: [] for role in roles}


API = "$JS.API"
ADMINISTRATION = [
    f"{API}.{request}"
    for request in (
        "INFO", "STREAM.LIST", "STREAM.CREATE.MINE", "STREAM.UPDATE.TASKS", "STREAM.DELETE.TASKS", "STREAM.PURGE.TASKS",
        "STREAM.PURGE.TRAIN_ROLLOUTS", "STREAM.PURGE.WEIGHTS", "STREAM.MSG.GET.EVAL_ROLLOUTS",
        "STREAM.MSG.DELETE.WEIGHTS",
        "STREAM.SNAPSHOT.EVENTS", "DIRECT.GET.EVENTS", "CONSUMER.CREATE.TRAIN_ROLLOUTS.mine.lb.rollout.train",
        "CONSUMER.CREATE.TRAIN_ROLLOUTS", "CONSUMER.CREATE.TASKS", "CONSUMER.DURABLE.CREATE.TASKS.mine",
        "CONSUMER.CREATE.TASKS.runner-calc.lb.task.*.calc", "CONSUMER.CREATE.TRAIN_ROLLOUTS.store.lb.rollout.train",
        "CONSUMER.CREATE.OBJ_weights.mine.$O.weights.C.x", "CONSUMER.DELETE.OBJ_weights.mine",
        "CONSUMER.DELETE.TASKS.runner-calc", "CONSUMER.PAUSE.TASKS.runner-calc", "CONSUMER.LIST.TASKS",
    )
]  # fmt: skip
"""What only ``admin`` may ask of JetStream."""
STORES = (f"{API}.CONSUMER.MSG.NEXT.TRAIN_ROLLOUTS.store", "$JS.ACK.TRAIN_ROLLOUTS.store.1.1.1.1.1")
LEARNERS = (f"{API}.CONSUMER.MSG.NEXT.TRAIN_ROLLOUTS.learner", f"{API}.CONSUMER.RESET.TRAIN_ROLLOUTS.learner")
TASK_READERS = (f"{API}.CONSUMER.MSG.NEXT.TASKS.runner-calc", "$JS.ACK.TASKS.runner-calc.1.1.1.1.1")
WEIGHT_WRITERS = ("lb.weights.version.policy", "$O.weights.C.x", "$O.weights.M.x", f"{API}.STREAM.PURGE.OBJ_weights")
DECISIONS = ("lb.weights.release.policy", "lb.weights.swap_lock.policy")
PROMPTS = ("lb.prompts.version.solver", "lb.prompts.release.solver")
LOOKING_BACK = (f"{API}.DIRECT.GET.WEIGHTS",)
ROLLOUTS, TASKS = ("lb.rollout.train", "lb.rollout.eval"), ("lb.task.train.calc",)
TASK_RECORDS = ("lb.event.task_published",)
STEPS, ALERTS = ("lb.event.training_step",), ("lb.alert",)
VERDICTS, AUDITS = ("lb.weights.audit.policy",), ("lb.event.rollout_audited",)
NODES = ("lb.weights.activated.node", "lb.heartbeat.inference.evil")
HEARTBEATS = ("lb.heartbeat.store.evil", "lb.heartbeat.learner.evil", "lb.heartbeat.runner.evil")
MAY_NOT_SAY = {
    "runner": (
        *PROMPTS, *STORES, *LEARNERS, *WEIGHT_WRITERS, *TASKS, *STEPS, *ALERTS, *NODES, *HEARTBEATS[:2],
        "lb.dlq.TRAIN_ROLLOUTS", *DECISIONS, *LOOKING_BACK, *VERDICTS, *AUDITS, "lb.event.rollout_graded",
        f"{API}.CONSUMER.MSG.NEXT.GRADING.graders", f"{API}.DIRECT.GET.WEIGHTS.lb.weights.version.policy",
        f"{API}.DIRECT.GET.OBJ_weights",
    ),
    "store": (
        *PROMPTS, *LEARNERS, *WEIGHT_WRITERS, *TASK_READERS, *ROLLOUTS, *TASKS, *TASK_RECORDS, *STEPS, *NODES,
        *HEARTBEATS[1:], *DECISIONS, *LOOKING_BACK, *VERDICTS, *AUDITS,
    ),
    "learner": (
        *PROMPTS, *STORES, *TASK_READERS, *ROLLOUTS, *NODES, HEARTBEATS[0], HEARTBEATS[2], "lb.dlq.TRAIN_ROLLOUTS",
        f"{API}.CONSUMER.CREATE.TRAIN_ROLLOUTS.learner.lb.rollout.train", *DECISIONS, *VERDICTS,
    ),
    "inference": (
        *PROMPTS, *STORES, *LEARNERS, *WEIGHT_WRITERS, *TASK_READERS, *ROLLOUTS, *TASKS, *TASK_RECORDS, *STEPS, *ALERTS,
        *HEARTBEATS, "lb.dlq.TASKS", *VERDICTS, *AUDITS,
    ),
    "auditor": (
        *PROMPTS, *STORES, *LEARNERS, *WEIGHT_WRITERS, *TASK_READERS, *ROLLOUTS, *TASKS, *TASK_RECORDS, *STEPS, *NODES,
        *HEARTBEATS, "lb.weights.swap_lock.policy", "lb.dlq.TASKS",
    ),
    "grader": (
        *PROMPTS, *STORES, *LEARNERS, *WEIGHT_WRITERS, *TASK_READERS, *TASKS, *TASK_RECORDS, *STEPS, *ALERTS, *NODES,
        *HEARTBEATS, *DECISIONS, *LOOKING_BACK, *VERDICTS, *AUDITS, "lb.grading.train", "lb.dlq.TASKS",
    ),
    "client": (
        *PROMPTS, *STORES, *LEARNERS, *WEIGHT_WRITERS, *TASK_READERS, *ROLLOUTS, *STEPS, *ALERTS, *NODES, *HEARTBEATS,
        "lb.dlq.TASKS", f"{API}.STREAM.MSG.DELETE.DLQ", f"{API}.CONSUMER.CREATE.DLQ", *DECISIONS, *VERDICTS,
        *AUDITS,
    ),
}  # fmt: skip
for leaf, role in LEAF_ROLES.items():
    MAY_NOT_SAY[leaf] = via_hub_domain((*MAY_NOT_SAY[role], *ADMINISTRATION))
HEARD = (
    "lb.task.>",
    "lb.rollout.train",
    "lb.event.*",
    "lb.weights.version.policy",
    "lb.weights.release.policy",
    "lb.weights.swap_lock.policy",
    "lb.weights.audit.policy",
    *PROMPTS,
    "lb.dlq.*",
    "lb.heartbeat.inference.*",
    "lb.heartbeat.*.*",
    "$JS.API.>",
    ">",
)
BEATS_OF_NODES = "lb.heartbeat.inference.*"
MAY_HEAR = {
    "runner": {*PROMPTS, BEATS_OF_NODES},
    "learner": {"lb.weights.version.policy", BEATS_OF_NODES},
    "inference": {
        "lb.weights.version.policy",
        "lb.weights.release.policy",
        "lb.weights.swap_lock.policy",
        "lb.weights.audit.policy",
        BEATS_OF_NODES,
    },
    "auditor": {"lb.rollout.train", BEATS_OF_NODES},
    "grader": set(),
    "store": {"lb.heartbeat.*.*", BEATS_OF_NODES},
    "client": {"lb.heartbeat.*.*", BEATS_OF_NODES, "lb.rollout.train"},
}
MAY_HEAR |= {leaf: MAY_HEAR[role] for leaf, role in LEAF_ROLES.items()}


async def denial(bus: Bus) -> str:
    """What the server says next that this user may not do."""
    async with asyncio.timeout(HANG_SECONDS):
        while not bus.permission_errors:
            await asyncio.sleep(0.002)
    return bus.permission_errors.pop()


@pytest.mark.parametrize("role", MAY_NOT_SAY)
async def test_what_a_role_does_not_need_is_refused(secured: Secured, role: str) -> None:
    """Each forbidden word, one after the other; the server says no to each, and to listening."""
    async with secured.as_(role) as bus:
        for subject in (*ADMINISTRATION, *MAY_NOT_SAY[role]):
            await bus.nc.publish(subject, b"{}", reply=bus.nc.new_inbox())
            assert f'publish to "{subject.lower()}"' in await denial(bus)
        others = [f"{inbox_prefix(other)}.>" for other in PERMISSIONS if inbox_prefix(other) != inbox_prefix(role)]
        for subject in {*HEARD, *others, "_INBOX.>"} - MAY_HEAR.get(role, set()):
            await bus.nc.subscribe(subject)
            assert f'subscription to "{subject.lower()}"' in await denial(bus)


@pytest.mark.parametrize(("role", "other"), [("learner-writer", "checker"), ("learner-checker", "writer")])
async def test_a_learner_neither_writes_nor_reads_for_another_model(pair: Secured, role: str, other: str) -> None:
    """Versions of its own model, messages of its own durable; and it hears no other learner's."""
    durable = subjects.learner_durable(other)
    requests = (f"{API}.CONSUMER.{request}.TRAIN_ROLLOUTS.{durable}" for request in ("INFO", "MSG.NEXT", "RESET"))
    async with pair.as_(role) as bus:
        forbidden = (subjects.weights(other), *requests, f"$JS.ACK.TRAIN_ROLLOUTS.{durable}.1.1.1.1.1")
        for subject in (*ADMINISTRATION, *MAY_NOT_SAY["learner"], *forbidden):
            await bus.nc.publish(subject, b"{}", reply=bus.nc.new_inbox())
            assert f'publish to "{subject.lower()}"' in await denial(bus)
        others = [inbox_prefix(each) for each in make_permissions(pair.policies) if each != role]
        for subject in {*HEARD, subjects.weights(other), *(f"{inbox}.>" for inbox in others)} - {BEATS_OF_NODES}:
            await bus.nc.subscribe(subject)
            assert f'subscription to "{subject.lower()}"' in await denial(bus)


async def test_learners_of_two_models_dispatch_together(pair: Secured, tmp_path: Path) -> None:
    """Each is told of the groups of the other, across their accounts, once the count is stored.

    Of 250 first announcements after a subscription across accounts, the server lost at least 6 on busy cores. A learner
    looks at the count before it dispatches, so it needs none of them. All of four are lost by chance once in a million.
    """
    announced: asyncio.Queue[bytes] = asyncio.Queue()

    async def on_mark(message: Msg) -> None:
        announced.put_nowait(message.data)

    async with pair.as_("learner-writer") as writer_bus, pair.as_("learner-checker") as checker_bus:
        writer, checker = (
            RunDispatch(bus, LearnerSettings(model_path=tmp_path, run="r", model=model, task_model="writer"), [])
            for bus, model in ((writer_bus, "writer"), (checker_bus, "checker"))
        )
        await checker_bus.nc.subscribe(checker.announced_on, cb=on_mark)
        await checker_bus.nc.flush()
        for num_groups in range(1, 5):
            await writer.advance(num_groups)
            assert await checker.refresh() == num_groups
            with suppress(TimeoutError):
                async with asyncio.timeout(15):
                    mark = decode(DispatchMark, await announced.get())
                break
        assert mark.groups_by_model == {"writer": num_groups}
        assert not writer_bus.permission_errors and not checker_bus.permission_errors and announced.empty()


async def test_models_of_similar_and_of_long_names_have_users_of_their_own(tmp_path: Path) -> None:
    models = ("a-b", "A-B", "a_b", "learner", "x" * 64)
    assert list(create_users(tmp_path / "users", tls=True, policies=models))
    async with nats_server(tmp_path / "nats", users=tmp_path / "users") as server, AsyncExitStack() as exits:

        async def enter(credentials: Credentials) -> Bus:
            return await exits.enter_async_context(Bus.connect(server.url, wait=HANG_SECONDS, credentials=credentials))

        await (await enter(Credentials.read(tmp_path / "users", "admin"))).provision(policies=models)
        for model in models:
            learner = await enter(Credentials.read_learner(tmp_path / "users", model))
            assert await learner.publish_bytes(subjects.weights(model), b"{}", {}, 10)
            for other in {*models} - {model}:
                await learner.nc.publish(subjects.weights(other), b"{}")
                assert f'publish to "{subjects.weights(other).lower()}"' in await denial(learner)


async def test_a_word_that_is_refused_is_an_error_at_once(secured: Secured) -> None:
    """No publisher waits for the acknowledgement of what the server will not take; provisioning neither."""
    async with secured.as_("runner") as bus, asyncio.timeout(HANG_SECONDS):
        with pytest.raises(CredentialsError, match=r"lb\.task\.train\.calc: this user has no right"):
            await TaskPublisher(bus).publish_task(Task(id="mine", run_id="r", agent="calc", input=1))
        with pytest.raises(CredentialsError, match=r"no right to do that: .*stream\.info\.tasks"):
            await bus.provision()


async def test_no_role_speaks_for_another_on_its_own_subject(secured: Secured) -> None:
    """A heartbeat counts for whom its subject names."""
    subject = subjects.heartbeat("runner", "one")
    async with secured.as_("runner") as runner, secured.as_("client") as client, client.fleet("*") as fleet:
        async with asyncio.timeout(HANG_SECONDS):
            while not fleet.members():  # what is published before the subscription is known does not arrive
                for role in ("inference", "runner"):
                    beat = Heartbeat(role=role, id="one", state="ready", pid=1, sent_at_ns=1)
                    await runner.nc.publish(subject, encode(beat))
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.2):
                        await fleet.wait_for_change()
        assert [beat.role for beat in fleet.members()] == ["runner"]


def overlap(first: str, second: str) -> bool:
    """Whether a subject can be of both filters."""
    for a, b in itertools.zip_longest(first.split("."), second.split(".")):
        if ">" in (a, b):
            return True
        if a != b and ("*" not in (a, b) or None in (a, b)):
            return False
    return True


PAIR = make_permissions(("writer", "checker"))


@pytest.mark.parametrize("role", sorted({*PERMISSIONS, *PAIR} - {"admin"}))
def test_no_two_rights_of_a_role_overlap(role: str) -> None:
    """A message of both would be imported twice."""
    rights = PAIR.get(role) or PERMISSIONS[role]
    assert [pair for pair in itertools.combinations(rights.publish, 2) if overlap(*pair)] == []
    assert [pair for pair in itertools.combinations(rights.subscribe, 2) if overlap(*pair)] == []


async def test_a_role_has_a_bound_on_its_connections(tmp_path: Path) -> None:
    """So that no role takes all that the server has; the others are let in as before."""
    list(create_users(tmp_path / "users", tls=False))
    most = PERMISSIONS["store"].max_connections
    assert most is not None
    async with nats_server(tmp_path / "nats", users=tmp_path / "users") as server, AsyncExitStack() as exits:

        async def enter(role: str, wait: float = HANG_SECONDS) -> Bus:
            connection = Bus.connect(server.url, wait=wait, credentials=Credentials.read(tmp_path / "users", role))
            return await exits.enter_async_context(connection)

        for _ in range(most):
            await enter("store")
        with pytest.raises(BusError):
            await enter("store", wait=3)
        await enter("learner")


async def test_jetstream_records_which_user_changed_something(secured: Secured) -> None:
    """Across accounts too: the advisory has the role's account, its user, and where it came from."""
    async with secured.as_("admin") as admin, secured.as_("learner") as learner:
        await admin.provision()
        await learner.js.purge_stream(BUCKET, subject="$O.weights.C.none")
        async with asyncio.timeout(HANG_SECONDS):
            while True:
                message = await admin.js.get_last_msg(subjects.AUDIT, subjects.API_ADVISORY, direct=True)
                advisory = json.loads(message.data or b"")
                if advisory["subject"] == f"{API}.STREAM.PURGE.{BUCKET}":
                    break
        client = advisory["client"]
        user = identity_of(secured.users / "learner")["user"]
        assert (client["acc"], client["user"], client["host"]) == ("LEARNER", user, "127.0.0.1")


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Users of another server."""
    place = tmp_path_factory.mktemp("strangers")
    assert len(list(create_users(place, tls=True))) == len(PERMISSIONS) + 2
    return place


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"password": None}, "rejects unknown users"),
        ({"password": "runner/password"}, "has no user of this certificate with the password in .*/runner/password"),
        ({"cert": None, "key": None}, "CERTIFICATE_REQUIRED"),
        ({"cert": "runner/cert.pem", "key": "runner/key.pem"}, "TLS with it fails"),
        ({"ca": "runner/ca.pem"}, "certificate is not to be trusted"),
    ],
    ids=["no password", "wrong password", "no certificate", "another's certificate", "another's server"],
)
async def test_a_stranger_is_refused_in_one_sentence(
    secured: Secured, strangers: Path, changes: dict[str, str | None], sentence: str
) -> None:
    """Whatever is missing or wrong is said at once, and not tried again and again."""
    wrong = {name: value and strangers / value for name, value in changes.items()}
    with pytest.raises(CredentialsError, match=f"the bus at {secured.url} cannot be used: .*{sentence}"):
        async with asyncio.timeout(HANG_SECONDS), secured.as_("runner", **wrong):
            pass


async def test_nothing_is_said_in_the_clear(secured: Secured) -> None:
    """Not a word comes before TLS, so nobody in between can say that there is none; and none is taken without."""
    with pytest.raises(BusError, match="if it wants TLS, give --credentials"):
        async with Bus.connect(secured.url, wait=15):
            pass
    with socket.create_connection(("127.0.0.1", int(secured.url.rpartition(":")[2])), timeout=HANG_SECONDS) as plain:
        plain.sendall(b'CONNECT {"verbose": true}\r\nPING\r\n')
        received = b""
        try:
            while more := plain.recv(4096):
                received += more
        except ConnectionResetError:
            pass
    assert b"INFO" not in received and b"PONG" not in received


def test_secrets_are_for_their_owner_and_are_not_written_over(secured: Secured) -> None:
    """Seeds, passwords and private keys are their owner's alone, in no log, and no second run replaces them."""
    secret = [
        path
        for path in secured.users.rglob("*")
        if path.name.endswith(("nkey", "password", "key.pem", "inference-api.key"))
    ]
    assert len(secret) == len(PERMISSIONS) + len(PERMISSIONS) + 2 + 2
    assert {path.stat().st_mode & 0o777 for path in secret} == {0o600}
    for holder in (*(f"{leaf}/nkey.conf" for leaf in LEAF_ROLES), "users.conf"):
        assert (secured.users / holder).stat().st_mode & 0o777 == 0o600
    written = [path.read_text() for path in secured.users.glob("*.conf")]
    logs = [path.read_text() for path in (secured.users.parent / "bus").glob("nats.*")]
    seeds = [path.read_text().strip() for path in secret if path.name == "nkey"]
    assert all(re.fullmatch(r"SU[A-Z2-7]{56}", seed) for seed in seeds)
    assert not any(seed in text for seed in seeds for text in (*written, *logs))
    again = lightningbus("bus", "create-users", "--out", secured.users, cwd=secured.users.parent)
    assert again.returncode == 2 and "users.conf exists: give another --out" in again.stderr


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        ("nkey", None, "the nkey cannot be read: .*nkey: No such file"),
        ("nkey", "SUNOTASEED", "nkey holds no nkey seed"),
        ("ca.pem", "no certificate", "ca.pem holds no certificate"),
        ("key.pem", "no key", "are not a certificate and its key"),
        ("credentials.json", "{", "credentials.json is not a credentials file"),
        (
            "credentials.json",
            '{"seed": "x"}',
            "credentials.json is not a credentials file: a JSON object of inbox, nkey",
        ),
        (
            "credentials.json",
            None,
            "has no credentials for role runner: it is not a directory that `lightningbus bus create-users` wrote",
        ),
    ],
)
def test_a_bad_file_is_one_sentence(tmp_path: Path, file: str, content: str | None, sentence: str) -> None:
    """By the file's name, never by what it holds."""
    list(create_users(tmp_path, tls=file != "nkey"))
    path = tmp_path / "runner" / file
    path.unlink()
    if content is not None:
        path.write_text(content)
    with pytest.raises(CredentialsError, match=sentence) as caught:
        Credentials.read(tmp_path, "runner")
    assert "SUNOTASEED" not in str(caught.value)


def test_a_bus_without_users_stays_on_loopback(tmp_path: Path) -> None:
    """Unless that is what is asked for by name."""
    refused = lightningbus("bus", "--host", "0.0.0.0", "--port", "0", cwd=tmp_path)
    assert refused.returncode == 2
    assert "0.0.0.0 is reached from other machines, and there are no users" in refused.stderr
    (tmp_path / "run.yaml").write_text("bus: {host: 0.0.0.0, port: 0}\n")
    refused = lightningbus("up", "-c", "run.yaml", cwd=tmp_path)
    assert refused.returncode == 2 and "there are no users" in refused.stderr


async def test_a_server_that_says_nothing_more_is_left_at_once(tmp_path: Path) -> None:
    """It does not answer pings, nor the end of TLS: a client that waited for that would be away for half a minute."""
    assert list(create_users(tmp_path / "users", tls=True))
    left = asyncio.Event()

    async def leave() -> None:
        left.set()

    async with nats_server(tmp_path / "nats", users=tmp_path / "users") as server:
        assert server.process is not None
        async with Bus.connect(server.url, credentials=Credentials.read(tmp_path / "users", "admin")) as bus:
            bus.nc._disconnected_cb = leave
            with paused(server.process.pid):
                await bus.nc._process_op_err(StaleConnectionError())  # what two pings without an answer come to
                async with asyncio.timeout(HANG_SECONDS):
                    await left.wait()
            async with asyncio.timeout(HANG_SECONDS):
                await bus.reconnected.wait()
