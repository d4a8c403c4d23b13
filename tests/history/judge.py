"""The judge of a history: it finds everything that the guarantees exclude. Pure."""

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import pairwise
from typing import Any

from tests.history.history import Attempt, Call, History, Step, Use

RANKS = {"final": 0, "abandoned": 1}
"""Resolutions that end a rollout: the lowest rank counts, then the first attempt in the stream."""
Keyed = Iterable[tuple[Any, Any]]
Sampled = Mapping[tuple[str, int], int]
"""Number of sampled tokens by execution and weight version."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that should not be."""

    kind: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.sentence}"


def judge(history: History) -> list[Finding]:
    """Find every breach of a guarantee in a history."""
    counted = count_attempts(history.wire.attempts)
    return [
        *_find_unended(history, counted),
        *_find_differences(history, counted),
        *_find_wrong_prompts(history.wire.calls),
        *_find_unmade_steps(history),
        *_find_wrong_steps(history.wire.steps),
        *_find_wrong_uses(history, counted),
        *_find_unused(history, counted),
        *_find_wrong_versions(history),
        *(Finding("dead letter", text) for text in history.dead_letters),
    ]


def count_attempts(attempts: Iterable[Attempt]) -> dict[str, Attempt]:
    """Return the attempt that counts for each rollout, from attempts in the order of their stream."""
    counted: dict[str, Attempt] = {}
    for attempt in attempts:
        before = counted.get(attempt.rollout_id)
        if attempt.resolution in RANKS and (before is None or RANKS[attempt.resolution] < RANKS[before.resolution]):
            counted[attempt.rollout_id] = attempt
    return counted


def latest_steps(steps: Iterable[Step]) -> list[Step]:
    """Return each step as the learner of the newest epoch made it."""
    return list({(step.model, step.step): step for step in sorted(steps, key=lambda step: step.epoch)}.values())


def _find_unended(history: History, counted: Mapping[str, Attempt]) -> Iterator[Finding]:
    recorded = {task.rollout_id for task in history.wire.tasks}
    for rollout in sorted({*history.acknowledged} - recorded):
        yield Finding("task unrecorded", f"{rollout} was acknowledged, and no record of its task came")
    for rollout in sorted(({*history.acknowledged} | recorded) - counted.keys()):
        yield Finding("task unended", f"{rollout} was published and has no result")


def _find_differences(history: History, counted: Mapping[str, Attempt]) -> Iterator[Finding]:
    """Compare both sides, item by item."""
    wire, sql = history.wire, history.sql
    yield from _compare("task", _keyed(wire.tasks, "rollout_id"), _keyed(sql.tasks, "rollout_id"))
    yield from _compare("span", ((id, id) for id in wire.span_ids), ((id, id) for id in sql.span_ids))
    yield from _compare("attempt", _keyed(wire.attempts, "execution_id"), _keyed(sql.attempts, "execution_id"))
    yield from _compare("rollout", _keyed(counted.values(), "rollout_id"), _keyed(history.rollouts, "rollout_id"))
    yield from _compare("call", *(_keyed(side.calls, "execution_id", "index") for side in (wire, sql)))
    unprinted = [replace(version, fingerprint="") for version in wire.versions]
    yield from _compare("version", *(_keyed(items, "model", "version", "epoch") for items in (unprinted, sql.versions)))
    latest = latest_steps(wire.steps)
    for_steps = ([replace(step, uses=()) for step in steps] for steps in (latest, sql.steps))
    yield from _compare("step", *(_keyed(steps, "model", "step") for steps in for_steps))
    yield from _compare("use", *(_keyed_uses(steps) for steps in (latest, sql.steps)))


def _keyed(items: Iterable[Any], *names: str) -> Keyed:
    return [(tuple(getattr(item, name) for name in names), item) for item in items]


def _keyed_uses(steps: Iterable[Step]) -> Keyed:
    return [((step.model, step.step, use.rollout_id), use) for step in steps for use in step.uses]


def _compare(name: str, wire: Keyed, sql: Keyed) -> Iterator[Finding]:
    on_wire: dict[Any, Any] = {}
    for key, item in wire:
        if on_wire.setdefault(key, item) != item:
            yield Finding(f"{name} contradicted", f"the wire says {item} and {on_wire[key]}")
    rows = list(sql)
    times = Counter(key for key, _ in rows)
    yield from (Finding(f"{name} lost", f"SQL has no {item}") for key, item in on_wire.items() if key not in times)
    yield from (Finding(f"{name} doubled", f"SQL has {key} {num} times") for key, num in times.items() if num > 1)
    for key, row in rows:
        if key not in on_wire:
            yield Finding(f"{name} invented", f"SQL has {row}, and the wire never had it")
        elif on_wire[key] != row:
            yield Finding(f"{name} altered", f"SQL has {row}, and the wire had {on_wire[key]}")


