"""The questions everybody asks, as SQL by name."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Report:
    """A question and its SQL; ``{run:String}`` is the run, empty for all."""

    title: str
    sql: str


REPORTS = {
    "rewards": Report(
        "Reward by weight version",
        """
SELECT run, mode, version, rollouts, round(mean_reward, 4) AS mean_reward, round(reward_spread, 4) AS spread
FROM reward_by_version WHERE {run:String} IN ('', run) ORDER BY run, mode, version
""",
    ),
    "staleness": Report(
        "Versions between sampling and training, per token",
        """
SELECT run, step, version, tokens, round(mean_staleness, 3) AS mean_staleness, max_staleness,
    round(fresh_share, 3) AS fresh_share
FROM staleness WHERE {run:String} IN ('', run) ORDER BY run, step
""",
    ),
    "rollouts": Report(
        "Rollouts by outcome",
        """
SELECT run, mode, agent, outcome, count() AS rollouts, round(avg(reward), 4) AS mean_reward,
    round(avg(date_diff('millisecond', started, ended)) / 1000, 3) AS mean_seconds,
    round(quantile(0.95)(date_diff('millisecond', started, ended)) / 1000, 3) AS p95_seconds,
    sum(attempt > 1) AS retried, anyIf(error, error != '') AS example_error
FROM rollouts WHERE {run:String} IN ('', run) GROUP BY run, mode, agent, outcome ORDER BY run, mode, agent, outcome
""",
    ),
}
