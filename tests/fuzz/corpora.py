"""Right inputs: what a healthy run sends."""

import json
from typing import Any

from google.protobuf import json_format
from msgspec.structs import replace
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from lightningbus.runners.protocol.dialects.registry import GENERATE_CONTENT
from lightningbus.schemas import ids
from lightningbus.schemas.base import Event
from lightningbus.schemas.codec import encode
from lightningbus.schemas.dead_letters import DeadLetter
from lightningbus.schemas.fleet import Alert, Heartbeat
from lightningbus.schemas.grading import GradingRequest, RolloutGraded
from lightningbus.schemas.reviews import RolloutReviewed
from lightningbus.schemas.semconv import attributes
from lightningbus.schemas.spans import AttemptResult, Span, SpanBatch, Usage
from lightningbus.schemas.tasks import Task, TaskBatchRecord, TaskIdentity, TaskRecord
from lightningbus.schemas.training import RolloutDisposition, TaskDecision, TrainingStep
from lightningbus.schemas.weights.events import Blob, DeltaLink, WeightManifest, WeightsActivated
from tests.factories import SECOND_NS, START_NS, model_call

TASK = Task(
    id="q1", run_id="run", agent="calc", input={"question": "1+1", "more": [1, None]}, sample_index=2, group_size=8
)
CALLS = (
    model_call(0, [1, 2, 3], [4, 5], 7, request='{"model": "policy", "messages": [{"content": "1"}]}', response='"2"'),
    model_call(
        1,
        [6],
        [7],
        8,
        prompt_prefix_refs=((0, 5),),
        request_prefix_refs=((0, 20),),
        request='é"]}',
        response='{"content": "3"}',
        sampling_params={"temperature": 0.5},
        token_texts=("x",),
        finish_reason="stop",
    ),
)


def span(number: int, **fields: Any) -> Span:
    """A span of the rollout's trace."""
    text = {"name": "tool", "attributes": {"gen_ai.operation.name": "execute_tool", attributes.REWARD: 0.5}, **fields}
    times = {"start_ns": START_NS + number * SECOND_NS, "end_ns": START_NS + (number + 1) * SECOND_NS}
    return Span(trace_id=ids.trace_id("q1.2"), span_id=f"{number:016x}", **times, **text)


END = AttemptResult(
    outcome="ok",
    reward=1.0,
    num_spans=4,
    usage=Usage(num_calls=2, min_weight_version=7, max_weight_version=8),
    started_ns=START_NS,
    ended_ns=START_NS + 9 * SECOND_NS,
    result='{"reward": 1.0}',
)
BATCH = SpanBatch(
    run_id="run",
    task_id="q1",
    rollout_id="q1.2",
    sample_index=2,
    group_size=8,
    attempt=1,
    execution_id="e1",
    agent="calc",
    mode="train",
    runner="me",
    sequence=0,
    end=END,
    spans=(
        span(0, call=CALLS[0]),
        span(1, call=CALLS[1]),
        span(
            2,
            events=({"name": attributes.EVALUATION_EVENT, "attributes": {attributes.EVALUATION_SCORE: 1}},),
            links=({"trace_id": "a" * 32, "span_id": "b" * 16, "attributes": {}},),
        ),
        span(3, attributes={attributes.OUTCOME: "ok"}),
    ),
)
BLOB = Blob(bucket="lb-weights", name="policy-1", size=10, sha256="a" * 64)
USE = RolloutDisposition(
    rollout_id="q1.2",
    task_id="q1",
    attempt=1,
    execution_id="e1",
    outcome="ok",
    reward=1.0,
    advantage=0.5,
    trained=True,
    tokens=3,
    max_staleness=1,
    call_advantages=(0.5, 0.25),
)
EVENTS: tuple[Event, ...] = (
    TASK,
    TaskIdentity(id="q1", run_id="run", agent="calc"),
    *CALLS,
    span(0),
    BATCH,
    TaskBatchRecord(tasks=(TaskRecord(task=TASK, rollout_id="q1.2", span=span(9)),)),
    BLOB,
    WeightManifest(run_id="run", model="policy", version=1, blobs=(BLOB,), epoch=1, step=1, created_at_ns=START_NS),
    WeightManifest(
        run_id="run",
        model="policy",
        version=2,
        parent=1,
        kind="delta",
        blobs=(BLOB,),
        fingerprint="c" * 32,
        epoch=1,
        step=2,
        chain=(DeltaLink(version=1, fingerprint="d" * 32, blob=BLOB),),
        created_at_ns=START_NS,
    ),
    WeightsActivated(
        node="n", model="policy", version=2, fetch_seconds=0.5, pause_seconds=0.1, activated_at_ns=START_NS
    ),
    TrainingStep(
        run_id="run",
        model="policy",
        step=1,
        version=2,
        epoch=1,
        started_ns=START_NS,
        ended_ns=START_NS + SECOND_NS,
        rollouts=(USE,),
        metrics={"loss": 0.5},
        spans=(span(5, attributes={attributes.ROLLOUT: "q1.2"}),),
    ),
    GradingRequest(ending=replace(BATCH, spans=()), input={"q": 1}, request='{"messages": []}', response="{}"),
    RolloutGraded(
        run_id="run",
        task_id="q1",
        rollout_id="q1.2",
        execution_id="e",
        grading="live",
        graders_sha256="a" * 64,
        reward=0.5,
        rewards={"judge": 0.5},
        started_at_ns=START_NS,
        graded_at_ns=START_NS + SECOND_NS,
    ),
    RolloutReviewed(
        run_id="run",
        rollout_id="q1.2",
        execution_id="e",
        reviewer="Ada",
        score=0.5,
        note="right, but long",
        dataset="good",
        reviewed_at_ns=START_NS,
    ),
    TaskDecision(
        run_id="run",
        model="policy",
        task_id="q1@run-g3",
        source_task="q1",
        decision="selected",
        passed=1.5,
        failed=6.5,
        weight=0.8,
        share=0.02,
        decided_at_ns=START_NS,
    ),
    Heartbeat(
        role="inference",
        id="n",
        state="ready",
        address="http://127.0.0.1:1",
        model="policy",
        version=2,
        status={"inflight": 3, "max_model_len": 4096},
        sent_at_ns=START_NS,
    ),
    Alert(role="store", reason="no rollout", fired_at_ns=START_NS),
    DeadLetter(
        stream="TASKS",
        subject="lb.task.train.calc",
        sequence=5,
        num_delivered=3,
        reason="poisoned",
        headers={"Lightningbus-Schema": "Task/2"},
        payload=encode(TASK),
        dead_lettered_at_ns=START_NS,
    ),
)


