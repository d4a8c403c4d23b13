"""A rollout's calls as a forest by exact token prefix, and why a conversation that went on is not one path in it. Pure.

Agents interleave sub-agents, ask several things at once, try again, edit and summarise their history; so the calls of a
rollout are no line. A call extends the call whose whole context (prompt and response) is the longest that its own
prompt begins with; a call that extends none begins a tree.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from lightningbus.learner.transitions.transitions import Transition
from lightningbus.schemas.spans import ModelCall
from lightningbus.schemas.trajectory.chat_messages import extends, same_message
from lightningbus.schemas.trajectory.compaction import Exchange, count_compactions, find_summaries
from lightningbus.schemas.trajectory.prefix_encoding import CorruptPromptError, expand_calls

Detokenize = Callable[[Sequence[int]], str]
"""Token ids to text."""
BreakReason = Literal["re-tokenised", "template", "edited history", "compacted"]


def find_parents(calls: Sequence[Transition]) -> list[int | None]:
    """Find the index of the earlier call that each call extends; None if it extends none.

    A call of an external endpoint has no tokens, and is extended by none.
    """
    return _find_parents([call.prompt_ids.tobytes() for call in calls], [call.response_ids.tobytes() for call in calls])


def _find_parents(prompts: Sequence[bytes], responses: Sequence[bytes]) -> list[int | None]:
    contexts = [prompt + response for prompt, response in zip(prompts, responses, strict=True)]
    parents: list[int | None] = []
    for index, prompt in enumerate(prompts):
        fitting = [earlier for earlier in range(index) if contexts[earlier] and prompt.startswith(contexts[earlier])]
        parents.append(max(fitting, key=lambda earlier: len(contexts[earlier]), default=None))
    return parents


def find_prefix_breaks(
    calls: Sequence[ModelCall], parents: Sequence[int | None], detokenize: Detokenize
) -> dict[int, BreakReason]:
    """Explain by index why a call that continues a conversation does not extend its tokens; others have no entry.

    ``calls`` are expanded. ``re-tokenised``: history and text are unchanged, but the text became other tokens.
    ``template``: the messages are unchanged, but the chat template renders them differently once they are history.
    ``compacted``: the messages begin with a summary that the model wrote. ``edited history``: they begin as an earlier
    call's did and then differ.
    """
    branching = find_branching(parents)
    if not branching:
        return {}
    exchanges = [Exchange(_messages(call), _parsed(call.response)) for call in calls]
    breaks: dict[int, BreakReason] = dict.fromkeys(find_summaries(exchanges, branching), "compacted")
    for index, exchange in enumerate(exchanges):
        if index not in branching or len(exchange.messages) < 2 or index in breaks:
            continue
        parent = parents[index]
        for earlier in reversed(range(0 if parent is None else parent + 1, index)):
            before = exchanges[earlier]
            if before.messages and extends(exchange.messages, [*before.messages, before.answer]):
                text = detokenize(_ids(calls[earlier].prompt_ids) + _ids(calls[earlier].response_ids))
                unchanged = detokenize(_ids(calls[index].prompt_ids)).startswith(text)
                breaks[index] = "re-tokenised" if unchanged else "template"
                break
            if (
                parent is None
                and _has_answer(exchange.messages)
                and calls[earlier].role == calls[index].role
                and exchange.messages != before.messages
                and _shares_a_message(exchange.messages, before.messages)
            ):
                breaks[index] = "edited history"  # unless an even earlier call is gone on with
        # A later sample of the same prompt, or a conversation of its own, is no break.
    return breaks


def number_windows(calls: Sequence[ModelCall]) -> list[int]:
    """Return the number of each call's context window: how often its agent had compacted its context before it.

    ``calls`` are all calls of a rollout as they were recorded. Calls that cannot be restored are in one window.
    """
    try:
        expanded = expand_calls(calls)
    except CorruptPromptError:
        return [0] * len(calls)
    parents = _find_parents([call.prompt_ids for call in expanded], [call.response_ids for call in expanded])
    if not (branching := find_branching(parents)):
        return [0] * len(calls)
    exchanges = [Exchange(_messages(call), _parsed(call.response)) for call in expanded]
    return count_compactions(len(calls), find_summaries(exchanges, branching))


def find_branching(parents: Sequence[int | None]) -> set[int]:
    """Find the calls that extend no call though others did before, or a call that another extends already."""
    seen: set[int | None] = set()
    branching = set()
    for index, parent in enumerate(parents):
        if parent in seen:
            branching.add(index)
        seen.add(parent)
    return branching


def _has_answer(messages: Sequence[Any]) -> bool:
    """Return whether a conversation has a history: one without answers of the model begins."""
    return any(isinstance(message, dict) and message.get("role") == "assistant" for message in messages)


def _shares_a_message(messages: Sequence[Any], before: Sequence[Any]) -> bool:
    """Return whether both conversations share more than a system prompt."""
    shared = 0
    for message, other in zip(messages, before, strict=False):
        if not same_message(message, other):
            break
        shared += 1
    prompted = [
        message for message in messages[:shared] if not (isinstance(message, dict) and message.get("role") == "system")
    ]
    return bool(prompted)


def _messages(call: ModelCall) -> list[Any]:
    request = _parsed(call.request)
    messages = request.get("messages") if isinstance(request, dict) else None
    return messages if isinstance(messages, list) else []


def _parsed(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return None  # cut to the length that is kept, or none at all


def _ids(raw: bytes) -> list[int]:
    return memoryview(raw).cast("I").tolist()
