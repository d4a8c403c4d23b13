"""The bus against a real nats-server."""

import asyncio
import base64
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import DiscardPolicy, RetentionPolicy, StreamConfig

from lightningbus.bus.client import Bus
from lightningbus.bus.dead_letters import DeadLetterQueue
from lightningbus.bus.embedded.nats_server import NatsServer
from lightningbus.bus.errors import (
    BusError,
    ChecksumMismatchError,
    FencedError,
    PublishFailure,
    PublishTimeoutError,
    StreamFullError,
    classify,
)
from lightningbus.bus.fleet.heartbeats import Fleet
from lightningbus.bus.jetstream.batch_get import batch_get, sequence_of
from lightningbus.bus.jetstream.object_store import CHUNK_BYTES
from lightningbus.bus.lease import LeaseRenewer
from lightningbus.bus.streams.provisioning import ensure_stream
from lightningbus.bus.streams.specs import STORE_EVENTS, learner_consumer, runner_consumer
from lightningbus.common.aio import cancel_and_wait
from lightningbus.schemas import subjects
from lightningbus.schemas.codec import DecodeError, encode, schema_of
from lightningbus.schemas.dead_letters import DeadLetter
from lightningbus.schemas.fleet import Heartbeat
from lightningbus.schemas.tasks import Task, TaskBatchRecord
from lightningbus.schemas.weights.events import Blob
from lightningbus.tasks.task_publisher import TaskPublisher
from tests.pausing import paused
from tests.polling import HANG_SECONDS


def task(number: int, **fields: object) -> Task:
    return Task(id=f"t{number}", run_id="test", agent="calc", input={"n": number}, **fields)  # type: ignore[arg-type]


async def test_a_published_task_reaches_a_runner_with_its_trace_and_its_record_reaches_the_store(bus: Bus) -> None:
    """One call publishes the task and the record of it, in one trace."""
    await bus.ensure_consumer(runner_consumer("calc", "train"))
    await TaskPublisher(bus).publish_task(task(1))
    async with bus.pull(runner_consumer("calc", "train"), slots=2) as tasks, bus.pull(STORE_EVENTS, slots=2) as records:
        message = await asyncio.wait_for(anext(tasks), HANG_SECONDS)
        assert message.decode_as(Task) == task(1)
        assert message.num_delivered == 1
        record = (await asyncio.wait_for(anext(records), HANG_SECONDS)).event()
        assert isinstance(record, TaskBatchRecord)
        span = record.tasks[0].span
        assert message.headers["traceparent"] == f"00-{span.trace_id}-{span.span_id}-01"


async def test_publishing_the_same_event_twice_stores_it_once(bus: Bus) -> None:
    """Message ids come from what the event is, so a retry is not a second message."""
    first = await bus.publish(subjects.task("train", "calc"), task(1), msg_id="task:t1.0")
    again = await bus.publish(subjects.task("train", "calc"), task(1), msg_id="task:t1.0")
    assert first == again
    assert (await bus.js.stream_info(subjects.TASKS)).state.messages == 1


async def test_a_full_stream_is_backpressure_and_then_said_to_be_full(bus: Bus) -> None:
    """A full stream makes the publisher wait until its deadline, and go on by itself once there is room."""
    await ensure_stream(bus.js, StreamConfig(name="SMALL", subjects=["small.>"], max_msgs=1, discard=DiscardPolicy.NEW))
    await bus.publish("small.a", task(1), msg_id="1")
    with pytest.raises(StreamFullError, match="stayed full"):
        await bus.publish("small.a", task(2), msg_id="2", timeout=0.5)
    waiting = asyncio.create_task(bus.publish("small.a", task(3), msg_id="3", timeout=HANG_SECONDS))
    await bus.js.purge_stream("SMALL")
    assert await waiting > 1


def test_a_message_that_is_on_its_way_through_a_cluster_is_sent_again() -> None:
    """An answer that was lost in a cut leaves the first try there; the error is as a server of three gave it."""
    error = {"code": 409, "err_code": 10158, "description": "duplicate message id is in process"}
    assert classify(error) is PublishFailure.RETRY
    assert classify({**error, "description": "expected stream does not match"}) is PublishFailure.FATAL


