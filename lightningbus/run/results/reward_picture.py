"""The picture of a training job: rewards over weight versions, redrawn as they come."""

import asyncio
from pathlib import Path

from clickhouse_connect.driver.client import Client

from lightningbus.run.errors import UserError
from lightningbus.run.results.plot import plot_rewards
from lightningbus.run.results.results import Results
from lightningbus.store.reports.merged_points import merge_thin_points

PICTURE = "reward.png"
CURVE = (
    "SELECT version, mean_reward, standard_error, rollouts FROM reward_by_version "
    "WHERE run_id = {run_id:String} AND model = {model:String} AND mode = 'train' ORDER BY version"
)


async def draw_rewards(client: Client, directory: Path, results: Results, model: str) -> None:
    """Draw the rewards so far into a run's directory; training rewards are those of ``model``.

    Raises `UserError` where the picture cannot be written, or ClickHouse's errors.
    """
    parameters = {"run_id": results.run, "model": model}
    rows = (await asyncio.to_thread(client.query, CURVE, parameters=parameters)).named_results()
    points = merge_thin_points(rows)
    curve = (
        [point["version"] for point in points],
        [point["mean_reward"] for point in points],
        [point["standard_error"] or 0.0 for point in points],
    )
    what = f"weight versions of {results.model}" if len(results.models) > 1 else "weight versions"
    path = directory / PICTURE
    try:
        await asyncio.to_thread(plot_rewards, path, f"{results.run}: reward over {what}", curve, results.evaluations)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}") from error
