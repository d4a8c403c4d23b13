"""Agents that compact their context: found by meaning, counted, and credited for what follows."""

import json
import random
from array import array
from collections.abc import Callable, Sequence
from functools import cache
from math import exp
from typing import Any
from zlib import crc32

import numpy as np
import pytest

from lightningbus.learner.batching import credit
from lightningbus.learner.batching.credit import Episode
from lightningbus.learner.settings.algorithm import AlgorithmSettings, CreditSettings
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.training.estimators import make_estimator
from lightningbus.learner.transitions.prefix_tree import number_windows
from lightningbus.runners.protocol.answers.choice import SampledChoice
from lightningbus.runners.recording.attempt import AttemptRecorder
from lightningbus.schemas.spans import ModelCall, VersionSpan
from lightningbus.schemas.tasks import Task
from lightningbus.schemas.trajectory.compaction import Exchange, find_summaries
from tests.factories import group, rollout
from tests.growth import MAX_GROWTH, measure_growth
from tests.learner.conftest import builder_for

Messages = list[dict[str, Any]]
SUMMARY = "The bug is in parse.py: the index starts at one. Two of three tests pass. Next: fix the third."
SYSTEM, TASK = {"role": "system", "content": "You mend code."}, {"role": "user", "content": "Mend the parser."}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


OLD: Messages = [
    SYSTEM,
    TASK,
    assistant("I look."),
    {"role": "tool", "content": "parse.py"},
    assistant("I see."),
    user("on"),
]
PLEASE = user("Summarise the conversation for the one who goes on.")
TAGGED = f"<analysis>\nWhat the user wanted, at length and in detail.\n</analysis>\n<summary>\n{SUMMARY}\n</summary>"
CASES: dict[str, tuple[Messages, str, Messages]] = {
    "Claude Code": (
        [*OLD, PLEASE],
        TAGGED,
        [SYSTEM, user(f"This session goes on from another.\nSummary:\n{SUMMARY}")],
    ),
    "Codex": ([*OLD, PLEASE], SUMMARY, [SYSTEM, TASK, user(f"Another model began this. Its summary:\n{SUMMARY}")]),
    "OpenHands": (
        [user(f"Condense these events: {OLD}")],
        SUMMARY,
        [SYSTEM, TASK, user(SUMMARY), assistant("I go on.")],
    ),
    "OpenHands, its first turn kept": (
        [user("Condense these events.")],
        SUMMARY,
        [*OLD[:4], user(SUMMARY), *OLD[4:]],
    ),
    "OpenCode": (
        [{"role": "system", "content": "You summarise."}, user(f"Here is the conversation: {OLD}")],
        TAGGED,
        [SYSTEM, user("What did we do so far?"), assistant(TAGGED), *OLD[4:]],
    ),
    "an answer to another question": (
        [*OLD, PLEASE],
        SUMMARY,
        [SYSTEM, user("What did we do so far?"), assistant(SUMMARY), user("next")],
    ),
    "without instructions": ([*OLD[1:], PLEASE], SUMMARY, [user(f"The state so far.\n{SUMMARY}")]),
    "in parts": ([*OLD, PLEASE], SUMMARY, [SYSTEM, {"role": "user", "content": [{"type": "text", "text": SUMMARY}]}]),
}
OTHERS: dict[str, tuple[Messages, str, Messages]] = {
    "another agent's turn": ([*OLD, PLEASE], SUMMARY, [{"role": "system", "content": "You review."}, user(SUMMARY)]),
    "earlier turns dropped": ([*OLD, PLEASE], SUMMARY, [SYSTEM, PLEASE, assistant(SUMMARY), user("next")]),
    "results of tools dropped": ([*OLD, PLEASE], SUMMARY, [SYSTEM, assistant("I look."), assistant(SUMMARY), TASK]),
    "an edited question": (
        [SYSTEM, PLEASE],
        SUMMARY,
        [SYSTEM, user("Summarise it."), assistant(SUMMARY), user("next")],
    ),
    "a short answer": ([*OLD, PLEASE], "Yes.", [SYSTEM, user("Yes. What now?")]),
    "a part of it": ([*OLD, PLEASE], SUMMARY, [SYSTEM, user("The bug is in parse.py: the index starts at one.")]),
    "a chat of one turn": ([SYSTEM, TASK], SUMMARY, [SYSTEM, user(f"Improve this answer: {SUMMARY}")]),
}


@pytest.mark.parametrize("name", CASES)
def test_a_conversation_that_begins_with_a_summary_is_found(name: str) -> None:
    asking, summary, new = CASES[name]
    first = Exchange(OLD[1:] if name == "without instructions" else OLD, assistant("I see."))
    assert find_summaries(
        [first, Exchange(asking, assistant(summary)), Exchange(new, assistant("I go on."))], [0, 2]
    ) == {2: 1}