async def test_a_second_writer_is_fenced_off(bus: Bus) -> None:
    """Compare-and-set on the subject's last sequence: who has not seen the last message cannot write the next."""
    subject = subjects.weights("policy")
    first = await bus.publish(subject, task(1), msg_id="1", expect_last=0)
    await bus.publish(subject, task(2), msg_id="2", expect_last=first)
    with pytest.raises(FencedError):
        await bus.publish(subject, task(3), msg_id="3", expect_last=first)


async def test_publishing_where_no_stream_listens_ends_at_the_deadline(bus: Bus) -> None:
    """No publish waits for ever."""
    with pytest.raises(PublishTimeoutError, match="provisioned"):
        await bus.publish("nobody.listens", task(1), msg_id="1", timeout=0.3)


async def test_many_publishes_are_in_flight_at_once(bus: Bus) -> None:
    """A thousand messages published together are all stored, each with a sequence of its own."""
    sends = (bus.publish(subjects.task("train", "calc"), task(n), msg_id=str(n)) for n in range(1000))
    assert len(set(await asyncio.gather(*sends))) == 1000


async def test_the_pull_loop_never_holds_more_than_its_slots_and_refills_each_freed_one(bus: Bus) -> None:
    """Three slots: three tasks held, no fourth until one is settled, then exactly one more."""
    await bus.ensure_consumer(runner_consumer("calc", "train"))
    for n in range(6):
        await TaskPublisher(bus).publish_task(task(n))
    async with bus.pull(runner_consumer("calc", "train"), slots=3) as puller:
        messages = [await asyncio.wait_for(anext(puller), HANG_SECONDS) for _ in range(3)]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(puller), 0.3)
        await messages[1].ack(sync=True)
        fourth = await asyncio.wait_for(anext(puller), HANG_SECONDS)
        assert fourth.decode_as(Task).id == "t3"
        assert puller.in_flight == 3


async def test_a_task_given_back_is_delivered_again_with_the_next_attempt_number(bus: Bus) -> None:
    """The attempt number is the delivery count."""
    await bus.ensure_consumer(runner_consumer("calc", "train"))
    await TaskPublisher(bus).publish_task(task(1))
    async with bus.pull(runner_consumer("calc", "train"), slots=1) as puller:
        await (await asyncio.wait_for(anext(puller), HANG_SECONDS)).nak()
        assert (await asyncio.wait_for(anext(puller), HANG_SECONDS)).num_delivered == 2


async def test_what_a_closing_puller_had_fetched_but_not_given_out_goes_back_at_once(bus: Bus) -> None:
    """A runner that stops does not keep tasks nobody has started until their lease runs out."""
    await bus.ensure_consumer(runner_consumer("calc", "train"))
    for n in range(4):
        await TaskPublisher(bus).publish_task(task(n))
    async with bus.pull(runner_consumer("calc", "train"), slots=4) as puller:
        await (await asyncio.wait_for(anext(puller), HANG_SECONDS)).ack(sync=True)
    async with bus.pull(runner_consumer("calc", "train"), slots=4) as puller:
        seen = {(await asyncio.wait_for(anext(puller), HANG_SECONDS)).decode_as(Task).id for _ in range(3)}
    assert seen == {"t1", "t2", "t3"}


async def test_a_message_that_no_stream_sent_costs_no_slot(bus: Bus) -> None:
    """Whoever may answer on the inbox can put anything there; the one slot is still asked for."""
    await bus.ensure_consumer(runner_consumer("calc", "train"))
    async with bus.pull(runner_consumer("calc", "train"), slots=1) as tasks, asyncio.timeout(HANG_SECONDS):
        for reply in ("nobody", "$JS.ACK.x", "$JS.ACK.a.b.c.d.e.f.g"):
            await bus.nc.publish(f"{tasks._inbox}.0", b"odd", reply=reply)
        await TaskPublisher(bus).publish_task(task(1))
        assert (await anext(tasks)).decode_as(Task) == task(1)
        assert tasks.in_flight == 1


