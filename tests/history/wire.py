"""The wire as `docs/wire.md` describes it: MessagePack maps, arrays of numbers as little-endian bytes. Pure."""

from array import array
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

import msgpack

from tests.history.history import Attempt, Call, Record, Step, Task, Use, Version

NOT_CAUSED_BY_AGENT = frozenset({"infra_error", "poison", "preempted"})
"""Outcomes after which a rollout is given up, not ended."""
TASKS, STEP = "lb.event.task_published", "lb.event.training_step"
ROLLOUTS, VERSIONS = "lb.rollout.", "lb.weights.version."


def read_wire(messages: Iterable[tuple[str, bytes]]) -> Record:
    """Read messages, each a subject and a payload, in the order of their streams."""
    record = Record()
    calls: dict[str, dict[int, dict[str, Any]]] = {}
    for subject, payload in messages:
        event = msgpack.unpackb(payload, strict_map_key=False)
        if subject == TASKS:
            record.tasks += [Task(item["rollout_id"], item["task"].get("mode", "train")) for item in event["tasks"]]
            record.span_ids += [item["span"]["span_id"] for item in event["tasks"]]
        elif subject == STEP:
            record.steps.append(_step(event))
            record.span_ids += [span["span_id"] for span in event["spans"]]
        elif subject.startswith(ROLLOUTS):
            for span in event["spans"]:
                record.span_ids.append(span["span_id"])
                if span.get("call"):
                    call = {**span["call"], "span_id": span["span_id"]}
                    calls.setdefault(event["execution_id"], {})[call["index"]] = call
            if event.get("end"):
                record.attempts.append(_attempt(event))
        elif subject.startswith(VERSIONS):
            record.versions.append(
                Version(event["model"], event["version"], event["epoch"], event.get("fingerprint", ""))
            )
    record.calls = [
        _call(execution, call, by_index) for execution, by_index in calls.items() for call in by_index.values()
    ]
    return record


def _attempt(batch: Mapping[str, Any]) -> Attempt:
    end = batch["end"]
    if not end.get("is_final", True):
        resolution = "retried"
    else:
        resolution = "abandoned" if end["outcome"] in NOT_CAUSED_BY_AGENT else "final"
    return Attempt(batch["rollout_id"], batch["execution_id"], resolution, end["outcome"], end.get("reward"))


def _call(execution: str, call: Mapping[str, Any], by_index: Mapping[int, Mapping[str, Any]]) -> Call:
    """Put the prompt together from the tokens of the calls it refers to, and its own."""
    prompt = array("I")
    for index, length in call.get("prompt_prefix_refs", ()):
        earlier = by_index[index]
        prompt += _numbers("I", earlier["prompt_ids"] + earlier["response_ids"])[:length]
    prompt += _numbers("I", call["prompt_ids"])
    spans = sorted(call["weight_versions"], key=lambda span: span["start"])
    versions = chain.from_iterable([span["version"]] * (span["end"] - span["start"]) for span in spans)
    return Call(
        execution_id=execution,
        index=call["index"],
        span_id=call["span_id"],
        prompt_ids=tuple(prompt),
        prompt_sha256=call.get("prompt_sha256", b"").hex(),
        response_ids=tuple(_numbers("I", call["response_ids"])),
        logprobs=tuple(_numbers("f", call["logprobs"])),
        versions=tuple(versions),
    )


def _numbers(code: str, data: bytes) -> "array[Any]":
    return array(code, data)


def _step(event: Mapping[str, Any]) -> Step:
    uses = [
        Use(
            rollout_id=use["rollout_id"],
            execution_id=use["execution_id"],
            is_trained=use["trained"],
            exclusion_reason=use.get("exclusion_reason", ""),
            reward=use["reward"],
            version_tokens=tuple(sorted((version, num) for version, num in use.get("version_tokens", ()))),
        )
        for use in event["rollouts"]
    ]
    return Step(
        model=event["model"],
        step=event["step"],
        version=event["version"],
        epoch=event["epoch"],
        batch_sha256=event.get("batch_sha256", ""),
        uses=tuple(sorted(uses, key=lambda use: use.rollout_id)),
    )
