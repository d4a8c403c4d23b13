"""An agent for a system full of faults: two model calls, one of them streamed, by the stock client without retries."""

import random
import time

from openai import OpenAI

client = OpenAI(max_retries=0, timeout=600)


def solve(task):
    messages = [{"role": "user", "content": task["question"]}]
    first = client.chat.completions.create(model="policy", messages=messages, max_tokens=12)
    messages.append({"role": "assistant", "content": first.choices[0].message.content})
    messages.append({"role": "user", "content": "go on"})
    answer = client.chat.completions.create(model="policy", messages=messages, max_tokens=12, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in answer if chunk.choices)
    assert text, "an answer is never empty"
    return {"reward": random.random(), "text": text}


def solve_with_stragglers(task):
    """One rollout in ten takes longer than many training steps."""
    if random.random() < 0.1:
        time.sleep(4)
    return solve(task)