async def test_more_runners_may_wait_for_a_task_than_a_server_lets_by_itself(bus: Bus) -> None:
    waiting = 700
    durable = runner_consumer("calc", "train")
    await bus.ensure_consumer(replace(durable, max_waiting=None))  # as it was made before
    await bus.ensure_consumer(durable)
    assert (await bus.js.consumer_info(durable.stream, durable.durable)).config.max_waiting == 512
    await bus.js.delete_consumer(durable.stream, durable.durable)
    await bus.ensure_consumer(durable)
    refused: list[str] = []

    async def hear(message: Msg) -> None:
        refused.append(str(message.headers))

    inbox = bus.nc.new_inbox()
    await bus.nc.subscribe(f"{inbox}.*", cb=hear)
    ask = f"$JS.API.CONSUMER.MSG.NEXT.{durable.stream}.{durable.durable}"
    for number in range(waiting):
        await bus.nc.publish(ask, b'{"batch": 1, "expires": 30000000000}', reply=f"{inbox}.{number}")
    await bus.nc.flush()
    async with asyncio.timeout(HANG_SECONDS):
        while (await bus.js.consumer_info(durable.stream, durable.durable)).num_waiting < waiting:
            assert not refused
            await asyncio.sleep(0.05)
    assert not refused


async def test_a_lease_outlives_ack_wait(bus: Bus) -> None:
    """While a lease is renewed nobody else gets the task; once it ends, somebody does."""
    consumer = runner_consumer("calc", "train", ack_wait=5.0)
    await bus.ensure_consumer(consumer)
    await TaskPublisher(bus).publish_task(task(1))
    async with bus.pull(consumer, slots=2) as puller:
        message = await asyncio.wait_for(anext(puller), HANG_SECONDS)
        async with LeaseRenewer(message, ack_wait=1.0):  # renewed often, lest a busy machine be late with all of it
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(puller), 6)
        assert (await asyncio.wait_for(anext(puller), HANG_SECONDS)).num_delivered == 2


async def test_publishing_and_pulling_go_on_after_the_server_was_killed(bus: Bus, nats: NatsServer) -> None:
    """``kill -9`` of the server loses no acknowledged task, and both ends reconnect by themselves."""
    await bus.ensure_consumer(runner_consumer("calc", "train"))
    await TaskPublisher(bus).publish_task(task(1))
    async with bus.pull(runner_consumer("calc", "train"), slots=5) as puller:
        await (await asyncio.wait_for(anext(puller), HANG_SECONDS)).ack(sync=True)
        await TaskPublisher(bus).publish_task(task(2))
        await nats.kill()
        await nats.start()
        await TaskPublisher(bus).publish_task(task(3), timeout=HANG_SECONDS)
        seen: set[str] = set()
        while seen != {"t2", "t3"}:  # one may come twice: delivery is at least once
            seen.add((await asyncio.wait_for(anext(puller), HANG_SECONDS)).decode_as(Task).id)


async def test_a_message_that_does_not_decode_is_buried_with_its_reason(bus: Bus) -> None:
    """A dead letter keeps payload, headers and reason, and the message leaves its stream."""
    await bus.ensure_consumer(runner_consumer("calc", "train"))
    await bus.js.publish(
        subjects.task("train", "calc"), b"not msgpack", headers={"who": "me", "Lightningbus-Schema": schema_of(Task)}
    )
    async with bus.pull(runner_consumer("calc", "train"), slots=1) as puller:
        message = await asyncio.wait_for(anext(puller), HANG_SECONDS)
        with pytest.raises(DecodeError) as caught:
            message.decode_as(Task)
        await DeadLetterQueue(bus).add(message, str(caught.value))
    letter = await bus.get_last(subjects.DLQ, subjects.dlq("TASKS"), DeadLetter)
    assert letter is not None
    assert letter[0].payload == b"not msgpack"
    assert letter[0].headers["who"] == "me"
    assert "Task is not" in letter[0].reason
    assert (await bus.js.stream_info(subjects.TASKS)).state.messages == 0


