"""Two models in turn, with opposed rewards that follow from their answers alone; no two rollouts ask the same."""

from itertools import count
from zlib import crc32

from openai import OpenAI

client = OpenAI(max_retries=0, timeout=600)
played = count()


def ask(role, text):
    messages = [{"role": "user", "content": text}]
    answer = client.chat.completions.create(model=f"policy:{role}", messages=messages, max_tokens=12)
    return answer.choices[0].message.content


def solve(task):
    question = f"{task['question']} {next(played)}"
    opening = ask("alice", question)
    reply = ask("bob", f"{question} {opening}")
    last = ask("alice", f"{question} {opening} {reply}")
    chips = crc32(f"{opening} {reply} {last}".encode()) % 5 - 2
    return {"reward": chips, "rewards": {"alice": chips, "bob": -chips}}
