"""What the jobs came to: a row of each, and the tables made of them. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

Row = dict[str, Any]
TARGET = 0.8
"""Held-out reward, sampled, whose rollouts are counted."""
SHARE = 0.8
"""Of the right prompt's gain: a prompt that has it is found."""


def summarize(figures: Mapping[str, Any], rollouts_per_step: int) -> Row:
    """Held-out reward over rollouts, and the rounds. Pure.

    Rollouts are those of training until the version was made, and of all rounds until then; without the held-out ones.
    """
    rounds = [each for each in figures["prompt_rounds"] if each["state"] == "finished"]
    curve: dict[str, list[tuple[int, float]]] = {"greedy": [], "sampled": []}
    for evaluation in figures["evaluations"]:
        version = evaluation["version"]
        of_rounds = sum(
            each["rollouts"] for each in rounds
            if each["weight_versions"]["policy"] < version
            or any(evaluation["prompt_versions"].get(name, 0) >= used for name, used in each["prompt_versions"].items())
        )  # fmt: skip
        curve[evaluation["label"]].append(
            (version * rollouts_per_step + of_rounds, round(evaluation["mean_reward"], 4))
        )
    return {
        "rounds": [
            {
                name: each[name]
                for name in ("weight_versions", "is_released", "before", "after", "rollouts", "candidates")
            }
            for each in rounds
        ],
        "curves": {label: sorted(points) for label, points in curve.items()},
        "steps": figures["steps"],
        "seconds": figures["seconds"],
    }


def rollouts_to(curve: list[tuple[int, float]], target: float) -> int | None:
    """When an evaluation first was at the target; None: never. Pure."""
    return next(
        (rollouts for rollouts, reward in sorted((rollouts, reward) for rollouts, reward in curve) if reward >= target),
        None,
    )


def key_of(row: Row) -> tuple[str, str, int]:
    """What tells one job from another."""
    return row["mode"], row["job"], row["seed"]


def tables(rows: Sequence[Row]) -> str:
    """As Markdown: how soon a prompt was found, then rollouts to the target; what is not measured is not there."""
    searches = [
        "| policy | job | seed | reward, agent's prompt | right prompt | prompt found | share of the gain | rollouts |",
        "|---|---|---|---|---|---|---|---|",
    ]
    targets = [
        f"| seed | rollouts to {TARGET}, weights alone | in turns | fewer | last reward, weights alone | in turns |",
        "|---|---|---|---|---|---|",
    ]
    by_key = {key_of(row): row for row in rows}
    rights = {row["job"]: row for row in rows if row["mode"] == "right"}  # one does: all runs have the same model
    for (mode, job, seed), row in sorted(by_key.items()):
        if mode == "scripted":
            searches.append(_search_row("scripted", job, seed, row["rewards"], row["rollouts"]))
        right = rights.get(job)
        if mode == "turns" and right is not None:
            searches.append(_search_row("vLLM", job, seed, *_rewards_of_turns(right, row)))
        weights = by_key.get(("weights", job, seed))
        if mode == "turns" and weights is not None:
            targets.append(_target_row(seed, weights, row))
    return "\n".join([*searches, *(["", *targets] if len(targets) > 2 else [])])


def _rewards_of_turns(right: Row, turns: Row) -> tuple[dict[str, float], int]:
    """Sampled rewards, and the rollouts of the first round; the prompt found is measured on that round's problems."""
    start = turns["curves"]["sampled"][0][1]
    first = turns["rounds"][0] if turns["rounds"] else {"is_released": False, "rollouts": 0}
    rewards = {"start": start, "right": right["curves"]["sampled"][0][1]}
    return {**rewards, "found": first["after"] if first["is_released"] else start}, first["rollouts"]


def _search_row(policy: str, job: str, seed: int, rewards: Mapping[str, float], rollouts: int) -> str:
    gain = rewards["right"] - rewards["start"]
    share = (rewards["found"] - rewards["start"]) / gain if gain > 0 else 0.0
    cell = f"{rollouts}" if share >= SHARE else f"not in {rollouts}"
    each = " | ".join(f"{rewards[name]:.2f}" for name in ("start", "right", "found"))
    return f"| {policy} | `{job}` | {seed} | {each} | {share:.0%} | {cell} |"


def _target_row(seed: int, weights: Row, turns: Row) -> str:
    alone, both = (rollouts_to(row["curves"]["sampled"], TARGET) for row in (weights, turns))
    (last_rollouts, last_alone), (_, last_both) = (row["curves"]["sampled"][-1] for row in (weights, turns))
    fewer = f"{'' if alone else 'at least '}{1 - both / (alone or last_rollouts):.0%}" if both else "–"
    cells = [f"{alone:,}" if alone else f"not in {last_rollouts:,}", f"{both:,}" if both else "never"]
    return f"| {seed} | {cells[0]} | {cells[1]} | {fewer} | {last_alone:.2f} | {last_both:.2f} |"