async def test_blobs_are_read_and_written_by_the_standard_object_store_too(bus: Bus, tmp_path: Path) -> None:
    """What we put, nats-py's Object Store gets; what it puts, we get: chunks, digests and metadata agree."""
    data = bytes(range(256)) * (3 * CHUNK_BYTES // 256) + b"tail"
    blob = await bus.object_store.put("weights", "ours", data)
    store = await bus.js.object_store("weights")
    assert (await store.get("ours")).data == data
    info = await store.put("theirs", data)
    theirs = Blob(bucket="weights", name="theirs", size=info.size, sha256=blob.sha256)
    await bus.object_store.get(theirs, tmp_path / "theirs")
    assert (tmp_path / "theirs").read_bytes() == data


async def test_a_corrupt_blob_is_refused_and_leaves_no_file(bus: Bus, tmp_path: Path) -> None:
    """A blob that does not hash to its manifest never reaches its path."""
    blob = await bus.object_store.put("weights", "w", b"x" * 300_000)
    bad = Blob(bucket="weights", name="w", size=blob.size, sha256="0" * 64)
    with pytest.raises(ChecksumMismatchError, match="hashes to"):
        await bus.object_store.get(bad, tmp_path / "w")
    short = Blob(bucket="weights", name="w", size=100, sha256=blob.sha256)
    with pytest.raises(ChecksumMismatchError, match="not 100"):
        await bus.object_store.get(short, tmp_path / "w")
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith("w")] == []


async def test_a_replaced_or_deleted_blob_leaves_no_chunks_behind(bus: Bus, tmp_path: Path) -> None:
    """The bucket does not grow by what nobody can read any more."""
    await bus.object_store.put("weights", "w", b"1" * 500_000)
    await bus.object_store.put("weights", "w", b"2" * 500_000)
    state = (await bus.js.stream_info("OBJ_weights")).state
    assert state.messages == 4 + 1
    blob = await bus.object_store.put("weights", "v", b"3")
    await bus.object_store.delete("weights", "v")
    with pytest.raises(BusError, match="not on the bus"):
        await bus.object_store.get(blob, tmp_path / "v")


@pytest.mark.parametrize(
    "entry",
    [
        b'{"stream": "OBJ_weights", "seq": 5}',  # a PubAck
        b"\xff\x00",
        b'{"nuid": ">", "chunks": 4}',
        b'{"nuid": "a", "chunks": -1}',
    ],
)
async def test_the_entry_of_a_blob_that_no_object_store_wrote_counts_for_nothing(
    bus: Bus, tmp_path: Path, entry: bytes
) -> None:
    """It stops no listing, cannot name the chunks of others, and the next one that is put replaces it."""
    kept = await bus.object_store.put("weights", "kept", b"1" * 300_000)
    broken = await bus.object_store.put("weights", "broken", b"2")
    name = base64.urlsafe_b64encode(b"broken").decode()
    await bus.js.publish(f"$O.weights.M.{name}", entry, headers={"Nats-Rollup": "sub"})
    await bus.js.publish("$O.weights.M.no-base64!", entry)
    assert await bus.object_store.list_names("weights") == ["kept"]
    with pytest.raises(BusError, match="not on the bus"):
        await bus.object_store.get(broken, tmp_path / "broken")
    await bus.object_store.delete("weights", "broken")
    again = await bus.object_store.put("weights", "broken", b"3")
    for blob in (kept, again):
        await bus.object_store.get(blob, tmp_path / blob.name)


