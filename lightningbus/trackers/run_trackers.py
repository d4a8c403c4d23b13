"""The trackers of a run, while it runs."""

import asyncio
import json
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from lightningbus.store.clickhouse.client import connect
from lightningbus.trackers.base import TrackedRun, Tracker
from lightningbus.trackers.follower import Follower, PointJournal
from lightningbus.trackers.settings import TrackerSettings
from lightningbus.trackers.store_points import Point, PointReader

log = logging.getLogger(__name__)

CLASSES = {
    "jsonl": "JsonlTracker",
    "tensorboard": "TensorBoardTracker",
    "wandb": "WandbTracker",
    "mlflow": "MlflowTracker",
    "trackio": "TrackioTracker",
}
FINISH_SECONDS = 60.0
"""Longest wait at the end for trackers that are slow."""


@asynccontextmanager
async def follow_run(
    directory: Path,
    settings: TrackerSettings,
    find_store: Callable[[], tuple[str, str]],
    config: Mapping[str, Any],
    max_staleness: int,
    models: Sequence[str],
) -> AsyncIterator[None]:
    """Log the run of a directory to its trackers while the block runs.

    ``find_store`` returns address and database, the address empty before the store is up.
    ``models`` are the trained ones. Points that a tracker did not take before the end are logged when the run is
    resumed.
    """
    state = directory / "trackers"
    if settings.enabled:
        state.mkdir(exist_ok=True)
    followers = []
    for name in settings.enabled:
        run = TrackedRun(directory.name, _read_id(state), directory, config)
        reader = PointReader(directory.name, max_staleness, models)

        def open_tracker(name: str = name, run: TrackedRun = run) -> Tracker:
            kind = getattr(import_module(f"lightningbus.trackers.{name}"), CLASSES[name])
            tracker: Tracker = kind(run, **getattr(settings, name).model_dump())
            return tracker

        def read_points(is_over: bool, last_steps: Mapping[str, int], reader: PointReader = reader) -> Iterable[Point]:
            address, database = find_store()
            return reader.read(connect(address, database), is_over=is_over, last_steps=last_steps) if address else ()

        followers.append(Follower(name, open_tracker, read_points, PointJournal(state / f"{name}.json")))
    for follower in followers:
        follower.start()
    is_over = False
    try:
        yield
        is_over = True
    finally:
        for follower in followers:
            follower.finish(is_over=is_over)
        await asyncio.gather(*(asyncio.to_thread(follower.join, FINISH_SECONDS) for follower in followers))
        for follower in followers:
            if follower.is_alive():
                log.warning("%s did not take all points within %g s", follower.name, FINISH_SECONDS)


def _read_id(state: Path) -> str:
    """Read the id by which trackers know the run; make it at its first start."""
    path = state / "id.json"
    if not path.exists():
        path.write_text(json.dumps(secrets.token_hex(8)))
    return str(json.loads(path.read_text()))
