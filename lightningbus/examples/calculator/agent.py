"""A calculator agent: plain Python and the stock OpenAI client, nothing else.

It asks the model a question, runs the tool call it finds in the answer, shows the model the result, and reads
the final answer. Where the model is, and the key for it, come from the environment, as always with this client.
"""

import operator
import re

from openai import OpenAI

client = OpenAI()

OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
CALL = re.compile(r"<call>(\d{1,6})([-+*])(\d{1,6})</call>")
NUMBER = re.compile(r"-?\d+")


def ask(messages: list) -> str:
    answer = client.chat.completions.create(model="policy", messages=messages, max_tokens=12)
    return answer.choices[0].message.content or ""


def use_tool(text: str) -> str:
    call = CALL.search(text)
    if call is None:
        return "so the answer is ?"
    left, sign, right = call.groups()
    return f"result {OPERATORS[sign](int(left), int(right))}"


def solve(task: dict) -> float:
    """Answer one task ``{"question": ..., "answer": ...}``. Return its reward: 1 for the right answer, else 0."""
    messages = [{"role": "user", "content": task["question"]}]
    text = ask(messages)
    messages += [{"role": "assistant", "content": text}, {"role": "user", "content": use_tool(text)}]
    final = NUMBER.search(ask(messages))
    return float(final is not None and final[0] == str(task["answer"]))
