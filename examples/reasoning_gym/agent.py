"""An agent that answers a task of Reasoning Gym, in one call of the stock OpenAI client.

Its reward is what Reasoning Gym gives for the answer, or 1 for a right answer and 0 for any other. Where the model is,
and the key for it, come from the environment, as always with this client.
"""

import os

import reasoning_gym
from openai import OpenAI

client = OpenAI()
MAX_TOKENS = int(os.environ.get("MAX_TOKENS", "16"))
"""Longest answer."""
RIGHT_ONLY = os.environ.get("RIGHT_ONLY", "0") == "1"
"""Whether an answer that is partly right has the reward 0."""


def solve(task: dict) -> float:
    """Answer one task ``{"entry": ..., "examples": [...]}``. Return its reward, from 0 to 1.

    ``entry`` is Reasoning Gym's own, and ``examples`` are messages that come before its question.
    """
    entry = task["entry"]
    messages = [*task["examples"], {"role": "user", "content": entry["question"]}]
    answer = client.chat.completions.create(model="policy", messages=messages, max_tokens=MAX_TOKENS)
    text = (answer.choices[0].message.content or "").strip()
    score = float(reasoning_gym.get_score_answer_fn(entry["metadata"]["source_dataset"])(text, entry))
    return float(score == 1) if RIGHT_ONLY else score