def json_lines(*values: Any) -> list[bytes]:
    """Each as JSON."""
    return [json.dumps(value).encode() for value in values]


TOOL = {"name": "add", "description": "adds", "parameters": {"type": "object", "properties": {}}}
CALLED = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
CHAT: dict[str, Any] = {
    "model": "policy:writer",
    "temperature": 0.5,
    "max_tokens": 20,
    "n": 1,
    "stop": ["x"],
    "logprobs": True,
    "stream": True,
    "stream_options": {"include_usage": True},
    "include_reasoning": False,
    "messages": [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "1+1"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALLED]},
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
    ],
}
CHATS = json_lines(
    CHAT,
    {"model": "policy", "messages": [{"role": "user", "content": "hello"}]},
    {**CHAT, "tools": [{"type": "function", "function": TOOL}], "tool_choice": "auto"},
)
COMPLETIONS = json_lines({"model": "policy", "prompt": "once", "max_tokens": 5, "echo": False, "logprobs": 2})
RESPONSES = json_lines(
    {
        "model": "policy",
        "instructions": "be brief",
        "stream": True,
        "reasoning": {"effort": "low"},
        "text": {"format": {"type": "json_schema", "name": "a", "schema": {}}},
        "max_output_tokens": 9,
        "tools": [{"type": "function", **TOOL}],
        "tool_choice": {"type": "function", "name": "add"},
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "1+1"}]},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "2"},
            {"role": "assistant", "content": [{"type": "output_text", "text": "2"}]},
        ],
    },
    {"model": "policy", "input": "hello", "previous_response_id": "resp_1"},
)
MESSAGES = json_lines(
    {
        "model": "policy",
        "max_tokens": 9,
        "system": [{"type": "text", "text": "be brief"}],
        "stream": True,
        "stop_sequences": ["x"],
        "tool_choice": {"type": "tool", "name": "add", "disable_parallel_tool_use": True},
        "tools": [{"name": "add", "description": "adds", "input_schema": {"type": "object"}}],
        "output_config": {"format": {"type": "json_schema", "schema": {}}},
        "messages": [
            {"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://x"}}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": ""},
                    {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "2"}]},
                ],
            },
        ],
    },
    {"model": "policy", "max_tokens": 9, "messages": [{"role": "user", "content": "hello"}]},
)


def _choice(token: int, **more: Any) -> dict[str, Any]:
    fields = {"index": 0, "token_ids": [token], "finish_reason": None, "stop_reason": None}
    return {**fields, "logprobs": {"content": [{"token": "x", "logprob": -0.5}]}, **more}


