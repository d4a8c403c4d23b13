"""Agents of the benchmarks that call no model: what is measured is everything around them."""

import asyncio
import time
from typing import Any


async def stamps(task: dict[str, Any], endpoint: Any) -> dict[str, float]:
    """Says how long its task took to come, in milliseconds."""
    return {"reward": 1.0, "waited": (time.time_ns() - task["sent"]) / 1e6}


async def sleeps(task: dict[str, Any], endpoint: Any) -> float:
    """Does nothing for ``task["seconds"]``."""
    await asyncio.sleep(task["seconds"])
    return 1.0
