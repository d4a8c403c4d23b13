"""Kuhn poker: the rules, the agent's two rewards, and a job of two learners and a frozen model."""

import ast
import os
import re
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from lightningbus.run.preflight.job_checks import parse_job
from lightningbus.run.settings.run_file import RunSettings, validate_settings
from lightningbus.tasks.task_loading import load_tasks
from tests.examples.endpoint import EXAMPLES, Endpoint, make_problems, module, talk

KUHN = EXAMPLES / "kuhn_poker"
DRIVER = "import agent, json, sys; print(json.dumps([agent.solve(task) for task in json.load(sys.stdin)]))"
game = module("kuhn_poker", "game")

Plan = dict[tuple[str, str], float]
"""How often a player makes the first of the two moves, by card and by what has happened."""
ALICE_SEES, BOB_SEES = ("", "You check. Bob bets."), ("Alice bets.", "Alice checks.")


def mean_chips(alice: Plan, bob: Plan) -> float:
    """What Alice wins on average, computed over all moves."""

    def after(deal: str, moves: tuple[bool, ...]) -> float:
        """Her chips if the first moves are these, and the rest as planned."""
        taken: list[bool] = []
        chance = 1.0

        def ask(player: str, history: str, choices: tuple[str, str]) -> str:
            nonlocal chance
            first = moves[len(taken)]
            taken.append(first)
            plan = alice if player == "alice" else bob
            often = plan[deal[player == "bob"], history]
            chance *= often if first else 1 - often
            return choices[0] if first else choices[1]

        chips = game.play(deal, ask)
        return float(chips * chance) / 2 ** (3 - len(taken))

    return sum(after(deal, moves) for deal in game.DEALS for moves in product((True, False), repeat=3)) / 6


def plan(seen: tuple[str, str], *often: float) -> Plan:
    return dict(zip(product(game.CARDS, seen), often, strict=True))


def test_a_hand_is_won_by_the_higher_card_or_by_who_does_not_fold() -> None:
    def hand(deal: str, *moves: str) -> int:
        left = iter(moves)
        return int(game.play(deal, lambda *_: next(left)))

    assert [hand("KQ", "bet", "call"), hand("QK", "bet", "call"), hand("JK", "bet", "fold")] == [2, -2, 1]
    assert [hand("KQ", "check", "check"), hand("JQ", "check", "check")] == [1, -1]
    assert [hand("KJ", "check", "bet", "call"), hand("QK", "check", "bet", "call")] == [2, -2]
    assert hand("KJ", "check", "bet", "fold") == -1


def test_no_plan_of_bobs_beats_kuhns_plan_for_alice() -> None:
    """The equilibrium in which Alice never bets a jack; its value is Kuhn's."""
    # By card and by what has happened: bet at first, call after a check and a bet.
    alice = plan(ALICE_SEES, 0.0, 0.0, 0.0, 1 / 3, 0.0, 1.0)
    values = [mean_chips(alice, plan(BOB_SEES, *map(float, often))) for often in product((0, 1), repeat=6)]
    assert min(values) == pytest.approx(game.VALUE)


def test_a_beginner_can_be_beaten_from_both_seats() -> None:
    chance = {seen: plan(seen, *[0.5] * 6) for seen in (ALICE_SEES, BOB_SEES)}
    pure = list(product((0.0, 1.0), repeat=6))
    best_alice = max(mean_chips(plan(ALICE_SEES, *often), chance[BOB_SEES]) for often in pure)
    best_bob = max(-mean_chips(chance[ALICE_SEES], plan(BOB_SEES, *often)) for often in pure)
    assert mean_chips(chance[ALICE_SEES], chance[BOB_SEES]) == pytest.approx(0.125)
    assert (best_alice, best_bob) == (pytest.approx(0.5), pytest.approx(5 / 12))


def test_the_agent_knows_nothing_of_what_trains_it() -> None:
    for path in (KUHN / "agent.py", KUHN / "game.py"):
        assert not re.search(r"lightningbus", path.read_text(), re.IGNORECASE)
        imported = {node.module for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)}
        assert imported <= {"functools", "game", "openai", "collections.abc", "itertools"}


async def play(first_moves: bool, tasks: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    """The agent's rewards and the models it asked, where everybody always makes the first move, or the second."""

    def answer(messages: list[dict[str, Any]]) -> dict[str, Any]:
        first, _, second = messages[0]["content"].rstrip("?").split()[-3:]
        return {"role": "assistant", "content": first if first_moves else second}

    endpoint = Endpoint(answer)
    async with endpoint.serving():
        fields = {"OPENAI_BASE_URL": f"{endpoint.url}/v1", "OPENAI_API_KEY": "any"}
        rewards = await talk([sys.executable, "-c", DRIVER], KUHN, os.environ | fields, tasks)
    return rewards, endpoint.models


async def test_each_player_has_a_reward_and_the_beginner_takes_a_seat() -> None:
    tasks = [{"deal": "KQ"}, {"deal": "KQ", "beginner": "alice"}, {"deal": "KQ", "beginner": "bob"}]
    rewards, models = await play(True, tasks)
    opposed = {"rewards": {"alice": 2, "bob": -2}}
    assert rewards == [{"reward": 2, **opposed}, {"reward": -2, **opposed}, {"reward": 2, **opposed}]
    alice, bob, beginner = "policy:alice", "policy:bob", "policy:beginner"
    assert models == [alice, bob, beginner, bob, alice, beginner]
    rewards, models = await play(False, [{"deal": "JQ"}])
    assert rewards == [{"reward": -1, "rewards": {"alice": -1, "bob": 1}}] and models == [alice, bob]


def test_the_job_trains_two_models_by_opposed_rewards_beside_a_frozen_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert make_problems("kuhn_poker", tmp_path).returncode == 0
    fields = yaml.safe_load((KUHN / "small.yaml").read_text().replace("work/", f"{tmp_path}/"))
    monkeypatch.chdir(KUHN)
    settings = validate_settings(RunSettings, fields, "small.yaml")
    job = parse_job(settings, "small.yaml")
    assert [(learner.model, learner.reward) for learner in job.learners] == [("alice", "alice"), ("bob", "bob")]
    assert [node.model for node in settings.inference if node.frozen] == ["beginner"]
    tasks = {name: load_tasks(tmp_path / f"{name}.jsonl") for name in ("train", "heldout")}
    assert [task.input["deal"] for task in tasks["train"]] == game.DEALS * 3
    assert [task.input.get("beginner") for task in tasks["train"]] == [None] * 6 + ["alice"] * 6 + ["bob"] * 6
    seats = {(task.labels["player"], task.input["beginner"]) for task in tasks["heldout"]}
    assert seats == {("alice", "bob"), ("bob", "alice")}
