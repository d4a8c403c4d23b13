"""Which reward a rollout counts with, for every figure of reward: the report, the page, the Python API, trackers. Pure.

In training as the learner counts it (`learner.rollouts.assembler.training_reward`): a rollout that the agent failed
counts as 0 under ``failed_rollouts: zero``, and is left out under ``mask``. One that infrastructure failed is left out.
In an evaluation every failed rollout counts as 0, as in `lightningbus.run.evaluation`.
"""

from schemas.trajectory.attempt_selection import INFRA_OUTCOMES

FAILED_ROLLOUTS = """
SELECT run_id, JSONExtractString(argMax(settings, (step, epoch)), 'failed_rollouts') AS failed_rollouts
FROM training_steps GROUP BY run_id
"""
"""The learner's setting ``failed_rollouts`` of each run, from its last step; empty before the first."""

_INFRA = ", ".join(f"'{outcome}'" for outcome in sorted(INFRA_OUTCOMES))
COUNTED_REWARD = f"""multiIf(
    outcome = 'ok', if(mode = 'eval', ifNull(reward, 0.), reward),
    mode = 'eval' OR (failed_rollouts = 'zero' AND outcome NOT IN ({_INFRA})), 0., NULL)"""
"""The reward that a rollout counts with, NULL: left out; from its columns and its run's ``failed_rollouts``."""

COUNTED_REWARDS = f"""
SELECT * FROM
(
    SELECT r.run_id AS run_id, r.mode AS mode, r.evaluation AS evaluation, r.task_id AS task_id,
        r.rollout_id AS rollout_id, r.outcome AS outcome,
        if(mapContains(t.weight_versions, t.model), t.weight_versions[t.model], r.max_weight_version) AS version,
        {COUNTED_REWARD} AS counted_reward
    FROM rollouts AS r
    LEFT ANY JOIN (SELECT run_id, rollout_id, model, weight_versions FROM tasks WHERE mode = 'eval') AS t
        ON r.run_id = t.run_id AND r.rollout_id = t.rollout_id
    LEFT ANY JOIN ({FAILED_ROLLOUTS}) AS f ON r.run_id = f.run_id
)
WHERE version IS NOT NULL AND counted_reward IS NOT NULL
"""
"""The view ``counted_rewards``, over rollouts, tasks and training_steps: one row for each rollout that counts.

``version``: the one that the evaluation is pinned to, else the newest that made a token of the rollout.
"""
