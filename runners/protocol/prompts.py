"""Insertion of a prompt's version into a call, in place of the agent's own text. Pure.

A prompt is found in one of three ways: by its role, it is the whole system message of that role's calls; by marks,
``<!-- prompt:NAME -->…<!-- /prompt -->``; or by the exact text of its version 0, as the whole system message or a part.
All places are found in the agent's original text: inserted text is not searched again.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from lightningbus.runners.protocol.message_parts import SYSTEM_ROLES
from lightningbus.runners.protocol.request import ChatRequest

MARK = re.compile(r"<!-- prompt:([A-Za-z0-9_-]{1,64}) -->|<!-- /prompt -->")
MIN_PART_CHARS = 20
"""A shorter text is a prompt only as the whole message: as a part it could be found by chance."""


@dataclass(frozen=True, slots=True)
class PromptChoice:
    """One prompt of an agent, and the version that a rollout has."""

    name: str
    version: int
    text: str
    original: str
    """The text that the agent sends: that of version 0."""
    role: str | None = None
    """The prompt is the whole system message of this role's calls; None: found by marks or text."""


@dataclass(frozen=True, slots=True)
class Substitution:
    """A request with the chosen prompts in it."""

    call: ChatRequest
    versions: dict[str, int]
    """Version in the request, by prompt."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Position of a prompt in a text sent by the agent."""

    start: int
    end: int
    prompt: PromptChoice


Search = Callable[[int], _Place | None]
"""The first place that begins at an index or later."""


def substitute(call: ChatRequest, prompts: Sequence[PromptChoice]) -> Substitution:
    """Put the chosen versions into a call's system messages; what holds no prompt stays as it is."""
    if not prompts or not call.chat:
        return Substitution(call, {})
    messages, versions = list(call.body["messages"]), dict[str, int]()
    by_text = [prompt for prompt in prompts if prompt.role is None]
    by_role = [prompt for prompt in prompts if prompt.role is not None and prompt.role == call.role]
    first = next((index for index, message in enumerate(messages) if _is_system(message)), None)
    for index, message in enumerate(messages):
        if _is_system(message) and not (by_role and index == first):
            messages[index] = _in_message(message, by_text, versions)
    for prompt in by_role:
        versions[prompt.name] = prompt.version
    if not versions:
        return Substitution(call, {})
    if by_role and first is None:
        messages.insert(0, {"role": "system", "content": by_role[-1].text})
    elif by_role and first is not None:
        messages[first] = {**messages[first], "content": by_role[-1].text}
    return Substitution(replace(call, body={**call.body, "messages": messages}), versions)


def _in_message(message: dict[str, Any], prompts: Sequence[PromptChoice], versions: dict[str, int]) -> dict[str, Any]:
    content = message.get("content")
    if isinstance(content, str):
        return {**message, "content": _in_text(content, prompts, versions)}
    if isinstance(content, list):
        return {**message, "content": [_in_part(part, prompts, versions) for part in content]}
    return message


def _in_part(part: Any, prompts: Sequence[PromptChoice], versions: dict[str, int]) -> Any:
    if not isinstance(part, dict) or not isinstance(part.get("text"), str):
        return part
    return {**part, "text": _in_text(part["text"], prompts, versions)}


def _in_text(text: str, prompts: Sequence[PromptChoice], versions: dict[str, int]) -> str:
    pieces, end = [], 0
    for place in _places(text, prompts):
        pieces += [text[end : place.start], place.prompt.text]
        end = place.end
        versions[place.prompt.name] = place.prompt.version
    return "".join([*pieces, text[end:]])


def _places(text: str, prompts: Sequence[PromptChoice]) -> Iterator[_Place]:
    """Find all places in order without overlaps: the first counts, and of two at one start the longer one."""
    # A version's own text is a place too: the agent asked for it by name, or repeats what an earlier call was given.
    sent = [(prompt.original, prompt) for prompt in prompts] + [(prompt.text, prompt) for prompt in prompts]
    for words, prompt in sent:
        if text.strip() == words.strip():
            yield _Place(0, len(text), prompt)
            return
    searches: list[Search] = [_find_marks(text, prompts), *(partial(_find_words, text, *pair) for pair in sent)]
    upcoming = [find(0) for find in searches]
    while places := [place for place in upcoming if place is not None]:
        place = min(places, key=lambda place: (place.start, -place.end))
        yield place
        upcoming = [
            find(place.end) if known is not None and known.start < place.end else known
            for find, known in zip(searches, upcoming, strict=True)
        ]


def _find_words(text: str, words: str, prompt: PromptChoice, start: int) -> _Place | None:
    at = text.find(words, start) if len(words) >= MIN_PART_CHARS else -1
    return _Place(at, at + len(words), prompt) if at >= 0 else None


def _find_marks(text: str, prompts: Sequence[PromptChoice]) -> Search:
    """Search a text for marked places, of which the outermost ones count."""
    by_name = {prompt.name: prompt for prompt in prompts}
    places: list[_Place] = []
    end = 0
    for opening, closing, is_nested in _pair_marks(list(MARK.finditer(text))):
        if opening.start() < end:
            continue
        if (prompt := by_name.get(opening[1])) is not None:
            places.append(_Place(opening.start(), closing.end(), prompt))
        if prompt is not None or not is_nested:
            end = closing.end()
    starts = [place.start for place in places]

    def find(start: int) -> _Place | None:
        index = bisect_left(starts, start)
        return places[index] if index < len(places) else None

    return find


def _pair_marks(marks: Sequence[re.Match[str]]) -> Iterator[tuple[re.Match[str], re.Match[str], bool]]:
    """Yield each opening mark, its closing one, and whether marks between them pair; in the order of the openings.

    An opening mark whose own closing one is missing goes with the next one, whatever is between them.
    """
    closings: dict[int, re.Match[str]] = {}
    open_marks: list[int] = []
    for index, mark in enumerate(marks):
        if mark[1] is not None:
            open_marks.append(index)
        elif open_marks:
            closings[open_marks.pop()] = mark
    following: re.Match[str] | None = None
    pairs = []
    for index in reversed(range(len(marks))):
        if marks[index][1] is None:
            following = marks[index]
        elif following is not None:
            pairs.append((marks[index], closings.get(index, following), index in closings))
    yield from reversed(pairs)


def _is_system(message: Any) -> bool:
    return isinstance(message, dict) and message.get("role") in SYSTEM_ROLES
