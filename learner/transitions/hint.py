"""A hint as a message of the user, put into recorded prompts just before the answer begins. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from lightningbus.learner.transitions.chats import ChatTemplate
from lightningbus.learner.transitions.transitions import Ids, Transition

QUESTION = {"role": "user", "content": "?"}
"""A message before the hint, as a prompt has one."""


@dataclass(frozen=True, slots=True, eq=False)
class Hint:
    """Tokens of a message, and those at which a model's chat template begins an answer."""

    message_ids: Ids
    begin_ids: Ids

    @classmethod
    def render(cls, text: str, template: ChatTemplate) -> Self:
        """Render a hint by a model's template; raise ValueError if that renders no such message by itself."""
        before, begun, hinted = (
            template.render([QUESTION], None, False),
            template.render([QUESTION], None, True),
            template.render([QUESTION, {"role": "user", "content": text}], None, True),
        )
        begin = begun[len(before) :]
        message = hinted[len(before) : len(hinted) - len(begin)]
        context_ids, message_ids, begin_ids = (template.encode(part) for part in (before, message, begin))
        is_apart = before + message + begin == hinted
        is_apart &= [*context_ids, *message_ids, *begin_ids] == template.encode(hinted)
        if not begin or text.strip() not in message or not is_apart:
            raise ValueError(
                "teacher.hint: the model's chat template renders no further message of the user between a prompt and "
                "its answer: leave the hint out"
            )
        return cls(np.array(message_ids, np.int64), np.array(begin_ids, np.int64))

    def insert(self, prompt_ids: Ids) -> Ids | None:
        """Return a prompt with the hint before its answer; None for one in which no answer begins."""
        size = len(self.begin_ids)
        if len(prompt_ids) < size:
            return None
        is_begin = (np.lib.stride_tricks.sliding_window_view(prompt_ids, size) == self.begin_ids).all(-1)
        if not is_begin.any():
            return None
        place = int(np.flatnonzero(is_begin)[-1])
        hinted: Ids = np.concatenate([prompt_ids[:place], self.message_ids, prompt_ids[place:]])
        return hinted


def add_hint(calls: Sequence[Transition], hint: Hint) -> list[Transition | None]:
    """Return copies of calls whose prompts have the hint; None for a call that is no chat."""
    prompts = [hint.insert(call.prompt_ids) for call in calls]
    return [
        None if prompt is None else replace(call, prompt_ids=prompt)
        for call, prompt in zip(calls, prompts, strict=True)
    ]
