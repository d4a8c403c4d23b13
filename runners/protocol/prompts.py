"""The version of a prompt that a call is to have, put where the agent put its own text. Pure.

A prompt is found in one of three ways: by its role, it is the whole system message of that role's calls; by marks,
``<!-- prompt:NAME -->…<!-- /prompt -->``; or by the exact text of its version 0, as the whole system message or a part.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from runners.protocol.request import ChatRequest

SYSTEM_ROLES = ("system", "developer")
MARKED = re.compile(r"<!-- prompt:([A-Za-z0-9_-]{1,64}) -->(.*?)<!-- /prompt -->", re.S)
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
    versions: Mapping[str, int]
    """By prompt: the version that is in the request."""


def substitute(call: ChatRequest, prompts: Sequence[PromptChoice]) -> Substitution:
    """Put the chosen versions into a call's system messages; what holds no prompt stays as it is."""
    if not prompts or not call.chat:
        return Substitution(call, {})
    versions: dict[str, int] = {}
    messages = [_in_message(message, prompts, versions) for message in call.body["messages"]]
    for prompt in prompts:
        if prompt.role is not None and prompt.role == call.role:
            messages = _as_system_message(messages, prompt.text)
            versions[prompt.name] = prompt.version
    if not versions:
        return Substitution(call, {})
    return Substitution(replace(call, body={**call.body, "messages": messages}), versions)


def _in_message(message: Any, prompts: Sequence[PromptChoice], versions: dict[str, int]) -> Any:
    if not _is_system(message):
        return message
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
    by_name = {prompt.name: prompt for prompt in prompts if prompt.role is None}

    def put(match: re.Match[str]) -> str:
        prompt = by_name.get(match[1])
        if prompt is None:
            return match[0]
        versions[prompt.name] = prompt.version
        return prompt.text

    text = MARKED.sub(put, text)
    for prompt in by_name.values():
        if prompt.name in versions:
            continue
        # The version itself is found too: the agent asked for it by name, or repeats what an earlier call was given.
        # One text may be a part of the other: the longer one is looked for first.
        for sent in sorted((prompt.original, prompt.text), key=len, reverse=True):
            if text.strip() == sent.strip():
                text = prompt.text
            elif len(sent) >= MIN_PART_CHARS and sent in text:
                text = text.replace(sent, prompt.text, 1)
            else:
                continue
            versions[prompt.name] = prompt.version
            break
    return text


def _as_system_message(messages: list[Any], text: str) -> list[Any]:
    """The first system message says this, and none other is left out; one is put in front where there is none."""
    index = next((index for index, message in enumerate(messages) if _is_system(message)), None)
    if index is None:
        return [{"role": "system", "content": text}, *messages]
    return [*messages[:index], {**messages[index], "content": text}, *messages[index + 1 :]]


def _is_system(message: Any) -> bool:
    return isinstance(message, dict) and message.get("role") in SYSTEM_ROLES
