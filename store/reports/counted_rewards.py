"""The reward that counts for a rollout in every figure: the report, the page, the Python API, trackers. Pure.

A rollout counts once for each model that answered it. Its reward is the one that its task names, as those of a suite
with a reward of its own do, else the one that the model's learner trains on: ``rewards[name]`` where the setting
``reward`` names one, else the main reward.
In training as the learner counts it (`lightningbus.learner.rollouts.assembler.training_reward`): a rollout that the
agent failed counts as 0 under ``failed_rollouts: zero``, and is left out under ``mask``. One that infrastructure failed
is left out.
In an evaluation every failed rollout counts as 0, as in `lightningbus.run.evaluation.evaluation`. One that could not be
graded counts nowhere.
"""

from lightningbus.schemas.trajectory.attempt_selection import UNGRADED_OUTCOMES, UNREWARDED_OUTCOMES

REWARD_SETTINGS = """
SELECT run_id, model, JSONExtractString(last_settings, 'failed_rollouts') AS failed_rollouts,
    JSONExtractString(last_settings, 'reward') AS trained_reward,
    JSONExtractString(last_settings, 'task_model') AS task_model
FROM
(
    SELECT run_id, model, argMax(settings, (step, epoch)) AS last_settings FROM training_steps GROUP BY run_id, model
)
"""
"""Settings of each model's learner, from its last step; empty before the first."""

_UNGRADED = ", ".join(f"'{outcome}'" for outcome in sorted(UNGRADED_OUTCOMES))
_UNREWARDED = ", ".join(f"'{outcome}'" for outcome in sorted(UNREWARDED_OUTCOMES))
TASK_REWARDS = "SELECT run_id, rollout_id, reward_name FROM tasks WHERE isNotNull(reward_name)"
"""Names of the rewards that tasks themselves name."""
_NAME = "assumeNotNull(ifNull(reward_name, trained_reward))"
OWN_REWARD = f"""if({_NAME} = '', reward, if(mapContains(rewards, {_NAME}), rewards[{_NAME}], NULL))"""
"""The reward that counts for a model, NULL: the rollout has none."""
COUNTED_REWARD = f"""multiIf(
    outcome = 'ok', if(mode = 'eval', ifNull({OWN_REWARD}, 0.), {OWN_REWARD}), outcome IN ({_UNGRADED}), NULL,
    mode = 'eval' OR (failed_rollouts = 'zero' AND outcome NOT IN ({_UNREWARDED})), 0., NULL)"""
"""The reward that a rollout counts with, NULL: left out; from its columns, `REWARD_SETTINGS` and `TASK_REWARDS`."""

COUNTED_REWARDS = f"""
SELECT * FROM
(
    SELECT r.run_id AS run_id, r.mode AS mode, r.evaluation AS evaluation, r.task_id AS task_id,
        r.rollout_id AS rollout_id, r.outcome AS outcome, r.model AS model, r.version AS version,
        {COUNTED_REWARD} AS counted_reward
    FROM
    (
        SELECT run_id, mode, evaluation, task_id, rollout_id, outcome, reward, rewards, model, version
        FROM rollouts ARRAY JOIN mapKeys(newest_versions) AS model, mapValues(newest_versions) AS version
        WHERE mode = 'train'
        UNION ALL
        SELECT o.run_id AS run_id, o.mode AS mode, o.evaluation AS evaluation, o.task_id AS task_id,
            o.rollout_id AS rollout_id, o.outcome AS outcome, o.reward AS reward, o.rewards AS rewards,
            answered.1 AS model, answered.2 AS version
        FROM (SELECT * FROM rollouts WHERE mode = 'eval') AS o
        LEFT ANY JOIN (SELECT run_id, rollout_id, weight_versions FROM tasks WHERE mode = 'eval') AS t
            ON o.run_id = t.run_id AND o.rollout_id = t.rollout_id
        ARRAY JOIN CAST(mapUpdate(o.newest_versions, t.weight_versions), 'Array(Tuple(String, UInt32))') AS answered
    ) AS r
    LEFT ANY JOIN ({REWARD_SETTINGS}) AS f ON r.run_id = f.run_id AND r.model = f.model
    LEFT ANY JOIN ({TASK_REWARDS}) AS n ON r.run_id = n.run_id AND r.rollout_id = n.rollout_id
)
WHERE counted_reward IS NOT NULL
"""
"""The view ``counted_rewards``, over rollouts, tasks and training_steps: a row for each rollout and model that counts.

``version``: the one of the model that the evaluation is pinned to, else the newest that made a token of the rollout.
"""
