"""Agents with a system prompt of their own, or one that they ask for by name."""

import json
import os
import time
import urllib.request
from typing import Any

SYSTEM = "You are an agent that asks one thing."


def call(path: str, body: dict[str, Any] | None = None) -> Any:
    request = urllib.request.Request(
        f"{os.environ['OPENAI_BASE_URL']}/{path}",
        json.dumps(body).encode() if body is not None else None,
        {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as response:
        return json.load(response)


def ask(system: str) -> float:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": "2?"}]
    call("chat/completions", {"model": "policy", "messages": messages})
    return 1.0


def asks(task: Any) -> float:
    return ask(SYSTEM)


def asks_for_it(task: Any) -> float:
    return ask(call("prompts/solver")["text"])


NUMBERS = "You are given a number, and say which number to note down."


def notes(task: Any) -> dict[str, Any]:
    """Right is the number without its sign, rounded up; the prompt says neither. It may hang."""
    while task.get("hangs"):
        time.sleep(1)
    messages = [{"role": "system", "content": NUMBERS}, {"role": "user", "content": task["number"]}]
    answer = call("chat/completions", {"model": "policy", "messages": messages})["choices"][0]["message"]["content"]
    answer_text = answer.strip()
    if answer_text == task["right"]:
        return {"reward": 1.0}
    why = "it has a sign" if answer_text.startswith("-") else "it is not rounded up"
    return {"reward": 0.0, "why": f"{answer_text} is wrong: {why}"}


ANSWERS: dict[str, dict[str, Any]] = {}
"""Rewards that a process has given, by the number of their task."""


def cached_notes(task: Any) -> dict[str, Any]:
    """Ask as `notes` does, once for each number, as a client with a cache does."""
    number = task["number"]
    if number not in ANSWERS:
        ANSWERS[number] = notes(task)
    return ANSWERS[number]
