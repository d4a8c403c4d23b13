"""Was each trained rollout graded once and scored once by the teacher, both as its own tokens want it?"""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from lightningbus.learner.teacher.score_file import FILE, ScoreFile
from lightningbus.schemas.grading import RolloutGraded
from lightningbus.schemas.trajectory.attempt_selection import Resolution
from tests.chaos.oracle import Verdict
from tests.chaos.running_system import RUN, RunningSystem
from tests.chaos.tokens import teacher_logprob

TEACHER_NAME = "teacher"
TOLERANCE = 1e-6
MOST_REPLAYED = 40
"""Steps whose batch is built again, which takes most of a second each."""
CALLS = """
SELECT execution_id, prompt_ids, response_ids FROM completions
INNER JOIN prompts USING (run_id, rollout_id, execution_id, call) ORDER BY execution_id, call
"""
ENDED = "SELECT rollout_id, execution_id, outcome, reward FROM rollouts"
GRADED = "SELECT rollout_id, execution_id, reward FROM grades"
TRAINED = "SELECT rollout_id, execution_id, step, tokens, reward FROM training_rollouts WHERE trained"
STEPS = "SELECT step, metrics['tokens'], metrics['tokens/scored'] FROM training_steps ORDER BY step"
LETTERS = "SELECT stream, reason FROM dead_letters"

