"""A math agent with a calculator: plain Python and the stock OpenAI client.

Its system prompt lacks a rule. What it says of its failures is what a reflecting model reads to find it.
"""

import json
import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "math_tools"))

from arithmetic import calculate, score
from openai import OpenAI

ROUNDS = 4
"""Most model calls of one problem."""
PARAMETERS = {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}
TOOLS = [{"type": "function", "function": {"name": "calculator", "parameters": PARAMETERS}}]
SYSTEM = (Path(__file__).resolve().parent / os.environ.get("SYSTEM_FILE", "system.txt")).read_text()

client = OpenAI()


def solve(task: dict) -> dict:
    """Reward of ``{"question", "result", "steps"}``: 1 for the right answer, else 0; ``why`` says what was wrong."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": task["question"]}]
    num_steps, text = 0, ""
    for _ in range(ROUNDS):
        answer = client.chat.completions.create(model="policy", messages=messages, tools=TOOLS, max_tokens=48)
        message = answer.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        text = message.content or ""
        if not message.tool_calls:
            break
        for call in message.tool_calls:
            num_steps += 1
            messages.append({"role": "tool", "tool_call_id": call.id, "content": use_tool(call.function.arguments)})
    reward = score(text, task["result"])
    return {"reward": reward, "why": "" if reward else explain(task, text, num_steps)}


def use_tool(arguments: str) -> str:
    """What the calculator says, or its error."""
    try:
        return calculate(json.loads(arguments)["expression"])
    except (ValueError, LookupError, TypeError) as error:
        return str(error)


def explain(task: dict, text: str, num_steps: int) -> str:
    """Why an answer is wrong, as far as one can see."""
    if num_steps < task["steps"]:
        return f"It answered after {num_steps} of {task['steps']} steps."
    return f"The result is {task['result']}, and not what it said: {text[:60]!r}"
