"""Kuhn poker: three cards, two players, one bet. After H. W. Kuhn, "A simplified two-person poker" (1950).

Both players put in a chip and get one of J, Q, K. Alice bets a chip or checks. After a bet Bob calls or folds. After a
check Bob bets or checks, and if he bets, Alice calls or folds. The higher card takes the pot, unless somebody folded.
"""

from collections.abc import Callable
from itertools import permutations

CARDS = "JQK"
DEALS = ["".join(deal) for deal in permutations(CARDS, 2)]
"""Alice's card, then Bob's."""
OPENING = ("bet", "check")
ANSWER = ("call", "fold")
VALUE = -1 / 18
"""Chips that Alice gets on average where both play as well as can be."""

Ask = Callable[[str, str, tuple[str, str]], str]
"""Player, what has happened so far, and the two moves there are, in; the move out."""


def play(deal: str, ask: Ask) -> int:
    """One hand; returns the chips that Alice wins from Bob: -2, -1, 1 or 2."""
    showdown = 1 if CARDS.index(deal[0]) > CARDS.index(deal[1]) else -1
    if ask("alice", "", OPENING) == "bet":
        return 2 * showdown if ask("bob", "Alice bets.", ANSWER) == "call" else 1
    if ask("bob", "Alice checks.", OPENING) == "check":
        return showdown
    return 2 * showdown if ask("alice", "You check. Bob bets.", ANSWER) == "call" else -1


def prompt(card: str, history: str, moves: tuple[str, str]) -> str:
    """What a player is asked."""
    return " ".join(filter(None, (f"Your card is {card}.", history, f"{moves[0]} or {moves[1]}?")))
