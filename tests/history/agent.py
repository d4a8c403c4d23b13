"""An agent of one to three model calls, each after the answer before; one in twelve fails."""

import random

from openai import OpenAI

client = OpenAI(max_retries=0, timeout=600)


def solve(task):
    messages = [{"role": "user", "content": task["question"]}]
    for _ in range(random.randint(1, 3)):
        answer = client.chat.completions.create(
            model="policy", messages=messages, max_tokens=12, stream=random.random() < 0.5
        )
        if not hasattr(answer, "choices"):
            text = "".join(chunk.choices[0].delta.content or "" for chunk in answer if chunk.choices)
        else:
            text = answer.choices[0].message.content
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "go on"}]
    if random.random() < 1 / 12:
        raise ValueError("the agent gives up")
    return {"reward": random.random(), "text": text}
