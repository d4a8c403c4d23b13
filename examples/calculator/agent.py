"""A calculator agent: plain Python and the stock OpenAI client, nothing else.

It asks the model a question, runs the tool call it finds in the answer, shows the model the result, and reads
the final answer. Where the model is, and the key for it, come from the environment, as always with this client.
"""

import ast
import operator
import re

from openai import OpenAI

client = OpenAI()

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}
CALL = re.compile(r"<call>([^<]{1,40})</call>")
NUMBER = re.compile(r"-?\d+")


def calculate(expression: str) -> int:
    """Value of ``a + b``, ``a - b`` or ``a * b`` over whole numbers; ValueError for anything else."""
    try:
        node = ast.parse(expression, mode="eval").body
    except SyntaxError:
        raise ValueError(expression) from None
    if not (isinstance(node, ast.BinOp) and type(node.op) in OPERATORS):
        raise ValueError(expression)
    sides = [side.value if isinstance(side, ast.Constant) else None for side in (node.left, node.right)]
    if not all(type(side) is int and side < 10**6 for side in sides):
        raise ValueError(expression)
    return OPERATORS[type(node.op)](*sides)


def ask(messages: list) -> str:
    answer = client.chat.completions.create(model="policy", messages=messages, max_tokens=12)
    return answer.choices[0].message.content or ""


def squeeze(text: str) -> str:
    """The small tokenizer writes numbers digit by digit: ``3 7`` is 37."""
    return re.sub(r"\s+", "", text)


def use_tool(said: str) -> str:
    call = CALL.search(squeeze(said))
    if call is None:
        return "so the answer is ?"
    try:
        return f"result {calculate(call[1])}"
    except ValueError:
        return "result error"


def solve(task: dict) -> float:
    """Reward of one problem ``{"question": ..., "answer": ...}``: 1 for the right answer, else 0."""
    messages = [{"role": "user", "content": task["question"]}]
    said = ask(messages)
    messages += [{"role": "assistant", "content": said}, {"role": "user", "content": use_tool(said)}]
    final = NUMBER.search(squeeze(ask(messages)))
    return float(final is not None and final[0] == str(task["answer"]))