def _chunk(choice: dict[str, Any], **more: Any) -> dict[str, Any]:
    head = {"id": "chatcmpl-1", "created": 1, "model": "policy", "weight_version": 3}
    return {**head, "choices": [choice], **more}


PIECE = {"index": 0, "id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a"'}}
CONTENTS = json_lines(
    {
        "model": "policy",
        "systemInstruction": {"parts": [{"text": "be brief"}]},
        "contents": [
            {
                "role": "user",
                "parts": [{"text": "1+1?"}, {"inlineData": {"mimeType": "image/png", "data": "AAAA"}}],
            },
            {
                "role": "model",
                "parts": [
                    {"text": "hm", "thought": True},
                    {"functionCall": {"id": "call_1", "name": "add", "args": {"a": 1}}, "thoughtSignature": "AAAA"},
                ],
            },
            {"parts": [{"functionResponse": {"id": "call_1", "name": "add", "response": {"output": "2"}}}]},
        ],
        "tools": [{"functionDeclarations": [{"name": "add", "parameters": {"type": "OBJECT", "nullable": True}}]}],
        "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["add"]}},
        "generationConfig": {
            "topK": 3.0,
            "stopSequences": ["x"],
            "responseMimeType": "application/json",
            "responseSchema": {"type": "STRING", "enum": ["a"]},
            "thinkingConfig": {"includeThoughts": True, "thinkingLevel": "LOW"},
        },
    },
    {"model": "policy", "contents": {"parts": {"text": "x"}}, "generation_config": {"max_output_tokens": 5}},
)
CALLING: dict[str, dict[str, Any]] = {
    "chat/completions": {
        "model": "policy",
        "messages": [{"role": "user", "content": "x"}],
        "stream": True,
        "tools": [{"type": "function", "function": TOOL}],
    },
    "responses": {"model": "policy", "input": "x", "stream": True, "tools": [{"type": "function", **TOOL}]},
    GENERATE_CONTENT: {
        "model": "policy",
        "contents": [{"parts": [{"text": "x"}]}],
        "tools": [{"functionDeclarations": [{"name": "add", "parameters": {"type": "OBJECT"}}]}],
    },
    "messages": {
        "model": "policy",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "x"}],
        "stream": True,
        "tools": [{"name": "add", "input_schema": {"type": "object"}, "eager_input_streaming": True}],
    },
}
"""Requests whose calls of tools are streamed as they come."""
CHUNKS: list[list[dict[str, Any]]] = [
    [
        _chunk(_choice(7, delta={"role": "assistant", "reasoning": "hm"}), prompt_token_ids=[1, 2]),
        _chunk(_choice(8, delta={"content": "x"})),
        _chunk(_choice(9, delta={"tool_calls": [PIECE]}), weight_version=4),
        _chunk(_choice(10, delta={"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]}, finish_reason="x")),
        {"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 4, "total_tokens": 6}},
    ],
    [
        _chunk(
            {**_choice(7), "text": "x", "logprobs": {"token_logprobs": [-0.5], "tokens": ["x"]}},
            prompt_token_ids=[1],
        ),
        _chunk({**_choice(8), "text": "y", "logprobs": {"token_logprobs": [-0.5]}, "finish_reason": "length"}),
    ],
    [{"error": {"message": "the engine failed", "code": 500}}],
]


def streamed(chunks: list[dict[str, Any]]) -> bytes:
    """As a node's gateway sends it."""
    return b"".join(b"data: %b\n\n" % json.dumps(chunk).encode() for chunk in chunks) + b"data: [DONE]\n\n"


STREAMS = [*map(streamed, CHUNKS), b": still here\n\n" + streamed(CHUNKS[0])]
AGENT_EVENTS = json_lines(
    {"name": "search", "kind": "tool", "input": {"q": "x"}, "output": "\ud83d", "status": "error", "seconds": 0.5},
    {"name": "judge", "reward": 0.2, "rewards": {"speed": 1, "style": 0.5}},
    {"rewards": {"writer": 1}, "tool_call_id": "call_1"},
    {"event_type": "reward", "data": {"value": 1.0}},
)
ANSWERS = json_lines(
    {"job": 0, "value": 1.0},
    {"job": 0, "value": {"reward": 0.5, "rewards": {"writer": 1, "checker": 0}}},
    {"job": 0, "value": {"reward": {"writer": 1, "checker": 0}}},
    {"job": 0, "value": {"reward": 0.5, "text": "x"}, "reward": 1},
    {"job": 0, "value": None},
    {"job": 0, "error": "ValueError: no", "traceback": "..."},
)


def _traces() -> ExportTraceServiceRequest:
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    resource.resource.attributes.add(key="service.name").value.string_value = "agent"
    scope = resource.scope_spans.add()
    scope.scope.name, scope.scope.version = "agent", "1.2"
    for number in range(3):
        span = scope.spans.add(name="tool", trace_id=b"\1" * 16, span_id=(number + 1).to_bytes(8, "big"), kind=3)
        span.start_time_unix_nano, span.end_time_unix_nano, span.status.code = START_NS, START_NS + 9, 2
        span.attributes.add(key=attributes.REWARD).value.double_value = 0.5
        values = span.attributes.add(key="list").value.array_value.values
        values.add().int_value, values.add().bytes_value = 3, b"\xff"
        pair = span.attributes.add(key="map").value.kvlist_value.values.add(key="inner")
        pair.value.bool_value = True
        event = span.events.add(name=attributes.EVALUATION_EVENT, time_unix_nano=START_NS)
        event.attributes.add(key=attributes.EVALUATION_SCORE).value.int_value = 1
        span.links.add(trace_id=b"\2" * 16, span_id=b"\3" * 8).attributes.add(key="why").value.string_value = "x"
    return request


def _logs() -> ExportLogsServiceRequest:
    request = ExportLogsServiceRequest()
    record = request.resource_logs.add().scope_logs.add().log_records.add(event_name="gen_ai.choice")
    record.time_unix_nano, record.severity_text, record.body.string_value = START_NS, "INFO", "said"
    record.attributes.add(key="a").value.string_value = "b"
    return request


def crowded(count: int, form: str = "protobuf") -> bytes:
    """As many attributes of one resource as empty scopes below it."""
    request = ExportTraceServiceRequest()
    group = request.resource_spans.add()
    for number in range(count):
        group.resource.attributes.add(key=f"{number}").value.int_value = number
        group.scope_spans.add()
    return request.SerializeToString() if form == "protobuf" else json_format.MessageToJson(request).encode()


def empty_objects(many: int) -> list[bytes]:
    """Traces that cost much to convert and little to send: nothing, again and again; the last is protobuf."""
    empty = b",".join([b"{}"] * many)
    spans = b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"spanId": "01", "events": [%b]}]}]}]}' % empty
    values = b'{"arrayValue": {"values": [%b]}}' % empty
    inner = b'{"resourceSpans": [{"resource": {"attributes": [{"value": %b}]}}]}' % values
    request = ExportTraceServiceRequest()
    span = request.resource_spans.add().scope_spans.add().spans.add()
    for _ in range(many):
        span.events.add()
    unknown = json.dumps({"spanId": "01", "startTimeUnixNano": "1"} | dict.fromkeys(map(str, range(many)), 0)).encode()
    fields = b'{"resourceSpans": [{"scopeSpans": [{"spans": [%b]}]}]}' % unknown
    return [b'{"resourceSpans": [%b]}' % empty, spans, inner, fields, request.SerializeToString()]


