"""Figures of each model of a training job, as the store counts them."""

from collections import defaultdict
from collections.abc import Collection

from clickhouse_connect.driver.client import Client
from pydantic import BaseModel, ConfigDict, Field

from lightningbus.store.reports.interval import Interval, estimate_interval

MODELS = """
SELECT v.model, v.weight_versions, r.tokens_trained, r.share_trained, l.max_staleness
FROM
(
    SELECT model, uniqExact(version) AS weight_versions FROM weight_versions WHERE run_id = {run_id:String}
    GROUP BY model
) AS v
LEFT JOIN
(
    SELECT model, sumIf(tokens, trained) AS tokens_trained,
        toNullable(round(uniqExactIf(rollout_id, trained) / uniqExact(rollout_id), 4)) AS share_trained
    FROM training_rollouts WHERE run_id = {run_id:String} GROUP BY model
) AS r ON v.model = r.model
LEFT JOIN
(
    SELECT model, toNullable(max(max_staleness)) AS max_staleness FROM staleness WHERE run_id = {run_id:String}
    GROUP BY model
) AS l ON v.model = l.model
ORDER BY v.model
"""
"""Query of the figures of each model, without its steps."""
EVALUATIONS = """
SELECT model, evaluation, version, mean_reward, standard_error, tasks, rollouts, is_success_rate FROM reward_by_version
WHERE run_id = {run_id:String} AND mode = 'eval' AND evaluation IN {labels:Array(String)}
ORDER BY model, version, evaluation
"""
"""Query of each model's held-out rewards, by the reward that counts for it."""


class ModelEvaluation(BaseModel):
    """The held-out reward of one version of one model."""

    model_config = ConfigDict(frozen=True)

    label: str = Field(description="name of the evaluation: greedy, sampled, or those of a suite, such as hard-greedy")
    version: int = Field(description="weight version of this model")
    mean_reward: float = Field(
        description="mean of the reward that counts: the suite's own, else the one that this model is trained on; a "
        "failed rollout counts as 0"
    )
    standard_error: float | None = Field(
        description="standard error of `mean_reward`, over tasks; none for a single task"
    )
    interval: Interval | None = Field(default=None, description="95 % confidence interval of `mean_reward`")


class ModelResults(BaseModel):
    """Figures of one model of a training job."""

    steps: int = Field(default=0, description="training steps of this model")
    weight_versions: int = Field(default=0, description="published weight versions of this model")
    tokens_trained: int = Field(default=0, description="tokens that this model was trained on")
    share_trained: float | None = Field(
        default=None, description="share of the training rollouts that this model was trained on"
    )
    max_staleness: int | None = Field(
        default=None, description="largest staleness of a trained token, in versions of this model"
    )
    evaluations: list[ModelEvaluation] = Field(default=[], description="held-out rewards of this model, by version")


def count_models(client: Client, run: str, labels: Collection[str]) -> dict[str, ModelResults]:
    """Read the figures of each model of a run from the store; its ``steps`` are 0, and counted by `Results`.

    ``labels`` are the names of the job's evaluations.
    """
    evaluations = read_evaluations(client, run, labels)
    rows = client.query(MODELS, parameters={"run_id": run}).result_rows
    fields = tuple(field for field in ModelResults.model_fields if field not in ("steps", "evaluations"))
    return {
        name: ModelResults(**dict(zip(fields, figures, strict=True)), evaluations=evaluations.get(name, []))
        for name, *figures in rows
    }


def read_evaluations(client: Client, run: str, labels: Collection[str]) -> dict[str, list[ModelEvaluation]]:
    """Read the rewards of a job's evaluations of these names from the store, by model."""
    rows = client.query(EVALUATIONS, parameters={"run_id": run, "labels": sorted(labels)}).result_rows
    evaluations: dict[str, list[ModelEvaluation]] = defaultdict(list)
    for model, label, version, mean, error, tasks, rollouts, is_success_rate in rows:
        interval = estimate_interval(mean, error, tasks, rollouts, is_success_rate=bool(is_success_rate))
        each = ModelEvaluation(label=label, version=version, mean_reward=mean, standard_error=error, interval=interval)
        evaluations[model].append(each)
    return dict(evaluations)
