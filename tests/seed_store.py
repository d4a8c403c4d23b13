"""A store full of what runs leave behind: events as runners and learner make them, with made-up content, by a seed."""

import json
import math
import random
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace as changed
from typing import Any

from clickhouse_connect.driver.client import Client
from msgspec.structs import replace

from lightningbus.runners.protocol.answers.choice import SampledChoice
from lightningbus.runners.recording.attempt import AttemptRecorder
from lightningbus.schemas import ids as identity
from lightningbus.schemas import subjects
from lightningbus.schemas.audits.events import RolloutAudit
from lightningbus.schemas.base import Event, Outcome
from lightningbus.schemas.semconv import attributes
from lightningbus.schemas.spans import Span, SpanBatch, VersionSpan
from lightningbus.schemas.tasks import Task, TaskBatchRecord, TaskRecord
from lightningbus.schemas.training import RolloutDisposition, TrainingStep
from lightningbus.schemas.weights.events import Blob, WeightManifest, WeightsActivated
from lightningbus.store.ingest import arrow
from lightningbus.store.ingest.batch import load_column_types
from lightningbus.store.ingest.rows.events import build_rows
from lightningbus.store.ingest.rows.row import EventMetadata, Row
from lightningbus.tasks.task_publisher import build_producer_span

START_NS = 1_790_000_000_000_000_000
SECOND_NS = 1_000_000_000
TEXT = "the sum of two numbers is what you get when they are put together so carry the one and write it down"
WORDS = TEXT.split()
ENGINE = "node-0:1"
"""The engine that sampled everything."""
MODELS = ("writer", "checker")
"""Of a run of two models."""


def insert(client: Client, events: Iterable[Event], database: str = "lightningbus", first: int = 1) -> int:
    """Write events as the ingester would, in one batch; returns how many rows."""
    types = load_column_types(client, database)
    tables: dict[str, list[Row]] = defaultdict(list)
    for sequence, event in enumerate(events, start=first):
        stored_ns = event.end.ended_ns + 2_000_000 if isinstance(event, SpanBatch) and event.end else START_NS
        for table, row in build_rows(event, EventMetadata(sequence, stored_ns, lambda run: 0)):
            tables[table].append(row)
    for table, rows in tables.items():
        client.insert_arrow(table, arrow.rows_to_arrow(rows, types[table]), database=database)
    return sum(map(len, tables.values()))


def run(
    name: str, *, steps: int = 6, groups: int = 4, samples: int = 4, turns: int = 3, seed: int = 0
) -> Iterator[Event]:
    """Everything a run says: rewards that rise, two roles, tools, a failure now and then, one version a step."""
    chance = random.Random(seed)
    yield _version(name, 0, START_NS)
    for step in range(1, steps + 1):
        begun = START_NS + step * 20 * SECOND_NS
        uses = []
        for group in range(groups):
            for sample in range(samples):
                task = Task(
                    id=f"t{group}@p{step}",
                    run_id=name,
                    agent="default",
                    input=group,
                    sample_index=sample,
                    group_size=samples,
                    labels={"difficulty": "hard" if group % 4 == 0 else "easy"},
                )
                rollout = identity.rollout_id(task.id, sample)
                subject = subjects.task("train", "default")
                record = TaskRecord(
                    task=task, rollout_id=rollout, span=build_producer_span(task, subject, begun, begun + 10_000)
                )
                yield TaskBatchRecord(tasks=(record,))
                *batches, last = attempt(task, step - 1, begun + SECOND_NS, turns, chance)
                yield from batches
                yield last
                uses.append(_use(last, step, chance))
        yield _audit(name, uses[-1], step - 1, begun + 14 * SECOND_NS)
        settings = learner_settings(max_steps=steps, groups_per_step=groups, group_size=samples, seed=seed)
        yield _step(name, step, begun + 15 * SECOND_NS, uses, settings)
        yield _version(name, step, begun + 15 * SECOND_NS)
        yield WeightsActivated(
            node="node-0",
            model="policy",
            version=step,
            fetch_seconds=0.02,
            pause_seconds=0.05,
            kv_cache="kept" if step % 4 else "recomputed",
            activated_at_ns=begun + 16 * SECOND_NS,
        )


