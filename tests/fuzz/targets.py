"""Every decoder of bytes from outside, each with the errors it documents and nothing else."""

import asyncio
import atexit
import contextlib
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import lz4.frame
from aiohttp import web
from aiohttp.base_protocol import BaseProtocol
from aiohttp.test_utils import make_mocked_request

from lightningbus.bus.dead_letters import build_replay
from lightningbus.bus.errors import BusError, CredentialsError
from lightningbus.bus.security.credentials import FILE, Credentials
from lightningbus.inference.gateway.version_stamp import add_cache_salt, stamp_event
from lightningbus.learner.rollouts.assembler import Assembler
from lightningbus.learner.settings.algorithm import AirRule
from lightningbus.run.errors import UserError
from lightningbus.run.run_directory.directory import RunDirectory
from lightningbus.run.settings.run_file import load_run_settings
from lightningbus.runners.agent.executors import AgentError, parse_reply
from lightningbus.runners.gateway.engines import routing
from lightningbus.runners.gateway.engines.upstream import UpstreamRejectedError, events_of
from lightningbus.runners.gateway.requests import ApiError, raise_on_malformed
from lightningbus.runners.protocol.answers.accumulator import StreamAccumulator
from lightningbus.runners.protocol.answers.engine_errors import InvalidEngineOutputError, malformed_engine_output
from lightningbus.runners.protocol.dialects.registry import APIS, GENERATE_CONTENT, translate_error
from lightningbus.runners.protocol.token_history import TokenHistory
from lightningbus.runners.recording import otlp, rewards
from lightningbus.runners.recording.agent_events import EventContext, convert_event, parse_event
from lightningbus.runners.recording.attempt import AttemptRecorder
from lightningbus.runners.recording.otlp_limits import InvalidOtlpError
from lightningbus.runners.rollout import parse_result
from lightningbus.schemas import ids
from lightningbus.schemas.base import Event
from lightningbus.schemas.codec import DecodeError, decode, decode_as, encode, schema_of
from lightningbus.schemas.dead_letters import DeadLetter
from lightningbus.schemas.fleet import Heartbeat
from lightningbus.schemas.spans import SpanBatch
from lightningbus.schemas.trajectory.prefix_encoding import CorruptPromptError, expand_calls
from lightningbus.schemas.weights.delta import DeltaError, apply_deltas, encode_delta
from lightningbus.schemas.weights.safetensors_header import InvalidSafetensorsError, parse_tensors, read_header
from lightningbus.store.embedded.http_interface import MAX_READER_BYTES, parse_statement
from lightningbus.store.ingest.rows.events import build_rows
from lightningbus.store.ingest.rows.row import EventMetadata
from lightningbus.tasks.errors import TaskFileError
from lightningbus.tasks.task_loading import load_tasks
from tests import tensorfiles
from tests.fuzz import corpora
from tests.fuzz.engine import Target

RECEIVED = EventMetadata(1, 1, lambda run: 0)
MAX_MODEL_LEN = 4096
PARSERS = ("tool",)
"""Those of the node: so calls of tools are streamed as they come, where the request lets them."""


def all_targets() -> list[Target]:
    """In the order they are fed."""
    return [*_events(), *_telemetry(), *_requests(), *_answers(), *_files(), *_others()]


def _events() -> Iterator[Target]:
    kinds: dict[str, list[bytes]] = {}
    for event in corpora.EVENTS:
        kinds.setdefault(schema_of(event), []).append(encode(event))
    for schema, corpus in kinds.items():
        yield Target(f"event {schema}", corpus, partial(_event, schema), (DecodeError,), "msgpack", 0.5)
    batches = kinds[schema_of(SpanBatch)]
    yield Target("prompts of a SpanBatch", batches, _prompts, (DecodeError, CorruptPromptError), "msgpack")
    yield Target("rollout of SpanBatches", batches, _rollout, (DecodeError,), "msgpack")
    letters = kinds[schema_of(DeadLetter)]
    yield Target("dead letter sent again", letters, _letter, (DecodeError,), "msgpack", 0.5)
    beats = kinds[schema_of(Heartbeat)]
    yield Target("heartbeat of a node", beats, _beat, (DecodeError,), "msgpack", 0.5)


