"""The oracle of taught runs finds each thing that must not be."""

import pytest

from lightningbus.schemas.grading import RolloutGraded
from tests.chaos.oracle import Verdict
from tests.chaos.teaching import (
    Call,
    find_repeated_ends,
    find_wrong_grades,
    find_wrong_rewards,
    find_wrong_scores,
    find_wrong_steps,
    right_reward,
    right_scores,
)

pytestmark = pytest.mark.unit
CALLS = {f"e{number}": [Call([1, 2], [number, 3]), Call([4], [number, number + 1])] for number in range(20)}
RIGHT = {name: right_reward(calls) for name, calls in CALLS.items()}
SCORES = {name: [right_scores(calls)] for name, calls in CALLS.items()}
TRAINED = [(f"r{name}", name) for name in CALLS]
ENDED = [(f"r{name}", name, "ok", reward) for name, reward in RIGHT.items()]
STORED = [(rollout, name, reward) for rollout, name, _, reward in ENDED]


def event(rollout: str, name: str, reward: float | None) -> RolloutGraded:
    fields = {"run_id": "r", "task_id": "t", "grading": "live", "graders_sha256": "", "started_at_ns": 1}
    return RolloutGraded(rollout_id=rollout, execution_id=name, reward=reward, graded_at_ns=2, **fields)


ON_BUS = [event(*row) for row in STORED]
OTHERS = next(name for name, reward in RIGHT.items() if reward not in (0.0, RIGHT["e0"]))


def test_a_run_as_promised_is_good() -> None:
    verdict = Verdict()
    find_repeated_ends(verdict, list(CALLS), list(CALLS))
    find_wrong_grades(verdict, CALLS, ON_BUS, STORED, ENDED)
    find_wrong_rewards(verdict, CALLS, STORED)
    find_wrong_scores(verdict, CALLS, SCORES, TRAINED)
    find_wrong_steps(verdict, CALLS, [(1, 80, 80)], [(1, name, 4) for name in CALLS])
    assert verdict, str(verdict)
    assert {0.0, 1.0} < {*RIGHT.values()}


@pytest.mark.parametrize(
    ("on_bus", "stored", "ended", "text"),
    [
        (ON_BUS[1:], STORED, ENDED, "lost: rollout re0 has no grade on the bus"),
        (ON_BUS, STORED[1:], ENDED, "lost: rollout re0 has no grade in the store"),
        ([*ON_BUS, ON_BUS[0]], STORED, ENDED, "duplicated: rollout re0 has 2 grades on the bus"),
        (ON_BUS, STORED, [("re0", "e0", "grading_failed", None), *ENDED[1:]], "wrong: rollout re0 ended as grading_"),
        (ON_BUS, STORED, [("re0", "e0", "ok", RIGHT[OTHERS]), *ENDED[1:]], "wrong: rollout re0 has the reward"),
        (ON_BUS, [("re0", "e0", None), *STORED[1:]], ENDED, "wrong: rollout re0 has the reward None"),
        (ON_BUS[:1], STORED[:1], ENDED[:1], "wrong: all rewards are alike"),
    ],
)
def test_a_grade_that_is_missing_doubled_swapped_or_failed(
    on_bus: list[RolloutGraded], stored: list[tuple[object, ...]], ended: list[tuple[object, ...]], text: str
) -> None:
    verdict = Verdict()
    find_wrong_grades(verdict, CALLS, on_bus, stored, ended)
    assert text in str(verdict)


def test_a_silent_zero_and_an_end_that_is_said_again() -> None:
    verdict = Verdict()
    find_wrong_rewards(verdict, CALLS, [(f"r{OTHERS}", OTHERS, 0.0)])
    find_repeated_ends(verdict, ["e1", "e1"], ["re1", "re2"])
    assert len(verdict.wrong) == 1 and verdict.duplicated == ["attempt e1 ended 2 times"]


@pytest.mark.parametrize(
    ("scores", "text"),
    [
        ([], "lost: rollout re0 was trained without its scores"),
        (SCORES["e0"] * 2, "duplicated: rollout re0 of 4 tokens has scores [4, 4]"),
        ([SCORES["e0"][0] * 2], "duplicated: rollout re0 of 4 tokens has scores [8]"),
        ([SCORES["e0"][0][1:]], "lost: rollout re0 has tokens that the teacher did not score"),
        ([[float("nan"), *SCORES["e0"][0][1:]]], "lost: rollout re0 has tokens that the teacher did not score"),
        (SCORES["e1"], "wrong: rollout re0 has scores of other tokens"),
    ],
)
def test_scores_that_are_missing_doubled_or_of_another_rollout(scores: list[list[float]], text: str) -> None:
    verdict = Verdict()
    find_wrong_scores(verdict, CALLS, {**SCORES, "e0": scores}, TRAINED)
    assert str(verdict) == text


@pytest.mark.parametrize(
    ("step", "tokens", "text"),
    [
        ((1, 80.0, 76.0), 4, "of which 76.0 are scored"),
        ((1, 84.0, 84.0), 4, "step 1 of 80 tokens trained 84.0"),
        ((1, 80.0, 80.0), 8, "step 1 trained 8 of 4 tokens of e0"),
    ],
)
def test_a_step_that_counts_a_token_twice_or_without_its_score(
    step: tuple[int, float, float], tokens: int, text: str
) -> None:
    verdict = Verdict()
    find_wrong_steps(verdict, CALLS, [step], [(1, name, tokens) for name in CALLS])
    assert text in str(verdict)
