"""Files of pairs to learn from: two answers to a prompt, or tokens of rollouts with rewards."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightningbus.learner.batching.demonstrations import Demonstration
from lightningbus.learner.batching.preferences import Preference, Preferences, choose_pair
from lightningbus.learner.call_rows import holds_calls, join_calls, load_calls
from lightningbus.learner.data_lines import Line, build_each, read_lines
from lightningbus.learner.demonstration_files import MESSAGES, read_messages, read_tools
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.transitions.chats import ChatTemplate, build_chat

log = logging.getLogger(__name__)

PROMPT, CHOSEN, REJECTED = "prompt", "chosen", "rejected"

Messages = list[dict[str, Any]]


def read_preferences(settings: LearnerSettings) -> Preferences:
    """Load the pairs that a learner trains on; raise ValueError as `load_preferences` and `Preferences`."""
    assert settings.preferences is not None
    preferences = Preferences(load_preferences(settings.preferences.path, settings.model_path), settings)
    if preferences.num_equal:
        log.warning("pairs left out because both answers are the same: %d", preferences.num_equal)
    if preferences.num_too_long:
        log.warning("pairs left out because an answer does not fit seq_len: %d", preferences.num_too_long)
    return preferences


def load_preferences(path: Path, model_path: Path) -> list[Preference]:
    """Load the pairs of a file; raise ValueError with a sentence that names file and line.

    A line is in TRL's form: ``prompt`` or ``messages``, ``chosen`` and ``rejected``, each a list of messages or a text,
    which is one message of the user or of the assistant. Without a prompt, it is what both lists begin with.
    """
    lines = list(read_lines(path))
    if holds_calls(lines):
        return _pair_rollouts(path, lines, model_path)
    template = ChatTemplate.load(model_path)
    return build_each(path, lines, lambda number, line: _load_pair(number, line, template))


def _pair_rollouts(path: Path, lines: Sequence[Line], model_path: Path) -> list[Preference]:
    """Pair the best rollout of each task with the worst; those of equal rewards are no pair."""
    answers = {each.id: each for each in join_calls(load_calls(path, lines, model_path))}
    tasks: dict[str, dict[str, float]] = {}
    for task, rollout, reward in build_each(path, lines, lambda number, line: _read_reward(line)):
        if reward is not None:
            tasks.setdefault(task, {})[rollout] = reward
    pairs = [choose_pair(list(rewards), rewards.__getitem__) for rewards in tasks.values()]
    differing = [pair for pair in pairs if pair is not None]
    if len(differing) < len(pairs):
        log.warning("groups left out because no two of their rewards differ: %d", len(pairs) - len(differing))
    return [Preference(answers[best], answers[worst]) for best, worst in differing]


def _read_reward(line: Mapping[str, Any]) -> tuple[str, str, float | None]:
    """Return the task, the rollout and its reward, which may be None; raise ValueError if the row has none of them."""
    for name in ("task", "reward"):
        if name not in line:
            raise ValueError(f"it has no column {name}: pairs are chosen by the rewards of a task's rollouts")
    reward = line["reward"]
    if reward is not None and (isinstance(reward, bool) or not isinstance(reward, int | float) or reward != reward):
        raise ValueError(f"reward is not a number but {str(reward)[:40]!r}")
    return str(line["task"]), str(line["rollout"]), reward


def _load_pair(number: int, line: Mapping[str, Any], template: ChatTemplate) -> Preference:
    prompt = _read(line, PROMPT if line.get(PROMPT) is not None else MESSAGES, "user")
    chosen, rejected = (_read(line, name, "assistant") for name in (CHOSEN, REJECTED))
    if chosen is None or rejected is None:
        raise ValueError(f"it has no {CHOSEN} and {REJECTED}, each a text or a list of messages")
    if prompt is None:
        prompt = _common_beginning(chosen, rejected)
    if not prompt:
        raise ValueError(f"it has no {PROMPT} or {MESSAGES}, and {CHOSEN} and {REJECTED} do not begin alike")
    built = []
    for name, answer in ((CHOSEN, chosen), (REJECTED, rejected)):
        turns = answer[len(prompt) :] if answer[: len(prompt)] == prompt else answer
        if not _has_answer(turns):
            raise ValueError(f"{name} has no message of an assistant")
        chat = [{**message, "weight": 0} for message in prompt] + turns
        built.append(Demonstration(f"pair-{number}/{name}", build_chat(chat, read_tools(line), template)))
    return Preference(*built)


def _read(line: Mapping[str, Any], name: str, role: str) -> Messages | None:
    """Return a field's messages; None where it has none."""
    value = line.get(name)
    return [{"role": role, "content": value}] if isinstance(value, str) else read_messages(value)


def _common_beginning(first: Messages, second: Messages) -> Messages:
    """Return the messages before the first difference, after which both lists have an answer of the assistant."""
    count = next(
        (place for place, (message, other) in enumerate(zip(first, second, strict=False)) if message != other),
        min(len(first), len(second)),
    )
    while count and not (_has_answer(first[count:]) and _has_answer(second[count:])):
        count -= 1
    return first[:count]


def _has_answer(messages: Messages) -> bool:
    return any(message.get("role") == "assistant" for message in messages)
