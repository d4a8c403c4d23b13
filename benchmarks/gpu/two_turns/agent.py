"""Two turns with a model of random weights; half of the rollouts are rewarded, by a hash of the answers."""

import zlib

from openai import OpenAI

client = OpenAI()


def solve(task: dict[str, str | int]) -> float:
    messages = [{"role": "user", "content": task["question"]}]
    for _ in range(2):
        completion = client.chat.completions.create(model="policy", messages=messages, max_tokens=task["max_tokens"])
        answer = completion.choices[0].message.content or ""
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "go on"}]
    return float(zlib.crc32(repr(messages).encode()) % 2)
