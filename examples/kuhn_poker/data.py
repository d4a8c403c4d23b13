"""Deals as task lines, and hands of a beginner to learn from: ``python data.py --out DIR``.

There is nothing to hold out: the game has six deals. ``heldout.jsonl`` seats each player opposite the beginner instead.
In training, each deal is played three times: Alice against Bob, and each of them against the beginner.
"""

import argparse
import json
import random
from pathlib import Path

from game import DEALS, play, prompt


def training_tasks() -> list[dict]:
    """Each deal between the two players, and with the beginner in either seat."""
    seats = [(deal, beginner) for beginner in ("", "alice", "bob") for deal in DEALS]
    return [
        {
            "id": "-".join(filter(None, (deal, beginner))),
            "input": {"deal": deal} | ({"beginner": beginner} if beginner else {}),
        }
        for deal, beginner in seats
    ]


def evaluation_tasks(hands: int) -> list[dict]:
    """So many hands of each deal for Alice, and for Bob; the other seat is the beginner's."""
    seats = [(deal, player, hand) for hand in range(hands) for deal in DEALS for player in ("alice", "bob")]
    return [
        {
            "id": f"{player}-{deal}-{hand}",
            "input": {"deal": deal, "beginner": "bob" if player == "alice" else "alice"},
            "labels": {"player": player},
        }
        for deal, player, hand in seats
    ]


def demonstrations(hands: int, rng: random.Random) -> list[dict]:
    """Calls of a beginner, who makes every move by chance."""
    lines: list[dict] = []
    for _ in range(hands):
        deal = rng.choice(DEALS)

        def ask(player: str, history: str, moves: tuple[str, str], deal: str = deal) -> str:
            text, move = prompt(deal[player == "bob"], history, moves), rng.choice(moves)
            lines.append({"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": move}]})
            return move

        play(deal, ask)
    return lines


def write(path: Path, lines: list[dict]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--hands", type=int, default=40, help="of each deal and player, in an evaluation")
    parser.add_argument("--demonstrations", type=int, default=1500, help="hands of the beginner")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    write(options.out / "train.jsonl", training_tasks())
    write(options.out / "heldout.jsonl", evaluation_tasks(options.hands))
    write(options.out / "beginner.jsonl", demonstrations(options.demonstrations, random.Random(options.seed)))


if __name__ == "__main__":
    main()
