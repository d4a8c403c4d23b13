"""A scripted policy for Calc-X problems: what a good model would answer, and seeded flaws of a poor one.

It knows a problem's steps from its record's ``chain``, and goes on from what the tool said: a step that failed is
taken again, and after a wrong one it ends with a wrong answer, as a model would.
"""

import html
import json
import random
import re
from collections.abc import Iterable, Mapping

STEP = re.compile(r'<gadget id="calculator">(.*?)</gadget>\s*<output>(.*?)</output>', re.DOTALL)
RESULT = re.compile(r"-?\d+(\.\d+)?")
SIGN = re.compile(r"(?<=\d) ?([-+*/]) ?(?=\d)")
Step = tuple[str, str]
"""An expression and what it comes to."""
FLAWS = ("guess", "wrong_sign", "broken", "malformed", "stops", "no_form")


class Policy:
    """Answers the problems of some records; ``flaws`` says how often an answer goes wrong in which way."""

    def __init__(self, records: Iterable[dict], flaws: Mapping[str, float] | None = None, seed: int = 0) -> None:
        self._steps = {record["question"]: _steps(record) for record in records}
        self._flaws = dict(flaws or {})
        self._rng = random.Random(seed)
        if unknown := self._flaws.keys() - set(FLAWS):
            raise ValueError(f"no such flaw: {', '.join(sorted(unknown))}")

    def answer(self, messages: list[dict]) -> dict:
        """The assistant's message that comes next, with text or with a tool call."""
        steps = self._steps_of(messages)
        texts = [_text(message) for message in messages if message["role"] == "tool"]
        results = [result for result in texts if RESULT.fullmatch(result)]
        flaw = self._flaw()
        if flaw == "guess":
            return _say(f"answer: {self._rng.randint(10, 99)}")
        if len(results) < len(steps) and not (flaw == "stops" and results):
            expression = _going_on(steps, results)
            return _call(len(texts), self._arguments(expression, flaw))
        last = results[-1] if results else "?"
        return _say(last if flaw == "no_form" else f"answer: {last}")

    def _steps_of(self, messages: list[dict]) -> list[Step]:
        text = "\n".join(_text(message) for message in messages if message["role"] in ("system", "user"))
        results = [question for question in self._steps if question in text]
        if not results:
            raise LookupError(f"no problem of mine: {text[:200]!r}")
        return self._steps[max(results, key=len)]

    def _flaw(self) -> str | None:
        rest = self._rng.random()
        for name, rate in self._flaws.items():
            rest -= rate
            if rest < 0:
                return name
        return None

    def _arguments(self, expression: str, flaw: str | None) -> str:
        if flaw == "malformed":
            return f'{{"expression": {expression}'
        if flaw == "broken":
            expression = f"{expression} *"
        if flaw == "wrong_sign":
            expression = SIGN.sub(lambda match: f" {self._other(match[1])} ", expression)
        return json.dumps({"expression": expression})

    def _other(self, sign: str) -> str:
        return self._rng.choice([other for other in "+-*" if other != sign])


def _steps(record: dict) -> list[Step]:
    matches = STEP.findall(record["chain"])
    return [(html.unescape(step).strip(), output.split(" = ")[0].strip()) for step, output in matches]


def _going_on(steps: list[Step], results: list[str]) -> str:
    """The next step's expression, with what came out in place of what should have."""
    expression = steps[len(results)][0]
    for (_, wanted), built in zip(steps, results, strict=False):
        expression = re.sub(rf"(?<![\d.]){re.escape(wanted)}(?![\d.])", built, expression)
    return expression


def _say(text: str) -> dict:
    return {"role": "assistant", "content": text}


def _call(number: int, arguments: str) -> dict:
    function = {"name": "calculator", "arguments": arguments}
    call = {"id": f"call-{number}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def _text(message: dict) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