def _find_wrong_prompts(calls: Iterable[Call]) -> Iterator[Finding]:
    for call in calls:
        if call.prompt_sha256 and sha256(array("I", call.prompt_ids)).hexdigest() != call.prompt_sha256:
            yield Finding("prompt altered", f"call {call.index} of {call.execution_id} has another prompt's digest")


def _find_unmade_steps(history: History) -> Iterator[Finding]:
    """Find gaps in the numbers of a model's steps, and steps whose version was not published."""
    published = {(item.model, item.version) for item in history.wire.versions}
    numbers: dict[str, set[int]] = {}
    for step in history.wire.steps:
        numbers.setdefault(step.model, set()).add(step.step)
        if (step.model, step.version) not in published:
            yield Finding("version unpublished", f"step {step.step} made {step.version}, which was never published")
    for model, steps in numbers.items():
        for number in sorted(set(range(1, max(steps) + 1)) - steps):
            yield Finding("step skipped", f"{model} has no step {number}")


def _find_wrong_steps(steps: Iterable[Step]) -> Iterator[Finding]:
    """Find steps made of two batches, and rollouts in the batches of two steps."""
    batches: dict[tuple[str, int], set[tuple[str, frozenset[str]]]] = {}
    trained: dict[tuple[str, str], set[int]] = {}
    for step in steps:
        executions = frozenset(use.execution_id for use in step.uses if use.is_trained)
        batches.setdefault((step.model, step.step), set()).add((step.batch_sha256, executions))
        for use in step.uses:
            if use.is_trained:
                trained.setdefault((step.model, use.rollout_id), set()).add(step.step)
    for key, unlike in batches.items():
        if len(unlike) > 1:
            yield Finding("step of two batches", f"{key} was made of {sorted(batch for batch, _ in unlike)}")
    for (_, rollout), numbers in trained.items():
        if len(numbers) > 1:
            yield Finding("trained twice", f"{rollout} was trained in the steps {sorted(numbers)}")


def _find_wrong_uses(history: History, counted: Mapping[str, Attempt]) -> Iterator[Finding]:
    """Whatever is trained is the rollout's own attempt, with its reward and tokens that are not too old."""
    sampled = Counter((call.execution_id, version) for call in _unique(history.wire.calls) for version in call.versions)
    for step in history.wire.steps:
        for use in step.uses:
            if use.is_trained:
                yield from _find_wrong_use(step, use, counted.get(use.rollout_id), sampled, history.max_staleness)
            elif not use.exclusion_reason:
                yield Finding("use unexplained", f"{use.rollout_id} was left out of step {step.step} without a reason")


def _unique(calls: Iterable[Call]) -> Iterable[Call]:
    return {(call.execution_id, call.index): call for call in calls}.values()


def _find_wrong_use(
    step: Step, use: Use, attempt: Attempt | None, sampled: Sampled, max_staleness: int
) -> Iterator[Finding]:
    name = f"step {step.step} of {step.model} trained {use.rollout_id}"
    if attempt is None or attempt.execution_id != use.execution_id:
        yield Finding("other attempt trained", f"{name} by {use.execution_id}, and the rollout is {attempt}")
    elif attempt.outcome == "ok" and attempt.reward != use.reward:
        yield Finding("other reward trained", f"{name} with {use.reward}, and its reward is {attempt.reward}")
    for version, num_tokens in use.version_tokens:
        if not 0 <= step.version - 1 - version <= max_staleness:
            yield Finding("token too old", f"{name} with {num_tokens} tokens of {version} under {max_staleness}")
        if num_tokens > sampled.get((use.execution_id, version), 0):
            yield Finding("token unsampled", f"{name} with {num_tokens} tokens of {version}, more than its calls have")


def _find_unused(history: History, counted: Mapping[str, Attempt]) -> Iterator[Finding]:
    used = {use.rollout_id for step in history.wire.steps for use in step.uses}
    for task in _keyed(history.wire.tasks, "rollout_id", "mode"):
        (rollout, mode), _ = task
        if mode == "train" and rollout in counted and rollout not in used:
            yield Finding("rollout unused", f"{rollout} ended, and no step trained it or left it out")


def _find_wrong_versions(history: History) -> Iterator[Finding]:
    """Versions follow each other without a gap; one that a newer learner claims again keeps its weights."""
    for model in sorted({item.model for item in history.wire.versions}):
        versions = list(dict.fromkeys(item for item in history.wire.versions if item.model == model))
        if versions[0].version != 0:
            yield Finding("version skipped", f"{model} begins with version {versions[0].version}")
        for before, after in pairwise(versions):
            is_claimed = after.version == before.version and after.epoch > before.epoch
            if not is_claimed and after.version != before.version + 1:
                yield Finding("version skipped", f"{model} has {after} after {before}")
        prints: dict[int, set[str]] = {}
        for item in versions:
            prints.setdefault(item.version, set()).add(item.fingerprint)
        for number, digests in prints.items():
            if len(digests) > 1 or "" in digests:
                yield Finding("version of two digests", f"{model} {number} has {sorted(digests)}")