def nested(levels: int) -> bytes:
    """Spans in unknown fields of spans."""
    span: dict[str, Any] = {}
    for _ in range(levels):
        span = {"spanId": "01" * 8, "startTimeUnixNano": "1", "new": span}
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}).encode()


TRACES, LOGS = _traces().SerializeToString(), _logs().SerializeToString()
SPAN_IN_JSON = {
    "traceId": "01" * 16,
    "spanId": "02" * 8,
    "parentSpanId": "",
    "name": "tool",
    "kind": 3,
    "status": {"code": 2},
    "startTimeUnixNano": "5",
    "endTimeUnixNano": "9",
    "new": {"a": 1},
    "links": [{"traceId": "01" * 16, "spanId": "02" * 8}],
    "attributes": [{"key": "list", "value": {"arrayValue": {"values": [{"intValue": "3"}, {"bytesValue": "AA=="}]}}}],
}
SCOPE_IN_JSON = {"scope": {"name": "agent", "version": "1"}, "spans": [SPAN_IN_JSON]}
RESOURCE_IN_JSON = {"attributes": [{"key": "service.name", "value": {"stringValue": "agent"}}]}
TRACES_IN_JSON = json_lines({"resourceSpans": [{"resource": RESOURCE_IN_JSON, "scopeSpans": [SCOPE_IN_JSON]}]})
*EMPTY_IN_JSON, EMPTY = empty_objects(100)
LOGS_IN_JSON = json_lines(
    {"resourceLogs": [{"scopeLogs": [{"logRecords": [{"timeUnixNano": "5", "body": {"stringValue": "said"}}]}]}]}
)
