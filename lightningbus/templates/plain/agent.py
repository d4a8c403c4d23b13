"""An agent in plain Python: it asks the model once, and runs the calculator call in the answer.

OPENAI_BASE_URL and OPENAI_API_KEY come from the runner. Every call is recorded, token by token.
"""

import operator
import re

from openai import OpenAI

client = OpenAI()

OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
CALL = re.compile(r"<call>(\d{1,6})([-+*])(\d{1,6})</call>")


def solve(task: dict) -> float:
    """Answer one task, the ``input`` of its line in tasks.jsonl. Return its reward: 1 for the right result, else 0."""
    messages = [*task.get("examples", []), {"role": "user", "content": task["question"]}]
    reply = client.chat.completions.create(model="policy", messages=messages, max_tokens=16)
    call = CALL.search(reply.choices[0].message.content or "")
    if call is None:
        return 0.0
    left, sign, right = call.groups()
    calculate = OPERATORS[sign]
    return float(str(calculate(int(left), int(right))) == task["answer"])
