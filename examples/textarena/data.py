"""Games of TextArena as task lines: ``python data.py GuessTheNumber-v0 --settings '{"max_turns": 6}' --out DIR``.

Every game for one player that needs no download works by its name; ``--list`` names them. Settings are the game's own.
Each task is a seed, and no seed is both held out and trained on. ``--example-moves`` are played in a game of a seed of
its own, which each conversation begins with.
"""

import argparse
import json
import re
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from itertools import count, islice
from pathlib import Path
from typing import Any

from game import RAW, read_observation, start
from textarena.envs.registration import ENV_REGISTRY

NETWORK_EVENTS = {"socket.getaddrinfo", "socket.gethostbyname", "socket.connect"}
EXAMPLE_SEED = 0


class NetworkNeededError(OSError):
    """A game reached for the network."""


def refuse_network(event: str, arguments: object) -> None:
    """An audit hook."""
    if event in NETWORK_EVENTS:
        raise NetworkNeededError("it reached for the network")


def find_obstacle(name: str, settings: dict[str, Any]) -> str:
    """A sentence about what keeps one player from playing a game without a download; empty: nothing does."""
    try:
        with redirect_stdout(sys.stderr):  # games and NLTK print what they do
            game = start(name, settings, EXAMPLE_SEED)
            read_observation(game)
            game.step("[1]")
    except Exception as error:  # games raise anything
        needs_download = type(error) is LookupError or isinstance(error, NetworkNeededError)  # the first is NLTK's
        reason = "needs a download" if needs_download else "cannot be played by one player here"
        return f"{name} {reason}: {read_reason(error)}"
    return ""


def read_reason(error: Exception) -> str:
    """The first line of an error's text that has letters in it, without colours."""
    lines = re.sub(r"\x1b\[\d+m", "", str(error)).splitlines()
    return next((line.strip() for line in lines if re.search("[a-z]", line)), type(error).__name__)


def play_example(name: str, settings: dict[str, Any], moves: Sequence[str]) -> list[dict[str, str]]:
    """Messages of a game with given moves."""
    game = start(name, settings, EXAMPLE_SEED)
    messages = []
    for move in moves:
        messages += [{"role": "user", "content": read_observation(game)}, {"role": "assistant", "content": move}]
        game.step(move)
    return messages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("game", nargs="?", help="name of a game, such as GuessTheNumber-v0")
    parser.add_argument("--list", action="store_true", help="name the games that work, and end")
    parser.add_argument("--settings", type=json.loads, default={}, help="the game's own settings, as JSON")
    parser.add_argument("--example-moves", type=json.loads, default=[], help="moves to show, as a JSON list")
    parser.add_argument("--train", type=int, default=512)
    parser.add_argument("--heldout", type=int, default=64)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    sys.addaudithook(refuse_network)
    names = sorted(name.removesuffix(RAW) for name in ENV_REGISTRY if name.endswith(RAW))
    if options.list:
        print("\n".join(name for name in names if not find_obstacle(name, {})))
        return
    if options.game not in names or options.out is None:
        parser.error("name a game and --out; --list names the games")
    if obstacle := find_obstacle(options.game, options.settings):
        raise SystemExit(obstacle)
    examples = play_example(options.game, options.settings, options.example_moves)
    options.out.mkdir(parents=True, exist_ok=True)
    seeds = count(EXAMPLE_SEED + 1)
    for file, num_tasks in (("heldout", options.heldout), ("train", options.train)):
        with (options.out / f"{file}.jsonl").open("w", encoding="utf-8") as out:
            for seed in islice(seeds, num_tasks):
                task = {"game": options.game, "seed": seed, "settings": options.settings, "examples": examples}
                line = {"id": f"{options.game}-{seed}", "input": task, "labels": {"game": options.game}}
                out.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