def _event(schema: str, data: bytes) -> None:
    """What can be read can be written and read again, and kept by the store or refused by it."""
    event: Event = decode_as(schema, data)
    assert encode(decode_as(schema, encode(event))) == encode(event)
    with contextlib.suppress(DecodeError):
        for _ in build_rows(event, RECEIVED):
            pass


def _prompts(data: bytes) -> None:
    expand_calls([span.call for span in decode(SpanBatch, data).spans if span.call is not None])


def _rollout(data: bytes) -> None:
    rule = AirRule(name="*", reward=0.1)
    Assembler(lambda task: ([rule], "")).add(decode(SpanBatch, data), 1)


def _letter(data: bytes) -> None:
    build_replay(decode(DeadLetter, data))


def _beat(data: bytes) -> None:
    beat = decode(Heartbeat, data)
    routing.select_node([beat, beat], "policy", "q1.2", "n", None, lambda node: 0)


def _telemetry() -> Iterator[Target]:
    for signal, plain, text in (
        (
            "traces",
            [corpora.TRACES, corpora.EMPTY, corpora.crowded(50)],
            [*corpora.TRACES_IN_JSON, *corpora.EMPTY_IN_JSON, corpora.crowded(50, "json"), corpora.nested(3)],
        ),
        ("logs", [corpora.LOGS], corpora.LOGS_IN_JSON),
    ):
        yield Target(f"OTLP {signal}", plain, partial(_otlp, signal, "application/x-protobuf"), (InvalidOtlpError,))
        yield Target(f"OTLP {signal} in JSON", text, partial(_otlp, signal, otlp.JSON), (InvalidOtlpError,), "json")


def _otlp(signal: str, kind: str, data: bytes) -> None:
    """Spans are taken into an attempt, and it ends as always."""
    attempt = AttemptRecorder(corpora.TASK, 1, "runner")
    for span in otlp.parse_request(signal, data, kind, attempt.rollout, attempt.root_id):
        attempt.add(span)
    with contextlib.suppress(rewards.InvalidRewardError):
        rewards.resolve_rewards({"value": None}, attempt.reward_spans)
    attempt.finish("ok", 1.0, "", "")
    for batch in attempt.outbox:
        decode(SpanBatch, encode(batch))


def _requests() -> Iterator[Target]:
    for path, corpus in (
        ("chat/completions", corpora.CHATS),
        ("completions", corpora.COMPLETIONS),
        ("responses", corpora.RESPONSES),
        ("messages", corpora.MESSAGES),
        (GENERATE_CONTENT, corpora.CONTENTS),
    ):
        yield Target(f"request {path}", corpus, partial(_send_request, path), (ApiError,), "json", 2.0)


def _send_request(path: str, data: bytes) -> None:
    """A request is refused with a sentence, or goes all its way: to an engine, which breaks off, and back."""
    history = TokenHistory(responses={"resp_1": [{"role": "user", "content": "hello"}]})
    with raise_on_malformed():
        dialect = APIS[path].parse(json.loads(data), history)
    call = dialect.call
    attempt = AttemptRecorder(corpora.TASK, 1, "runner", history=history)
    completion = StreamAccumulator(call, {"temperature": 0.5})
    chunks = corpora.CHUNKS[0] if call.chat else corpora.CHUNKS[1]
    json.dumps(completion.request(MAX_MODEL_LEN, PARSERS))
    completion.feed(chunks[0])
    json.dumps(completion.request(MAX_MODEL_LEN, PARSERS))
    if call.chat:
        history.longest_prefix(call)
        json.dumps(call.to_tokenize_request(call.body["messages"], is_answered=False))
    _recorded(StreamAccumulator(call, {}), dialect, attempt, chunks)


