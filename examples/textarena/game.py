"""A game of TextArena for one player."""

from typing import Any

import textarena

RAW = "-raw"
"""End of the names of games that say each thing once, instead of all of it at each turn."""


def start(name: str, settings: dict[str, Any], seed: int) -> Any:
    """Start a game; the same seed gives the same game."""
    game = textarena.make(f"{name}{RAW}", **settings)
    game.reset(num_players=1, seed=seed)
    if not isinstance(game.state, textarena.SinglePlayerState):
        raise ValueError("it is for several players")
    return game


def read_observation(game: Any) -> str:
    """Return the game's text since the last move."""
    _, observations = game.get_observation()
    return "\n".join(text for player, text, _ in observations if player == textarena.GAME_ID)