async def test_the_learner_is_replayed_from_a_stream_position(bus: Bus) -> None:
    """Resetting its durable delivers again everything from that sequence on."""
    for n in range(4):
        await bus.publish(subjects.rollout("train"), task(n), msg_id=str(n))
    async with bus.pull(learner_consumer("policy"), slots=10) as puller:
        sequences = [(await asyncio.wait_for(anext(puller), HANG_SECONDS)).sequence for _ in range(4)]
    await bus.reset_consumer(learner_consumer("policy"), sequences[2])
    async with bus.pull(learner_consumer("policy"), slots=10) as puller:
        assert (await asyncio.wait_for(anext(puller), HANG_SECONDS)).sequence == sequences[2]


async def test_provisioning_twice_changes_nothing(bus: Bus) -> None:
    """Streams and durables are made by one idempotent step."""
    before = await bus.js.stream_info(subjects.TRAIN_ROLLOUTS)
    await bus.provision()
    after = await bus.js.stream_info(subjects.TRAIN_ROLLOUTS)
    assert before.config == after.config
    assert after.config.retention == RetentionPolicy.INTEREST
    assert after.state.consumer_count == 2


async def test_a_fleet_knows_who_is_alive_and_forgets_who_fell_silent(bus: Bus) -> None:
    """Members are those heard of lately, by the clock the fleet was given."""
    now = 0.0
    fleet = bus.fleet("inference")
    fleet._clock = lambda: now
    async with fleet:
        async with bus.heartbeat("inference", "node-1", lambda: {"state": "ready", "version": 3}):
            await asyncio.wait_for(fleet.wait_for_change(), HANG_SECONDS)
        assert [(m.id, m.state, m.version) for m in fleet.members()] == [("node-1", "ready", 3)]
        now = 60.0
        assert fleet.members() == []


async def test_a_process_that_is_done_stays_done_until_its_successor_comes(bus: Bus) -> None:
    now = 0.0
    fleet = bus.fleet("learner")
    fleet._clock = lambda: now
    async with fleet:
        for id, state in (("first", "done"), ("other-run", "done")):
            fields = {"state": state, "run_id": id}
            async with bus.heartbeat("learner", id, lambda fields=fields: fields):  # type: ignore[misc]
                while id not in {beat.id for beat in fleet.members()}:
                    await asyncio.wait_for(fleet.wait_for_change(), HANG_SECONDS)
        now = 3600.0
        assert [(beat.id, beat.state) for beat in fleet.members()] == [("first", "done"), ("other-run", "done")]
        async with bus.heartbeat("learner", "second", lambda: {"state": "waiting", "run_id": "first"}):
            while "second" not in {beat.id for beat in fleet.members()}:  # the others' last ones may come later
                await asyncio.wait_for(fleet.wait_for_change(), HANG_SECONDS)
            assert [(beat.id, beat.state) for beat in fleet.members()] == [("other-run", "done"), ("second", "waiting")]


async def test_an_engine_that_does_not_answer_makes_all_of_its_models_suspect() -> None:
    fleet = Fleet(Client(), "inference")
    for id, engine_id in (("n:writer", "n:1"), ("n:checker", "n:1"), ("m", "m:1"), ("starting", ""), ("other", "")):
        status = {"engine_id": engine_id}
        beat = Heartbeat(role="inference", id=id, state="ready", model="x", status=status, sent_at_ns=1)
        await fleet._on_heartbeat(Msg(Client(), subjects.heartbeat("inference", id), "", encode(beat)))
    fleet.suspect("inference", "n:writer")
    fleet.suspect("inference", "starting")
    fleet.suspect("inference", "unknown")
    suspects = {beat.id for beat in fleet.members() if beat.state == "suspect"}
    assert suspects == {"n:writer", "n:checker", "starting"}


