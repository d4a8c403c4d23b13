"""An agent of two turns, each with a few tokens."""

from openai import OpenAI

client = OpenAI()


def ask(messages: list) -> str:
    answer = client.chat.completions.create(model="policy", messages=messages, max_tokens=16)
    return answer.choices[0].message.content or ""


def solve(task: dict) -> float:
    """Ask a question that fills a block of the prefix cache and is the same for each number, then go on."""
    number = task["number"]
    messages = [{"role": "user", "content": " ".join(f"what is {number} {sign} {number} ?" for sign in "+-*+-*")}]
    text = ask(messages)
    ask([*messages, {"role": "assistant", "content": text}, {"role": "user", "content": f"result {2 * number}"}])
    return 1.0
