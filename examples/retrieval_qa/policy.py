"""A scripted policy: what a good model would say to the agent's questions, or one with the flaws it is told to have.

It knows a question's steps from its record's ``question_decomposition``, and goes on from what the searches gave: a
step whose paragraph was not among it is searched for again, and after that given up.
"""

import json
import random
from collections.abc import Iterable, Mapping

from data import passage

FLAWS = ("verbatim", "stops", "untagged", "malformed", "unknown_tool")
"""Searches the whole question first; answers with what the first step gave; forgets the form; calls what is no call."""
UNKNOWN = "unknown"


class Policy:
    """Answers the questions of some records; ``flaws`` says how often it goes wrong in which way where it can."""

    def __init__(self, records: Iterable[dict], flaws: Mapping[str, float] | None = None, seed: int = 0) -> None:
        self._records = {record["question"].strip(): record for record in records}
        self._flaws = dict(flaws or {})
        self._rng = random.Random(seed)
        if unknown := self._flaws.keys() - set(FLAWS):
            raise ValueError(f"no such flaw: {', '.join(sorted(unknown))}")

    def answer(self, messages: list[dict]) -> dict:
        """The assistant's message that comes next, with text or with a call of the tool."""
        record = self._records[next(message["content"] for message in messages if message["role"] == "user")]
        seen = "\n".join(message["content"] for message in messages if message["role"] == "tool").split("\n")
        requests = [call["function"]["arguments"] for message in messages for call in message.get("tool_calls") or ()]
        known: list[str] = []
        for step, supporting in zip(record["question_decomposition"], self.paragraphs(record["question"]), strict=True):
            if supporting not in seen:
                break
            known.append(step["answer"])
        else:
            return self._say(known[-1])
        if known and self._errs("stops"):
            return self._say(known[-1])
        query = _filled(step["question"], known)
        if not requests and self._errs("verbatim"):
            query = record["question"].strip()
        if json.dumps({"query": query}, ensure_ascii=False) in requests:
            return self._say(UNKNOWN)
        return self._call(query, len(requests))

    def paragraphs(self, question: str) -> list[str]:
        """What has to be found for a question, step by step."""
        record = self._records[question.strip()]
        places = [step["paragraph_support_idx"] for step in record["question_decomposition"]]
        return [passage(record["paragraphs"][at]) for at in places]

    def _errs(self, flaw: str) -> bool:
        return self._rng.random() < self._flaws.get(flaw, 0.0)

    def _say(self, text: str) -> dict:
        answer = text if self._errs("untagged") else f"<answer> {text} </answer>"
        return {"role": "assistant", "content": answer}

    def _call(self, query: str, number: int) -> dict:
        name = "find" if self._errs("unknown_tool") else "search"
        arguments = json.dumps({"query": query}, ensure_ascii=False)
        function = {"name": name, "arguments": arguments[:-1] if self._errs("malformed") else arguments}
        call = {"id": f"call-{number}", "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}


def _filled(question: str, known: list[str]) -> str:
    """A step's question, with what earlier steps gave."""
    for number, answer in reversed(list(enumerate(known, 1))):
        question = question.replace(f"#{number}", answer)
    return question
