"""The mean rewards of the training steps that the store has."""

from clickhouse_connect.driver.client import Client

STEP_REWARDS = """
SELECT model, step, metrics['reward/mean'] FROM training_steps
WHERE run_id = {run_id:String} AND mapContains(metrics, 'reward/mean')
"""


def read_step_rewards(client: Client, run: str) -> dict[str, dict[int, float]]:
    """Read the mean reward of each training step of a run, by model, then by step; raises `ClickHouseError`."""
    rewards: dict[str, dict[int, float]] = {}
    for model, step, reward in client.query(STEP_REWARDS, parameters={"run_id": run}).result_rows:
        rewards.setdefault(model, {})[step] = reward
    return rewards
