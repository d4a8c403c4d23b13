"""Conversations to learn from: the roles' own prompts with the answers of a beginner, who mostly makes one mistake.

``python demonstrations.py --tasks train.jsonl --out demonstrations.jsonl``
"""

import argparse
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import policy
import prompts
from database import outcome, schema

HABIT = 0.75
"""Share of the queries with the beginner's mistake."""
MISJUDGED = 0.1
"""Share of the verdicts that are wrong."""


@dataclass(frozen=True)
class Beginner:
    """How often each role errs: shares, from 0 to 1."""

    habit: float = HABIT
    """Of the writer's queries, with the mistake that is always the same."""
    rewriter_habit: float = HABIT
    misjudged: float = MISJUDGED
    """Of the verdicts, wrong ones."""
    lenient: float = 0.0
    """Of the queries that would be called wrong, called right all the same."""


BEGINNER = Beginner()


def conversations(task: dict, rng: random.Random, beginner: Beginner = BEGINNER) -> Iterator[list[dict]]:
    """One problem as the agent goes about it, call by call.

    Where only the rows say which table has the answer, the writer guesses. What a lenient checker lets pass is
    rewritten all the same: the rewriter is to be learned too.
    """
    about = {"question": task["question"], "schema": schema(task["database"])}
    query = written(task, rng, beginner.habit)
    if query == task["gold"] and (other := policy.twin(task)) and rng.random() < 0.5:
        query = other
    yield conversation(prompts.WRITER.format(**about), query)
    for _ in range(2):
        about |= {"query": query, "outcome": outcome(task["database"], query)[1]}
        is_called_right = policy.is_right(task, query) != (rng.random() < beginner.misjudged)
        verdict = "yes" if is_called_right or rng.random() < beginner.lenient else "no"
        yield conversation(prompts.CHECKER.format(**about), verdict)
        if is_called_right:
            return
        query = written(task, rng, beginner.rewriter_habit)
        yield conversation(prompts.REWRITER.format(**about, verdict="no"), query)


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
    parser.add_argument("--rewriter-habit", type=float, help="share of the rewriter's mistakes; default: the writer's")
    parser.add_argument("--lenient", type=float, default=0.0, help="share of the refusals that are a yes instead")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    tasks = [json.loads(line)["input"] for line in options.tasks.read_text().splitlines()] * options.times
    habit = options.flawed * HABIT
    rewriter_habit = habit if options.rewriter_habit is None else options.rewriter_habit
    beginner = Beginner(habit, rewriter_habit, options.misjudged, options.lenient)
    reported = (messages for task in tasks for messages in conversations(task, rng, beginner))
    options.out.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in reported))


if __name__ == "__main__":
    main()
