"""An agent of two turns, each with a few tokens."""

from openai import OpenAI

client = OpenAI()


def ask(messages: list, max_tokens: int = 16, **more: object) -> str:
    answer = client.chat.completions.create(model="policy", messages=messages, max_tokens=max_tokens, **more)
    return answer.choices[0].message.content or ""


def solve(task: dict) -> float:
    """Ask a question that fills a block of the prefix cache and is the same for each number, then go on."""
    number = task["number"]
    messages = [{"role": "user", "content": " ".join(f"what is {number} {sign} {number} ?" for sign in "+-*+-*")}]
    text = ask(messages)
    ask([*messages, {"role": "assistant", "content": text}, {"role": "user", "content": f"result {2 * number}"}])
    return 1.0


def solve_at_length(task: dict) -> float:
    """One long answer: many tokens for a recomputation."""
    messages = [{"role": "user", "content": f"what is {task['number']} ?"}]
    ask(messages, max_tokens=100, extra_body={"ignore_eos": True})
    return 1.0
