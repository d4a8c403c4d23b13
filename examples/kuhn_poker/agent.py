"""Two players of Kuhn poker, each a policy of its own with the opposite reward: plain Python and the OpenAI client.

A task may have a player's seat taken by the ``beginner``, a policy that stays as it was before training.
"""

from functools import partial

from game import play, prompt
from openai import OpenAI

client = OpenAI()


def solve(task: dict) -> dict:
    """Rewards of ``{"deal": "KQ", "beginner": "bob"}``: chips that each player wins; ``beginner`` may be left out.

    The rollout's own reward is Alice's, or that of the player who meets the beginner.
    """
    beginner = task.get("beginner", "")
    alice = play(task["deal"], partial(ask, task["deal"], beginner))
    return {"reward": -alice if beginner == "alice" else alice, "rewards": {"alice": alice, "bob": -alice}}


def ask(deal: str, beginner: str, player: str, history: str, moves: tuple[str, str]) -> str:
    """A player's move; an answer that is neither of the two counts as the second, which costs nothing more."""
    card = deal[player == "bob"]
    role = "beginner" if player == beginner else player
    messages = [{"role": "user", "content": prompt(card, history, moves)}]
    answer = client.chat.completions.create(model=f"policy:{role}", messages=messages, max_tokens=4)
    return moves[0] if (answer.choices[0].message.content or "").strip() == moves[0] else moves[1]
