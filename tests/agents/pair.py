"""An agent of two roles, each answered by a model of its own: one writes, the other checks."""

import random

from openai import OpenAI

client = OpenAI(max_retries=0, timeout=600)


def solve(task):
    messages = [{"role": "user", "content": task["question"]}]
    first = client.chat.completions.create(model="policy", messages=messages, max_tokens=12)
    text = first.choices[0].message.content
    question = [{"role": "user", "content": f"is this right? {text}"}]
    answer = client.chat.completions.create(model="checker", messages=question, max_tokens=12)
    assert text and answer.choices[0].message.content, "an answer is never empty"
    return {"reward": random.random(), "text": text}
