"""A whole job of two policies: two learners, two nodes of real vLLM, and what the store holds of it."""

import json
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.commands import python
from tests.examples.endpoint import EXAMPLES

KUHN, MODEL = EXAMPLES / "kuhn_poker", EXAMPLES / "small_model" / "model.py"
STEPS, GROUPS, SAMPLES = 2, 6, 4
PLAYERS = ("alice", "bob")

# The tokens of each model's calls, and those without a version or a probability of their own.
TOKENS = """
SELECT c.model AS model, c.role AS role, sum(length(p.response_ids)) AS num_tokens,
    groupUniqArrayArray(p.token_versions) AS versions,
    countIf(length(p.token_versions) != length(p.response_ids) OR empty(p.response_ids)) AS num_bad
FROM completions AS p
INNER JOIN (SELECT execution_id, call, model, role FROM model_calls) AS c USING (execution_id, call)
GROUP BY model, role ORDER BY model, role
"""
# Rollouts of which a learner trained another number of tokens than its own model sampled.
OTHERS_TRAINED = """
SELECT count() AS num_rollouts, countIf(t.tokens != c.num_tokens) AS num_wrong
FROM training_rollouts AS t
LEFT JOIN (
    SELECT rollout_id, model, sum(response_tokens) AS num_tokens FROM model_calls GROUP BY rollout_id, model
) AS c ON c.rollout_id = t.rollout_id AND c.model = t.model
WHERE t.trained
"""
VERSIONS = "SELECT model, arraySort(groupUniqArray(version)) AS versions FROM weight_versions GROUP BY model"
PINNED = "SELECT DISTINCT weight_versions FROM tasks WHERE mode = 'eval' ORDER BY weight_versions['alice']"
PAIRS = "SELECT countIf(rewards['alice'] != -rewards['bob']) AS num_unfair, count() AS num_rollouts FROM rollouts"

pytestmark = pytest.mark.timeout(900)


class Job:
    """A job that has ended: its figures, and queries of its store."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @cached_property
    def figures(self) -> dict[str, Any]:
        """Runs the job."""
        work = self._directory / "work"
        python("data.py", "--out", work, "--demonstrations", "300", cwd=KUHN)
        duels = [line for line in (work / "train.jsonl").read_text().splitlines() if "beginner" not in line]
        (work / "train.jsonl").write_text("".join(f"{line}\n" for line in duels))
        shape = ["--hidden", "64", "--layers", "1", "--vocabulary", "320", "--context", "64"]
        small = ["--demonstrations", work / "beginner.jsonl", "--steps", "30", "--batch", "32", *shape]
        python(MODEL, *small, "--out", work / "model", cwd=KUHN)
        job = yaml.safe_load((KUHN / "small.yaml").read_text().replace("work/", f"{work}/"))
        for learner in job["learners"]:
            learner |= {"max_steps": STEPS, "groups_per_step": GROUPS, "group_size": SAMPLES}
        job |= {"runs": str(self._directory / "runs"), "inference": job["inference"][:2]}
        del job["role_models"]["beginner"]
        job["eval"] |= {"tasks": str(work / "train.jsonl"), "samples": 1}  # the players meet each other
        (self._directory / "job.yaml").write_text(yaml.safe_dump(job))
        return json.loads(python("-m", "lightningbus", "train", "-c", self._directory / "job.yaml", cwd=KUHN))

    def query(self, sql: str) -> list[dict[str, Any]]:
        """Rows of the store."""
        return json.loads(python("-m", "lightningbus", "query", "--json", sql, cwd=self._directory))


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """The job of the example, made small, at its end."""
    ended = Job(tmp_path_factory.mktemp("policies"))
    assert ended.figures["is_finished"]
    return ended


def test_both_models_are_trained_to_the_last_step(job: Job) -> None:
    assert [*job.figures["models"]] == [*PLAYERS]
    assert {row["model"]: row["versions"] for row in job.query(VERSIONS)} == {
        player: [*range(STEPS + 1)] for player in PLAYERS
    }
    assert (job.figures["rollouts_lost"], job.figures["rollouts_trained_twice"]) == (0, 0)


def test_every_token_names_its_model_and_its_version(job: Job) -> None:
    rows = {row["model"]: row for row in job.query(TOKENS)}
    assert {model: row["role"] for model, row in rows.items()} == {name: name for name in PLAYERS}
    assert all(row["num_tokens"] and not row["num_bad"] for row in rows.values())
    assert all(set(rows[player]["versions"]) <= set(range(STEPS + 1)) for player in PLAYERS)
    assert all(STEPS in rows[player]["versions"] for player in PLAYERS)


def test_a_batch_holds_calls_of_its_own_model_only(job: Job) -> None:
    (counted,) = job.query(OTHERS_TRAINED)
    assert counted["num_rollouts"] > 0 and counted["num_wrong"] == 0


def test_an_evaluation_pins_a_version_of_each_model(job: Job) -> None:
    pinned = [row["weight_versions"] for row in job.query(PINNED)]
    assert pinned == [dict.fromkeys(PLAYERS, 0), dict.fromkeys(PLAYERS, STEPS)]
    assert [each["versions"] for each in job.figures["evaluations"]] == [pinned[0]] * 2 + [pinned[1]] * 2


def test_each_rollout_has_a_reward_for_each_player(job: Job) -> None:
    (counted,) = job.query(PAIRS)
    assert counted["num_rollouts"] >= STEPS * GROUPS * SAMPLES and counted["num_unfair"] == 0