def _recorded(completion: StreamAccumulator, dialect: Any, attempt: AttemptRecorder, chunks: list[Any]) -> None:
    """An answer goes to the agent, streamed and whole, and into the record, which its readers can read."""
    completion.request(MAX_MODEL_LEN, PARSERS)
    events = dialect.events()
    with malformed_engine_output():
        for chunk in chunks:
            for displayed in completion.to_agent_chunks(completion.feed(chunk)):
                events.on_chunk(displayed)
        parts = list(completion.sampled_choices())
        json.dumps(dialect.answer(completion.to_response()))
    events.finish()
    for part in parts:
        request = dialect.call.to_record()
        attempt.add_call(part, node="n", role=dialect.call.role, request=request, started_ns=1, ended_ns=2)
        if dialect.call.chat:
            attempt.history.add(dialect.call, json.loads(part.response), part.num_tokens, [1])
    attempt.finish("ok", 1.0, "", "")
    for batch in attempt.outbox:
        decode(SpanBatch, encode(batch))


class _Content:
    """A body that comes in two pieces."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def iter_any(self) -> AsyncIterator[bytes]:
        middle = len(self._data) // 2
        yield self._data[:middle]
        yield self._data[middle:]


def _run(coroutine: Any) -> Any:
    """Drive a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits")


def _answers() -> Iterator[Target]:
    errors = (InvalidEngineOutputError, aiohttp.ClientError, ValueError)  # after these the gateway asks again
    for path, corpus in (
        ("chat/completions", corpora.CHATS),
        ("completions", corpora.COMPLETIONS),
        ("responses", corpora.RESPONSES),
        ("messages", corpora.MESSAGES),
        (GENERATE_CONTENT, corpora.CONTENTS),
    ):
        replies = partial(_feed_response, path, json.loads(corpus[0]))
        chunks = [json.dumps(chunks).encode() for chunks in corpora.CHUNKS]
        yield Target(f"stream to {path}", corpora.STREAMS, replies, errors)
        yield Target(f"chunks to {path}", chunks, partial(_chunked, replies), errors, "json")
    for path, body in corpora.CALLING.items():
        replies = partial(_feed_response, path, body)
        yield Target(f"chunks of calls to {path}", chunks, partial(_chunked, replies), errors, "json")
    yield Target("error of a node", corpora.json_lines({"error": {"message": "no"}}), _refused, (), "json", 0.2)
    yield Target("event of an engine", corpora.STREAMS, _engine, (), weight=0.2)
    yield Target("event of an agent", corpora.AGENT_EVENTS, _agent_event, (ValueError,), "json")
    yield Target("answer of an agent", corpora.ANSWERS, _agent, (AgentError, rewards.InvalidRewardError), "json")


def _feed_response(path: str, body: Any, data: bytes) -> None:
    dialect = APIS[path].parse(body, TokenHistory())

    async def take() -> list[Any]:
        return [chunk async for chunk in events_of(_Content(data))]

    _recorded(StreamAccumulator(dialect.call, {}), dialect, AttemptRecorder(corpora.TASK, 1, "runner"), _run(take()))


def _chunked(replies: Callable[[bytes], None], data: bytes) -> None:
    chunks = json.loads(data)
    replies(corpora.streamed(chunks if isinstance(chunks, list) else [chunks]))


def _refused(data: bytes) -> None:
    for api in APIS.values():
        translate_error(api, 400, data, str(UpstreamRejectedError(400, data)))


def _engine(data: bytes) -> None:
    stamp_event(data, 3)
    add_cache_salt(data, 3)


def _agent(data: bytes) -> None:
    answer = parse_reply(data)
    _finish(rewards.resolve_rewards(answer, []))
    parse_result(answer)
    ids.parse_span_id(data.decode(errors="replace"))


def _finish(earned: rewards.Rewards) -> None:
    attempt = AttemptRecorder(corpora.TASK, 1, "runner")
    attempt.finish("ok", earned.reward, "", "", rewards=earned.by_name)
    for batch in attempt.outbox:
        decode(SpanBatch, encode(batch))