Rows = Sequence[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Call:
    """The tokens of one model call."""

    prompt: Sequence[int]
    response: Sequence[int]


Calls = Mapping[str, Sequence[Call]]
"""The calls of each execution, in their order."""


def right_reward(calls: Sequence[Call]) -> float:
    """The reward that `tests/agents/marks.py` gives for the text of these tokens, without asking it."""
    text = "".join(f"{token} " for token in calls[-1].response)
    return float(np.clip((crc32(text.encode()) % 1000 - 200) / 600, 0.0, 1.0))


def right_scores(calls: Sequence[Call]) -> list[float]:
    """The teacher's log-probability of each token of the answers, call after call."""
    return [
        teacher_logprob([*call.prompt, *call.response[:place]], token)
        for call in calls
        for place, token in enumerate(call.response)
    ]


async def examine_teaching(system: RunningSystem, verdict: Verdict) -> None:
    """Add to a verdict what was not graded once, scored once, or trained with another reward or score than its own."""
    sql, tap = system.sql(), system.tap

    def rows(statement: str) -> Rows:
        return [tuple(row) for row in sql.query(statement).result_rows]

    calls: dict[str, list[Call]] = {}
    for execution, prompt, response in rows(CALLS):
        calls.setdefault(execution, []).append(Call(prompt, response))
    trained, ended = rows(TRAINED), rows(ENDED)
    find_repeated_ends(
        verdict,
        [end.execution for end in tap.ends],
        [e.rollout for e in tap.ends if e.resolution != Resolution.RETRIED],
    )
    find_wrong_grades(verdict, calls, tap.grades, rows(GRADED), ended)
    find_wrong_rewards(verdict, calls, [(rollout, execution, reward) for rollout, execution, *_, reward in trained])
    scores = read_scores(system.directory / "checkpoints")
    find_wrong_scores(verdict, calls, scores, [(rollout, execution) for rollout, execution, *_ in trained])
    steps = rows(STEPS)
    find_wrong_steps(verdict, calls, steps, [(step, execution, tokens) for _, execution, step, tokens, _ in trained])
    verdict.wrong += await asyncio.to_thread(find_other_batches, sql, [step for step, *_ in steps])
    verdict.wrong += [f"a dead letter of {stream}: {reason}" for stream, reason in rows(LETTERS)]


def find_repeated_ends(verdict: Verdict, executions: Iterable[str], rollouts: Iterable[str]) -> None:
    """Each attempt is said to end once, and each rollout has one last word."""
    for what, names in (("attempt", executions), ("rollout", rollouts)):
        verdict.duplicated += [f"{what} {name} ended {n} times" for name, n in Counter(names).items() if n > 1]


def find_wrong_grades(
    verdict: Verdict, calls: Calls, on_bus: Sequence[RolloutGraded], stored: Rows, ended: Rows
) -> None:
    """Each rollout that ended well has one grade, on the bus and in the store, and its reward is that of its answer.

    ``stored`` are (rollout, execution, reward), ``ended`` (rollout, execution, outcome, reward).
    """
    for place, names in (
        ("on the bus", [grade.rollout_id for grade in on_bus]),
        ("in the store", [rollout for rollout, *_ in stored]),
    ):
        times = Counter(names)
        verdict.lost += [f"rollout {rollout} has no grade {place}" for rollout, *_ in ended if rollout not in times]
        verdict.duplicated += [f"rollout {name} has {n} grades {place}" for name, n in times.items() if n > 1]
    verdict.wrong += [f"rollout {rollout} ended as {outcome}" for rollout, _, outcome, _ in ended if outcome != "ok"]
    grades = [(grade.rollout_id, grade.execution_id, grade.reward) for grade in on_bus]
    for rows in (grades, stored, [(rollout, execution, reward) for rollout, execution, _, reward in ended]):
        find_wrong_rewards(verdict, calls, rows)
    rewards = Counter(reward if reward in (0.0, 1.0) else 0.5 for *_, reward in ended)
    verdict.counts |= {"graded": len(grades), "rewards of 0": rewards[0.0], "rewards of 1": rewards[1.0]}
    verdict.wrong += ["all rewards are alike"] * (len(rewards) != 3)


def find_wrong_rewards(verdict: Verdict, calls: Calls, rewards: Rows) -> None:
    """Each reward is that of the recorded tokens; ``rewards`` are (rollout, execution, reward)."""
    for rollout, execution, reward in rewards:
        right = right_reward(calls[execution]) if execution in calls else None
        if reward is None or right is None or reward != right:
            verdict.wrong.append(f"rollout {rollout} has the reward {reward}, and its answer deserves {right}")


def find_wrong_scores(
    verdict: Verdict, calls: Calls, scores: Mapping[str, Sequence[Sequence[float]]], trained: Rows
) -> None:
    """Each trained rollout was scored once, each token of its answers once, with the teacher's value of that token.

    ``scores`` are by execution, all that there are of it; ``trained`` are (rollout, execution).
    """
    for rollout, execution in trained:
        actual, right = scores.get(execution, ()), right_scores(calls.get(execution, ()))
        if not actual:
            verdict.lost.append(f"rollout {rollout} was trained without its scores")
        elif len(actual) > 1 or len(actual[0]) > len(right):
            verdict.duplicated.append(f"rollout {rollout} of {len(right)} tokens has scores {[*map(len, actual)]}")
        elif len(actual[0]) < len(right) or not np.isfinite(actual[0]).all():
            verdict.lost.append(f"rollout {rollout} has tokens that the teacher did not score")
        elif not np.allclose(actual[0], right, rtol=0, atol=TOLERANCE):
            verdict.wrong.append(f"rollout {rollout} has scores of other tokens")
    verdict.counts["scored tokens"] = sum(len(each) for _, execution in trained for each in scores.get(execution, ()))


def find_wrong_steps(verdict: Verdict, calls: Calls, steps: Rows, trained: Rows) -> None:
    """Each step counts each token of its rollouts once, and each as scored.

    ``steps`` are (step, tokens, scored tokens), ``trained`` (step, execution, tokens).
    """
    verdict.wrong += ["no step was made"] * (not steps)
    by_step: Counter[int] = Counter()
    for step, execution, tokens in trained:
        sampled = sum(len(call.response) for call in calls.get(execution, ()))
        by_step[step] += sampled
        verdict.wrong += [f"step {step} trained {tokens} of {sampled} tokens of {execution}"] * (tokens != sampled)
    for step, tokens, scored in steps:
        if not tokens == scored == by_step[step]:
            verdict.wrong.append(
                f"step {step} of {by_step[step]} tokens trained {tokens}, of which {scored} are scored"
            )


def find_other_batches(sql: Any, steps: Sequence[int]) -> list[str]:
    """Steps that were not made of the batch that rollouts, rewards and scores on record give, to the bit.

    At most `MOST_REPLAYED` are looked at, evenly spread.
    """
    from lightningbus.analysis.replay import replay_step  # torch: other scenarios have no need of it

    chosen = steps[:: -(-len(steps) // MOST_REPLAYED)] if steps else ()
    results = [replay_step(sql, RUN, None, step, None) for step in chosen]
    return [f"step {result['step']} was made of another batch" for result in results if not result["same_batch"]]


def read_scores(directory: Path) -> dict[str, list[list[float]]]:
    """All scores in a learner's file, by execution; one that stands twice is there twice."""
    with sqlite3.connect(f"file:{directory / FILE}?mode=ro", uri=True) as connection:
        names = [name for (name,) in connection.execute("SELECT execution_id FROM teacher_scores")]
    connection.close()
    file, scores = ScoreFile(directory), dict[str, list[list[float]]]()
    for name in names:
        known = file.find(name, TEACHER_NAME, 0)
        scores.setdefault(name, []).append([] if known is None else known.logprobs.tolist())
    file.close()
    return scores
