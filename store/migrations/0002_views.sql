-- What is read: every name here is exact, whatever was delivered twice.

CREATE VIEW IF NOT EXISTS {database}.tasks AS SELECT * FROM {database}.raw_tasks FINAL;
CREATE VIEW IF NOT EXISTS {database}.attempts AS SELECT * FROM {database}.raw_attempts FINAL;
CREATE VIEW IF NOT EXISTS {database}.spans AS SELECT * FROM {database}.raw_spans FINAL;
CREATE VIEW IF NOT EXISTS {database}.model_calls AS SELECT * FROM {database}.raw_model_calls FINAL;
CREATE VIEW IF NOT EXISTS {database}.weight_versions AS SELECT * FROM {database}.raw_weight_versions FINAL;
CREATE VIEW IF NOT EXISTS {database}.weight_applied AS SELECT * FROM {database}.raw_weight_applied FINAL;
CREATE VIEW IF NOT EXISTS {database}.alarms AS SELECT * FROM {database}.raw_alarms FINAL;
CREATE VIEW IF NOT EXISTS {database}.dead_letters AS SELECT * FROM {database}.raw_dead_letters FINAL;

-- One row per rollout: the attempt that schemas/attempts.py says it is, the learner's choice as well. standing is
-- 0: a result, 1: it came to nothing, 2: it was tried again.
CREATE VIEW IF NOT EXISTS {database}.rollouts AS
SELECT * FROM {database}.attempts WHERE standing < 2 ORDER BY standing, stream_sequence LIMIT 1 BY run, rollout;

-- A step that a learner undid by going back to its checkpoint is replaced by the same step of its next epoch.
CREATE VIEW IF NOT EXISTS {database}.training_steps AS
SELECT * FROM {database}.raw_training_steps FINAL ORDER BY epoch DESC LIMIT 1 BY run, model, step;

CREATE VIEW IF NOT EXISTS {database}.training_uses AS
SELECT * FROM {database}.raw_training_uses FINAL
WHERE (run, model, step, epoch) IN (SELECT run, model, step, epoch FROM {database}.training_steps);

-- One row per sampled token: what it was, how likely, and which weight version made it.
CREATE VIEW IF NOT EXISTS {database}.token_versions AS
SELECT run, task, rollout, attempt, execution, call, role, mode, position - 1 AS position, token, logprob, version
FROM {database}.model_calls
ARRAY JOIN
    arrayEnumerate(response_ids) AS position, response_ids AS token, logprobs AS logprob, token_versions AS version;

-- A rollout belongs to the newest version that made a token of it.
CREATE VIEW IF NOT EXISTS {database}.reward_by_version AS
SELECT
    run, mode, version, count() AS rollouts, avg(reward) AS mean_reward, stddevPop(reward) AS reward_spread,
    min(reward) AS worst, max(reward) AS best
FROM
(
    SELECT r.run AS run, r.mode AS mode, r.reward AS reward, c.version AS version
    FROM {database}.rollouts AS r
    INNER JOIN
    (
        SELECT run, rollout, execution, max(version_max) AS version
        FROM {database}.model_calls GROUP BY run, rollout, execution
    ) AS c ON r.run = c.run AND r.rollout = c.rollout AND r.execution = c.execution
    WHERE r.outcome = 'ok'
)
GROUP BY run, mode, version;

-- Per step and token trained on: versions between the one that was trained and the one that made the token.
CREATE VIEW IF NOT EXISTS {database}.staleness AS
SELECT
    run, step, any(version) AS version, count() AS tokens, avg(lag) AS mean_staleness, max(lag) AS max_staleness,
    countIf(lag = 0) / count() AS fresh_share
FROM
(
    SELECT u.run AS run, u.step AS step, u.version AS version, toInt64(u.version) - 1 - token_version AS lag
    FROM {database}.training_uses AS u
    INNER JOIN {database}.model_calls AS c ON u.run = c.run AND u.rollout = c.rollout AND u.execution = c.execution
    ARRAY JOIN c.token_versions AS token_version
    WHERE u.trained
)
GROUP BY run, step;

-- Published, and never ended: must stay empty once the queue is.
CREATE VIEW IF NOT EXISTS {database}.lost_rollouts AS
SELECT run, task, rollout, sample, mode, published FROM {database}.tasks
WHERE (run, rollout) NOT IN (SELECT run, rollout FROM {database}.rollouts);

-- Must always be empty.
CREATE VIEW IF NOT EXISTS {database}.trained_twice AS
SELECT run, model, rollout, groupArray(step) AS steps FROM {database}.training_uses WHERE trained
GROUP BY run, model, rollout HAVING count() > 1;
