"""The wait for a node whose tokens are not too old to train on."""

from lightningbus.bus.fleet.heartbeats import Fleet
from lightningbus.bus.fleet.node_state import is_ready


async def wait_for_version(nodes: Fleet, model: str, oldest: int) -> None:
    """Wait until a node serves a version of a model, or a newer one."""
    while not any(
        is_ready(beat.state) and beat.model == model and (beat.version or 0) >= oldest for beat in nodes.members()
    ):
        await nodes.wait_for_change()