def evaluations(name: str, versions: Iterable[int], num_tasks: int = 6, seed: int = 7) -> Iterator[SpanBatch]:
    """The ends of rollouts of two evaluations, greedy and sampled, of some versions of a run."""
    chance = random.Random(seed)
    for version in versions:
        begun = START_NS + (version + 1) * 20 * SECOND_NS
        for evaluation in ("greedy", "sampled"):
            for number in range(num_tasks):
                task = Task(
                    id=f"h{number}@{name}-{evaluation}-v{version}",
                    run_id=name,
                    agent="default",
                    mode="eval",
                    evaluation=evaluation,
                    input=number,
                )
                yield from attempt(task, version, begun, 2, chance)


def run_of_two(name: str, *, steps: int = 6, groups: int = 4, samples: int = 4, seed: int = 0) -> Iterator[Event]:
    """A run that trains two models, ``writer``, which agents call by name, and ``checker``, which answers for a role.

    The checker makes a step, and a version, for two of the writer's, and has a reward of its own: ``rewards.checker``.
    """
    chance = random.Random(seed)
    for model in MODELS:
        yield _version(name, 0, START_NS, model)
    for step in range(1, steps + 1):
        begun, versions = START_NS + step * 20 * SECOND_NS, dict(zip(MODELS, (step - 1, (step - 1) // 2), strict=True))
        ends = []
        for group in range(groups):
            for sample in range(samples):
                task = Task(
                    id=f"t{group}@p{step}", run_id=name, agent="default", input=group, sample_index=sample,
                    group_size=samples, model=MODELS[0], role_models={"checker": MODELS[1]},
                )  # fmt: skip
                subject, rollout = subjects.task("train", "default"), identity.rollout_id(task.id, sample)
                span = build_producer_span(task, subject, begun, begun + 10_000)
                yield TaskBatchRecord(tasks=(TaskRecord(task=task, rollout_id=rollout, span=span),))
                batches = attempt(task, versions["writer"], begun + SECOND_NS, 3, chance, versions["checker"])
                ends.append(batches[-1])
                yield from batches
        for model, number in zip(MODELS, (step, step // 2), strict=True):
            if model == "checker" and step % 2:
                continue
            uses = [_use_of(model, last, number, chance) for last in ends]
            settings = learner_settings(max_steps=steps, model=model, task_model=MODELS[0], seed=seed)
            fields = json.loads(settings) | ({"reward": model} if model == "checker" else {})
            yield replace(_step(name, number, begun + 15 * SECOND_NS, uses, json.dumps(fields)), model=model)
            yield _version(name, number, begun + 15 * SECOND_NS, model)
            yield WeightsActivated(
                node=f"node-{model}", model=model, version=number, fetch_seconds=0.02, pause_seconds=0.05,
                kv_cache="kept", activated_at_ns=begun + 16 * SECOND_NS,
            )  # fmt: skip


def _use_of(model: str, last: SpanBatch, step: int, chance: random.Random) -> RolloutDisposition:
    """What a learner did with a rollout: advantages for the calls of its model, by the reward of its model."""
    use = _use(last, step, chance)
    assert last.end is not None
    sign = 1 if model == MODELS[0] else -1
    own_calls = [(0 if model == MODELS[0] else 1) == call % 2 for call in range(last.end.usage.num_calls)]
    reward = last.end.reward if model == MODELS[0] else last.end.rewards.get(model)
    return replace(
        use, reward=reward, advantage=sign * use.advantage, tokens=10 * sum(own_calls) if use.trained else 0,
        call_advantages=tuple(sign * use.advantage * is_own for is_own in own_calls),
        call_tokens=tuple(10 * is_own for is_own in own_calls) if use.trained else (),
        version_tokens=_version_tokens(last, model, sum(own_calls)) if use.trained else (),
    )  # fmt: skip


def external_attempt(run: str) -> list[SpanBatch]:
    """An attempt whose agent has called a model that no node answers, without a price."""
    recorder = AttemptRecorder(Task(id="outside", run_id=run, agent="adder", input={}), 1, "runner-0", 1, START_NS)
    call = {attributes.OPERATION: "chat", attributes.REQUEST_MODEL: "gpt-4o", attributes.INPUT_TOKENS: 10}
    recorder.add(
        Span(
            trace_id=recorder.trace_id, span_id="e" * 16, parent_span_id=recorder.root_id, name="chat gpt-4o",
            start_ns=START_NS, end_ns=START_NS + SECOND_NS, scope="agent", attributes=call,
        )
    )  # fmt: skip
    recorder.finish("ok", 1.0, "", "null")
    return list(recorder.outbox)


def attempt(
    task: Task, version: int, started_ns: int, turns: int, chance: random.Random, checker: int | None = None
) -> list[SpanBatch]:
    """One attempt at a task: a chat with a tool between the turns.

    With a version of the ``checker`` its role is answered by the model of this name, and there is a reward for it.
    """
    recorder = AttemptRecorder(task, 1, f"runner-{task.sample_index % 2}", started_ns - SECOND_NS // 4, started_ns)
    messages: list[dict[str, str]] = [{"role": "system", "content": "You add numbers."}]
    tokens: list[int] = list(range(40))
    now = started_ns + 20_000_000
    for turn in range(turns):
        messages.append({"role": "user", "content": f"question {task.id} {turn}: {_random_words(chance, 8)}"})
        tokens += [100 + chance.randrange(400) for _ in range(12)]
        answer = _random_words(chance, 10)
        pieces = [f"{word} " for word in answer.split()]
        role = "writer" if turn % 2 == 0 else "checker"
        if checker is not None and role == "checker":
            part = _part(tokens, pieces, checker, answer, chance, MODELS[1])
        else:
            part = _part(tokens, pieces, version, answer, chance, task.model)
        took = int(chance.uniform(0.1, 0.6) * SECOND_NS)
        request = json.dumps({"model": "policy:writer", "messages": messages})
        recorder.add_call(part, node="node-0", role=role, request=request, started_ns=now, ended_ns=now + took)
        now += took + 5_000_000
        recorder.add(_tool(recorder, turn, now, chance))
        now += 60_000_000
        messages.append({"role": "assistant", "content": answer})
        tokens += part.num_tokens[len(tokens) :]
    outcome: Outcome = "agent_error" if chance.random() < 0.05 else "ok"
    error = f"ValueError: no number in answer {chance.randrange(1000)}" if outcome != "ok" else ""
    reward = float(chance.random() < 1 - math.exp(-0.3 * (version + 1))) if outcome == "ok" else None
    rewards = {"correct": reward, "brief": 1 / (2 + version)} if reward is not None else {}
    if checker is not None and reward is not None:
        rewards[MODELS[1]] = 1 - reward / 2
    recorder.finish(outcome, reward, error, json.dumps(reward), rewards=rewards)
    return _ended(recorder, now)


def _ended(recorder: AttemptRecorder, now: int) -> list[SpanBatch]:
    """What it sends, as if it had been concluded then."""
    *before, last = recorder.outbox
    assert last.end is not None
    spans = tuple(replace(span, end_ns=now) if span.span_id == recorder.root_id else span for span in last.spans)
    return [*before, replace(last, end=replace(last.end, ended_ns=now), spans=spans)]


def instrumented(name: str) -> list[SpanBatch]:
    """A run of one attempt: a graph as openinference-instrumentation-langchain 0.1.80 has it, and Agent Lightning."""
    chance = random.Random(5)
    recorder = AttemptRecorder(
        Task(id="t", run_id=name, agent="default", input={}), 1, "runner-0", START_NS, START_NS + SECOND_NS // 5
    )

    def at(milliseconds: int) -> int:
        return recorder.started_ns + milliseconds * 1_000_000

    def add(name: str, parent: str, start: int, end: int, text: dict[str, Any], error: str = "") -> None:
        above = identity.span_id(recorder.rollout, recorder.execution, parent) if parent else recorder.root_id
        displayed, status = name.split("#")[0], ("error" if error else "unset")
        recorder.add(
            Span(
                trace_id=recorder.trace_id,
                span_id=identity.span_id(recorder.rollout, recorder.execution, name),
                parent_span_id=above,
                name=displayed,
                start_ns=at(start),
                end_ns=at(end),
                status=status,  # type: ignore[arg-type]
                status_message=error,
                scope="agent",
                attributes=text,
            )
        )

    def ask(turn: int, start: int, words: list[str]) -> None:
        answer, kind = f"chatcmpl-{turn:032x}", "openinference.span.kind"
        add(f"model#{turn}", "adder", start, start + 175, {kind: "CHAIN"})
        fields = {kind: "LLM", "output.value": json.dumps({"id": answer})}
        add(f"ChatOpenAI#{turn}", f"model#{turn}", start + 5, start + 170, fields)
        part = changed(_part(list(range(30)), words, 1, "".join(words), chance), response_id=answer)
        request = json.dumps({"model": "policy", "messages": [{"role": "user", "content": "2+0?"}]})
        times = {"started_ns": at(start + 15), "ended_ns": at(start + 165)}
        recorder.add_call(part, node="node-0", role="", request=request, **times)

    add("adder", "", 20, 500, {"openinference.span.kind": "AGENT"})
    ask(0, 25, ["let ", "me ", "add"])
    add("tools", "adder", 205, 310, {"openinference.span.kind": "CHAIN"})
    query = {"openinference.span.kind": "TOOL", "tool.name": "add", "input.value": '{"a": 2, "b": 0}'}
    add("add", "tools", 210, 305, query, error="b is zero")
    ask(1, 315, ["I ", "cannot"])
    add("agentlightning.message", "", 510, 510, {"agentlightning.message.body": "b was zero"})
    link = {"link.0.key_match": "gen_ai.response.id", "link.0.value_match": f"chatcmpl-{0:032x}"}
    rewards = {"reward.0.name": "task", "reward.0.value": 1.0, "reward.1.name": "speed", "reward.1.value": 0.5}
    emitted = {f"agentlightning.{key}": value for key, value in {**link, **rewards}.items()}
    add("agentlightning.annotation", "", 520, 520, emitted)
    recorder.finish("ok", 1.0, "", "null")
    return _ended(recorder, at(530))


def story(name: str) -> list[Event]:
    """A run of one rollout with everything a reader may want: a task with its answer, a tool, a judge, a file."""
    chance = random.Random(6)
    question = {"question": "What is 2+2?", "answer": "4", "level": {"grade": 1}}
    task = Task(id="sum", run_id=name, agent="default", input=question, labels={"difficulty": "easy"})
    rollout, begun = identity.rollout_id("sum", 0), START_NS
    recorder = AttemptRecorder(task, 1, "runner-0", begun, begun + SECOND_NS // 5)
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": 2}'}}
    first: list[dict[str, Any]] = [
        {"role": "system", "content": "You add numbers."}, {"role": "user", "content": "What is 2+2?"},
    ]  # fmt: skip
    requests_tool = {"role": "assistant", "content": None, "reasoning_content": "A tool can add.", "tool_calls": [call]}
    second = [*first, requests_tool, {"role": "tool", "tool_call_id": "c1", "content": '{"sum": 4}'}]
    answer = {"role": "assistant", "content": "<think>It says four.</think>\n\nThe sum is **4**."}
    for number, (messages, reply) in enumerate(((first, requests_tool), (second, answer))):
        part = _part(list(range(20 + 10 * number)), ["It ", "is ", "4"], 1, "", chance)
        part = changed(part, response=json.dumps(reply))
        start = recorder.started_ns + (1 + 300 * number) * 1_000_000
        request = json.dumps({"model": "policy", "messages": messages})
        recorder.add_call(part, node="node-0", role="", request=request, started_ns=start, ended_ns=start + 200_000_000)
    judged = {
        attributes.OPERATION: "chat", attributes.REQUEST_MODEL: "judge-large", attributes.INPUT_TOKENS: 40,
        attributes.OUTPUT_TOKENS: 6, attributes.GRADER: "helpful", attributes.GRADER_CACHED: False,
        attributes.GRADER_COST: 0.002, attributes.OUTPUT: "Right, and short. Score: 1",
    }  # fmt: skip
    kept = {
        attributes.ARTIFACT_NAME: "sum.txt", attributes.ARTIFACT_BYTES: 6, attributes.ARTIFACT_ENCODING: "utf-8",
        attributes.ARTIFACT_CONTENT: "2+2=4\n",
    }  # fmt: skip
    for title, scope, values in (("judge", attributes.GRADER_SCOPE, judged), ("artifact sum.txt", "agent", kept)):
        recorder.add(
            Span(
                trace_id=recorder.trace_id,
                span_id=identity.span_id(recorder.rollout, recorder.execution, title),
                parent_span_id=recorder.root_id,
                name=title,
                start_ns=recorder.started_ns + 600_000_000,
                end_ns=recorder.started_ns + 700_000_000,
                scope=scope,
                attributes=values,
            )
        )
    recorder.output_tail = "adding 2 and 2\ndone\n"
    recorder.finish("ok", 1.0, "", '{"reward": 1.0, "words": 4}', rewards={"correct": 1.0, "helpful": 1.0})
    span = build_producer_span(task, subjects.task("train", "default"), begun, begun + 10_000)
    record = TaskRecord(task=task, rollout_id=rollout, span=span)
    return [TaskBatchRecord(tasks=(record,)), *_ended(recorder, recorder.started_ns + 800_000_000)]


def _random_words(chance: random.Random, words: int) -> str:
    return " ".join(chance.choice(WORDS) for _ in range(words))


def _part(
    prompt: list[int], pieces: list[str], version: int, answer: str, chance: random.Random, model: str = "policy"
) -> SampledChoice:
    ids = [500 + chance.randrange(500) for _ in pieces]
    half = len(ids) // 2 if version else 0
    runs = [VersionSpan(version=version - 1, start=0, end=half, engine_id=ENGINE)] if half else []
    return SampledChoice(
        model=model,
        response_id="",
        prompt_ids=array("I", prompt).tobytes(),
        response_ids=array("I", ids).tobytes(),
        logprobs=array("f", [-chance.expovariate(2.0) for _ in ids]).tobytes(),
        token_texts=tuple(pieces),
        weight_versions=(*runs, VersionSpan(version=version, start=half, end=len(ids), engine_id=ENGINE)),
        finish_reason="length" if chance.random() < 0.1 else "stop",
        sampling={"temperature": 1.0},
        response=json.dumps({"role": "assistant", "content": answer}),
    )


def _tool(recorder: AttemptRecorder, turn: int, start_ns: int, chance: random.Random) -> Span:
    failed = chance.random() < 0.1
    return Span(
        trace_id=recorder.trace_id,
        span_id=identity.span_id(recorder.rollout, recorder.execution, "tool", turn),
        parent_span_id=recorder.root_id,
        name="execute_tool add",
        start_ns=start_ns,
        end_ns=start_ns + 50_000_000,
        status="error" if failed else "ok",
        status_message="division by zero" if failed else "",
        scope="agent",
        attributes={
            attributes.OPERATION: "execute_tool",
            "gen_ai.tool.name": "add",
            "gen_ai.tool.call.arguments": "1+1",
        },
    )


def _use(last: SpanBatch, step: int, chance: random.Random) -> RolloutDisposition:
    assert last.end is not None
    reward = last.end.reward
    advantage = 0.0 if reward is None else reward - 0.5 + chance.uniform(-0.1, 0.1)
    calls = last.end.usage.num_calls
    return RolloutDisposition(
        rollout_id=last.rollout_id,
        task_id=last.task_id,
        attempt=last.attempt,
        execution_id=last.execution_id,
        outcome=last.end.outcome,
        reward=reward,
        advantage=advantage,
        trained=reward is not None,
        exclusion_reason="" if reward is not None else "no reward",
        tokens=last.end.usage.response_tokens,
        max_staleness=min(step - 1, 1),
        batch_index=0,
        call_advantages=(advantage,) * calls,
        call_roles=tuple("writer" if call % 2 == 0 else "checker" for call in range(calls)),
        call_tokens=(10 if reward is not None else 0,) * calls,
        version_tokens=_version_tokens(last, "policy", calls) if reward is not None else (),
    )


def _version_tokens(last: SpanBatch, model: str, calls: int) -> tuple[tuple[int, int], ...]:
    """Ten tokens a call, the first half of the version before; see `_part`."""
    assert last.end is not None
    version = last.end.usage.newest_versions.get(model, 0)
    return ((version - 1, 5 * calls), (version, 5 * calls)) if version else ((0, 10 * calls),)


def _audit(run: str, use: RolloutDisposition, version: int, audited_ns: int) -> RolloutAudit:
    return RolloutAudit(
        run_id=run, rollout_id=use.rollout_id, execution_id=use.execution_id, call=0, model="policy", engine_id=ENGINE,
        version=version, num_tokens=10, num_differing=0, mean_difference=1e-5, max_difference=1e-4, tolerance=0.01,
        evidence=0.0, audited_at_ns=audited_ns,
    )  # fmt: skip


def learner_settings(**settings: int | str) -> str:
    """The settings of a learner, JSON."""
    return json.dumps({"model_path": "models/Qwen3-0.6B", "actor": {"optim": {"lr": 1e-6}}, **settings})


def _step(name: str, step: int, ended_ns: int, uses: list[RolloutDisposition], settings: str) -> TrainingStep:
    metrics = {
        "actor/entropy": 2 / (1 + step / 20),
        "actor/grad_norm": 1.0 / step,
        "actor/pg_clipfrac": 0.01,
        "actor/ppo_kl": (-1) ** step * 1e-5 * step,
        "off_policy/ess": 1 - step / 1000,
        "response_length/mean": 20 + step % 7,
        **({"rollout_corr/k3_kl": 1e-9 * step} if step % 3 == 1 else {}),  # not every step measures it
        "learner/idle_share": 0.25,
        "seconds/idle": 1.0,
        "staleness/max": step % 3,
        "rollouts": len(uses),
        "tokens": sum(use.tokens for use in uses),
    }
    return TrainingStep(
        run_id=name,
        model="policy",
        step=step,
        version=step,
        epoch=1,
        started_ns=ended_ns - 3 * SECOND_NS,
        ended_ns=ended_ns,
        rollouts=tuple(uses),
        metrics=metrics,
        spans=tuple(_trained(use, step, ended_ns) for use in uses if use.trained),
        settings=settings,
    )


def _trained(use: RolloutDisposition, step: int, ended_ns: int) -> Span:
    return Span(
        trace_id=identity.trace_id(use.rollout_id),
        span_id=identity.span_id(use.rollout_id, "train", step),
        parent_span_id=identity.root_span_id(use.rollout_id, use.execution_id),
        name="train policy",
        kind="consumer",
        start_ns=ended_ns - 3 * SECOND_NS,
        end_ns=ended_ns,
        scope="lightningbus.learner",
        attributes={attributes.ROLLOUT: use.rollout_id, attributes.STEP: step, attributes.ADVANTAGE: use.advantage},
    )


def _version(name: str, version: int, created_ns: int, model: str = "policy") -> WeightManifest:
    blob = Blob(bucket="weights", name=f"{name}-{model}-{version}", size=1000, sha256="0" * 64)
    fields = {"run_id": name, "model": model, "version": version, "blobs": (blob,), "epoch": 1, "step": version}
    return WeightManifest(**fields, created_at_ns=created_ns)  # type: ignore[arg-type]