@pytest.mark.parametrize("name", OTHERS)
def test_a_conversation_of_its_own_is_none(name: str) -> None:
    asking, answer, new = OTHERS[name]
    assert find_summaries([Exchange(asking, assistant(answer)), Exchange(new, assistant("I go on."))], [0, 1]) == {}


def tokens(messages: Messages) -> bytes:
    """A token for each word, as a template would render the messages."""
    return b"".join(message_tokens(message["role"], message["content"]) for message in messages)


@cache
def message_tokens(role: str, content: str) -> bytes:
    words = (f"<{role}>", *content.split(), "<end>")
    return array("I", [crc32(word.encode()) for word in words]).tobytes()


def record(exchanges: Sequence[tuple[Messages, str]]) -> tuple[ModelCall, ...]:
    """The calls as a runner records them: each as what it adds to those before."""
    recorder = AttemptRecorder(Task(id="t", run_id="r", agent="a", input={}), 1, "runner")
    for messages, answer in exchanges:
        prompt = tokens(messages)
        sampled = tokens([*messages, assistant(answer)])[len(prompt) :]
        size = len(sampled) // 4
        choice = SampledChoice(
            "policy", "c", prompt, sampled, array("f", [-1.0] * size).tobytes(), (),
            (VersionSpan(version=0, start=0, end=size),), "stop", {}, json.dumps(assistant(answer)),
        )  # fmt: skip
        request = json.dumps({"model": "policy", "messages": messages})
        recorder.add_call(choice, node="n", role="", request=request, started_ns=1, ended_ns=2)
    recorder.flush()
    return tuple(span.call for batch in recorder.outbox for span in batch.spans if span.call is not None)


SESSION = [
    ([SYSTEM, TASK], "I look."),
    ([SYSTEM, TASK, assistant("I look."), user("parse.py")], "I see."),
    ([SYSTEM, TASK, assistant("I look."), user("parse.py"), assistant("I see."), PLEASE], SUMMARY),
    ([SYSTEM, user(f"Summary:\n{SUMMARY}")], "I go on."),
    ([SYSTEM, user(f"Summary:\n{SUMMARY}"), assistant("I go on."), user("ok")], "Done."),
]


def test_what_a_runner_recorded_is_counted_by_cause() -> None:
    edited = [*SESSION[:2], ([SYSTEM, TASK, assistant("I glance."), user("x")], "No.")]
    settings = LearnerSettings.model_validate({"model_path": "m"})
    members = [rollout("a", number, 1.0, calls=record(calls)) for number, calls in enumerate((SESSION, edited))]
    metrics = builder_for(settings, detokenize=lambda ids: str(list(ids))).build([group("a", *members)], 0).metrics
    breaks = {name: count for name, count in metrics.items() if name.startswith("prefix_breaks")}
    assert breaks == {"prefix_breaks/compacted": 1.0, "prefix_breaks/edited history": 1.0}


def test_a_turn_left_out_is_no_summary() -> None:
    """The answer follows a question that was asked before, and answered otherwise."""
    new = [SYSTEM, user("on"), assistant(SUMMARY), user("next")]
    calls = [(OLD, "I see."), ([*OLD, assistant("I see."), PLEASE], SUMMARY), (new, "I go on.")]
    assert find_summaries([Exchange(messages, assistant(answer)) for messages, answer in calls], [0, 2]) == {}


def test_a_second_summary_in_an_answer_is_found_too() -> None:
    """The question before it is no new one, but nobody has asked it."""
    ask = [{"role": "system", "content": "You summarise."}]
    texts = SUMMARY, "The parser was mended, and all of the three tests pass. Next: write a note on it."
    new = [[SYSTEM, user("What did we do so far?"), assistant(text), *OLD[4:]] for text in texts]
    calls = [
        (OLD, "I see."), ([*ask, user("of the first part")], texts[0]), (new[0], "I go on."),
        ([*ask, user("of the second part")], texts[1]), (new[1], "I go on."),
    ]  # fmt: skip
    exchanges = [Exchange(messages, assistant(answer)) for messages, answer in calls]
    assert find_summaries(exchanges, range(5)) == {2: 1, 4: 3}


def test_calls_are_numbered_by_their_context_windows() -> None:
    assert number_windows(record(SESSION)) == [0, 0, 0, 1, 1]
    assert number_windows(record(SESSION)[1:]) == [0] * 4, "calls that cannot be restored are in one window"