@pytest.mark.long
async def test_listening_to_ten_times_as_many_costs_no_more_for_each_of_them() -> None:
    async def seconds(members: int) -> float:
        """CPU time of this thread for 20,000 heartbeats; the best of five: caches are shared with others."""
        return min([await measure(members) for _ in range(5)])

    async def measure(members: int) -> float:
        fleet = Fleet(Client(), "*")
        beats = [Heartbeat(role="runner", id=f"r{n}", state="running", pid=1, sent_at_ns=1) for n in range(members)]
        messages = [Msg(Client(), subjects.heartbeat("runner", beat.id), "", encode(beat)) for beat in beats]
        for message in messages:
            await fleet._on_heartbeat(message)
        started = time.thread_time()
        for message in messages * (20_000 // members):
            await fleet._on_heartbeat(message)
        assert len(fleet.members()) == members
        return time.thread_time() - started

    assert await seconds(5000) < 4 * await seconds(500)


async def test_nobody_answering_is_one_sentence(tmp_path: Path) -> None:
    """A wrong address names the address, without its password, and the command to start a server."""
    with pytest.raises(BusError, match=r"no NATS server answers at nats://127\.0\.0\.1:1: start one") as caught:
        async with Bus.connect("nats://user:secret@127.0.0.1:1"):
            pass
    assert "secret" not in str(caught.value)


async def test_a_host_name_that_nobody_knows_is_one_sentence() -> None:
    with pytest.raises(BusError, match=r"host name in nats://bus9\.invalid:4222 is not known here"):
        async with Bus.connect("nats://bus9.invalid:4222", wait=1.0):
            pass


async def test_of_two_servers_one_unknown_name_is_not_the_reason() -> None:
    for urls in ("nats://bus9.invalid:4222,nats://127.0.0.1:1", "nats://127.0.0.1:1,nats://bus9.invalid:4222"):
        with pytest.raises(BusError, match="no NATS server answers"):
            async with Bus.connect(urls, wait=1.0):
                pass


async def test_a_port_in_use_is_one_sentence(nats: NatsServer, tmp_path: Path) -> None:
    """A second server on the same port says which port and what to do."""
    second = NatsServer(tmp_path / "second", port=nats.port)
    with pytest.raises(BusError, match=f"port {nats.port} is in use"):
        await second.start()


async def test_a_cancellation_that_is_forgotten_once_is_asked_for_again() -> None:
    """As `asyncio.wait_for` of Python 3.11 forgets one that comes together with what it waits for."""
    forgotten = 0

    async def forgetful() -> None:
        nonlocal forgotten
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                forgotten += 1
                if forgotten == 3:
                    raise

    task = asyncio.create_task(forgetful())
    await asyncio.sleep(0)
    await cancel_and_wait(task, retry_after=0.01)
    assert task.cancelled() and forgotten == 3


async def look_up(bus: Bus) -> int:
    """One stored message, by its stream and subject."""
    message = await bus.nc.request(
        f"$JS.API.DIRECT.GET.WEIGHTS.{subjects.weights('policy')}", b"", timeout=2 * HANG_SECONDS
    )
    return int((message.headers or {})["Nats-Sequence"])


async def read_batch(bus: Bus) -> int:
    """Several stored messages for one request."""
    request = {"batch": 2, "seq": 1, "next_by_subj": subjects.weights("policy")}
    async with batch_get(bus.nc, "WEIGHTS", request, 2 * HANG_SECONDS) as messages:
        return [sequence_of(message) async for message in messages][-1]


@pytest.mark.parametrize("read", [look_up, read_batch])
async def test_a_read_whose_answer_is_lost_with_the_connection_is_asked_again_at_once(
    nats: NatsServer, bus: Bus, read: Callable[[Bus], Awaitable[int]]
) -> None:
    """It would wait for its timeout, of a minute for the chunks of a weight file."""
    for version in range(2):
        await bus.js.publish(subjects.weights("policy"), b"%d" % version)
    assert nats.process is not None
    with paused(nats.process.pid):
        sent = bus.nc.stats["out_msgs"]
        reading = asyncio.create_task(read(bus))
        async with asyncio.timeout(HANG_SECONDS):
            while bus.nc.stats["out_msgs"] == sent or bus.nc._pending_data_size:
                await asyncio.sleep(0.01)
        bus.nc._transport._io_writer.transport.abort()  # type: ignore[union-attr]
    async with asyncio.timeout(HANG_SECONDS):
        assert await reading == 2