def _agent_event(data: bytes) -> None:
    attempt = AttemptRecorder(corpora.TASK, 1, "runner")
    attempt.add(convert_event(parse_event(data), EventContext.of(attempt, attempt.started_ns)))
    with contextlib.suppress(rewards.InvalidRewardError):
        _finish(rewards.resolve_rewards({"value": None}, attempt.reward_spans))


def _files() -> Iterator[Target]:
    directory = Path(
        tempfile.mkdtemp(prefix="lightningbus-fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
    )
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    small = tensorfiles.write(directory / "small", tensorfiles.weights(1, 20))
    first = tensorfiles.write(directory / "first", tensorfiles.weights(1, 2000))
    second = tensorfiles.write(directory / "second", tensorfiles.stepped(tensorfiles.weights(1, 2000), 2))
    assert encode_delta(first, second, directory / "delta", 1 << 20)
    yield Target(
        "tensor file", [small.read_bytes()], partial(_tensors, directory / "tensors"), (InvalidSafetensorsError,)
    )
    delta = [(directory / "delta").read_bytes()]
    yield Target("delta", delta, partial(_delta, first, directory), (DeltaError,), weight=0.3)
    tasks = [b'{"id": "a1", "input": {"question": "x"}}\n\n{"input": 1}\n']
    yield Target("task file", tasks, partial(_file, load_tasks, directory / "tasks"), (TaskFileError,), weight=0.5)
    runs = [(Path(__file__).parents[2] / "examples/calculator/run.yaml").read_bytes()]
    yield Target("run file", runs, partial(_file, load_run_settings, directory / "run"), (UserError,), weight=0.05)
    access = corpora.json_lines({"inbox": "_INBOX_runner"}, {"inbox": "x", "nkey": "none", "ca": "none"})
    (directory / "access").mkdir()
    path = directory / "access" / FILE
    yield Target(
        "credentials file",
        access,
        partial(_file, lambda path: Credentials.read(path.parent, "runner"), path),
        (CredentialsError,),
        "json",
        0.3,
    )
    ends = corpora.json_lines({"pid": 1, "bus": "nats://x", "sql": "http://x", "roles": {"store": 2}})
    path = directory / "endpoints.json"
    yield Target(
        "endpoints of a run",
        ends,
        partial(_file, lambda path: RunDirectory(path.parent).read_endpoints(), path),
        (BusError,),
        "json",
        0.3,
    )


def _file(read: Callable[[Path], object], path: Path, data: bytes) -> None:
    path.write_bytes(data)
    read(path)


def _tensors(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    for tensor in parse_tensors(read_header(path), len(data)).values():
        _ = tensor.word_size


def _delta(base: Path, directory: Path, data: bytes) -> None:
    (directory / "changed").write_bytes(data)
    apply_deltas(base, [directory / "changed"], directory / "out")


def _others() -> Iterator[Target]:
    statements = [
        b"\nquery=SELECT+1&param_a=5&database=x&max_threads=1\nSELECT 1 FORMAT JSON",
        b"\ndatabase=x&default_format=TabSeparated\nINSERT INTO t FORMAT TSV 1",
        b"lz4\n\n" + lz4.frame.compress(b"SELECT 1" * 9),
    ]
    loop = asyncio.new_event_loop()
    errors = (ValueError, OSError, RuntimeError, web.RequestPayloadError)  # after these it answers 400
    yield Target("statement over HTTP", statements, partial(_statement, loop), errors, weight=0.3)


def _statement(loop: asyncio.AbstractEventLoop, data: bytes) -> None:
    encoding, _, rest = data.partition(b"\n")
    query, _, body = rest.partition(b"\n")
    payload = aiohttp.StreamReader(BaseProtocol(loop), 1 << 30, loop=loop)
    payload.feed_data(body)
    payload.feed_eof()
    headers = {"Content-Encoding": encoding.decode("latin-1"), "Content-Length": str(len(body))}
    request = make_mocked_request(
        "POST",
        f"/?{quote(query, safe='=&+%')}",
        headers,
        payload=payload,
        loop=loop,
        client_max_size=MAX_READER_BYTES,
    )
    loop.run_until_complete(parse_statement(request, MAX_READER_BYTES))
