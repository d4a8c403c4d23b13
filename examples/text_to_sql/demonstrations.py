"""Conversations to learn from: the roles' own prompts with the answers of a beginner, who mostly makes one mistake.

``python demonstrations.py --tasks train.jsonl --out demonstrations.jsonl``
"""

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path

import policy
import prompts
from database import outcome, schema

HABIT = 0.75
"""Share of the queries with the beginner's mistake."""
MISJUDGED = 0.1
"""Share of the verdicts that are wrong."""


def conversations(
    task: dict, rng: random.Random, habit: float = HABIT, misjudged: float = MISJUDGED
) -> Iterator[list[dict]]:
    """One problem as the agent goes about it, call by call.

    So many queries have the beginner's mistake, and so many verdicts are wrong.
    """
    about = {"question": task["question"], "schema": schema(task["database"])}
    query = written(task, rng, habit)
    yield conversation(prompts.WRITER.format(**about), query)
    for _ in range(2):
        about |= {"query": query, "outcome": outcome(task["database"], query)[1]}
        verdict = "yes" if policy.is_right(task, query) != (rng.random() < misjudged) else "no"
        yield conversation(prompts.CHECKER.format(**about), verdict)
        if verdict == "yes":
            return
        query = written(task, rng, habit)
        yield conversation(prompts.REWRITER.format(**about, verdict=verdict), query)


def written(task: dict, rng: random.Random, habit: float) -> str:
    """The gold query, or the mistake that is always the same for a kind of problem."""
    return policy.habit(task) if rng.random() < habit else task["gold"]


def conversation(prompt: str, answer: str) -> list[dict]:
    return [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--times", type=int, default=3, help="how often each problem is gone about")
    parser.add_argument("--flawed", type=float, default=1.0, help="how much of the habit is shown, from 0 to 1")
    parser.add_argument("--misjudged", type=float, default=MISJUDGED, help="share of the verdicts that are wrong")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    tasks = [json.loads(line)["input"] for line in options.tasks.read_text().splitlines()] * options.times
    habit, misjudged = options.flawed * HABIT, options.misjudged
    reported = (messages for task in tasks for messages in conversations(task, rng, habit, misjudged))
    options.out.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in reported))


if __name__ == "__main__":
    main()
