"""An agent that plays a game of TextArena for one player, turn by turn, in calls of the stock OpenAI client.

Its reward is what the game gives. Where the model is, and the key for it, come from the environment, as always with
this client.
"""

import os

from game import read_observation, start
from openai import OpenAI

client = OpenAI()
MAX_TOKENS = int(os.environ.get("MAX_TOKENS", "16"))
"""Longest move."""
MAX_CALLS = int(os.environ.get("MAX_CALLS", "20"))
"""Most moves, valid or not; a game that takes longer gives 0."""


def solve(task: dict) -> float:
    """Play one game ``{"game": ..., "seed": ..., "settings": {...}, "examples": [...]}``. Return its reward.

    ``examples`` are messages that come before the game's own: moves of another game.
    """
    game = start(task["game"], task["settings"], task["seed"])
    messages = [*task["examples"]]
    for _ in range(MAX_CALLS):
        messages.append({"role": "user", "content": read_observation(game)})
        answer = client.chat.completions.create(model="policy", messages=messages, max_tokens=MAX_TOKENS)
        move = (answer.choices[0].message.content or "").strip()
        messages.append({"role": "assistant", "content": move})
        is_over, _ = game.step(move)
        if is_over:
            rewards, _ = game.close()
            return float(rewards[0])
    return 0.0