def test_an_early_window_has_less_credit() -> None:
    won = Episode("a", 1.0, (0.0,) * 4, tuple("abcd"), (30, 10, 20, 20), (0, 0, 1, 1))
    lost = Episode("a", 0.0, (0.0,), ("a",), (7,), (0,))
    estimate = make_estimator(AlgorithmSettings())
    settings = CreditSettings(method="compaction")
    actual = credit.resolve_credit_fn("compaction")([won, lost], estimate, settings)
    (whole, *_), (other,) = credit.resolve_credit_fn("identical")([won, lost], estimate, settings)
    assert whole is not None and other is not None
    early = (1 - 1 / (1.5 * 40)) ** 40 * whole
    assert actual == [pytest.approx([early, early, whole, whole]), pytest.approx([other])]
    assert early / whole == pytest.approx(exp(-2 / 3), rel=0.01)


NOISE = " ".join(f"line {number} of the log says nothing" for number in range(60))
FACTS = ("north", "south", "east", "west")
TURNS = 9


class Policy:
    """A scripted model: it reads on, and chooses by logits how to summarise and how to answer."""

    def __init__(self, chance: random.Random) -> None:
        self.chance, self.logits = chance, {"summary": np.zeros(2), "answer": np.zeros(2)}

    def choose(self, what: str) -> int:
        odds = np.exp(self.logits[what])
        return int(self.chance.random() >= odds[0] / odds.sum())

    def learn(self, choices: Sequence[tuple[str, int, float]]) -> None:
        """Follow the gradient of the log-probability of choices, times their advantages."""
        for what, chosen, advantage in choices:
            odds = np.exp(self.logits[what])
            self.logits[what] += 0.2 * advantage * (np.eye(2)[chosen] - odds / odds.sum())


def play(
    policy: Policy, fact: str, window: int
) -> tuple[float, list[tuple[Messages, str]], dict[int, tuple[str, int]]]:
    """An agent that compacts at ``window`` tokens: its reward, its calls, and what was chosen at which of them."""
    messages, calls, choices = [SYSTEM, user(f"The key lies {fact}. Read the log, then say where it lies.")], [], {}
    for _ in range(TURNS):
        if len(tokens(messages)) // 4 > window:
            choices[len(calls)] = ("summary", policy.choose("summary"))
            seen = next((each for each in FACTS if f"key lies {each}" in str(messages)), "somewhere")
            summary = f"The key lies {seen}. The log was read to here."
            if choices[len(calls)][1]:
                summary = "The log was read to here, and it says nothing of note."
            calls.append(([*messages, PLEASE], summary))
            messages = [SYSTEM, user(f"Go on. {summary}")]
        calls.append((list(messages), "I read on."))
        messages += [assistant("I read on."), user(NOISE)]
    choices[len(calls)] = ("answer", policy.choose("answer"))
    known = next((each for each in FACTS if f"key lies {each}" in str(messages)), "nowhere")
    answer = known if choices[len(calls)][1] == 0 else policy.chance.choice(FACTS)
    calls.append((messages, f"It lies {answer}."))
    return float(answer == fact), calls, choices


def train(window: int, steps: int = 15) -> tuple[float, int]:
    """Train by the learner's own advantages; returns the mean reward of the last steps, and how often it compacted."""
    chance = random.Random(7)
    policy, rewards, num_compactions = Policy(chance), [], 0
    settings = {"model_path": "m", "credit": {"method": "compaction"}, "seq_len": 16_384}
    builder = builder_for(LearnerSettings.model_validate(settings))
    for _ in range(steps):
        played = [play(policy, chance.choice(FACTS), window) for _ in range(8)]
        members = [rollout("t", at, reward, calls=record(calls)) for at, (reward, calls, _) in enumerate(played)]
        batch = builder.build([group("t", *members)], 0)
        for at, (reward, _, choices) in enumerate(played):
            rewards.append(reward)
            num_compactions += len(choices) - 1
            advantages = [batch.advantages.get((f"t.{at}", call), 0.0) for call in choices]
            policy.learn([(*choice, value) for choice, value in zip(choices.values(), advantages, strict=True)])
    return float(np.mean(rewards[-80:])), num_compactions


def test_an_agent_that_compacts_learns_what_one_with_a_longer_context_does() -> None:
    (compacting, num_compactions), (whole, num_none) = train(2_000), train(8_000)
    assert num_compactions >= 120 and num_none == 0
    assert compacting >= whole - 0.05 and whole > 0.9


@pytest.mark.parametrize("answer", ["<a>", "<a> b c d e f </a> ", "</a>"], ids=["opened", "whole", "closed"])
def test_tags_of_an_answer_cost_as_much_as_its_length(answer: str) -> None:
    def make(size: int) -> Callable[[], Any]:
        exchanges = [Exchange(OLD, assistant(answer * size)), Exchange([SYSTEM, user("on")], assistant("yes"))]
        return lambda: find_summaries(exchanges, [0, 1])

    assert measure_growth(make, 4096) <= MAX_GROWTH
