"""An inference node with the faults of the node in it: takes the arguments of ``lightningbus``."""

import asyncio
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.serving_faults.catalogue import acts
from tests.serving_faults.engine import HALF

UPDATE_SECONDS = 1.0
"""How long an update lasts during which requests are answered."""


def install() -> None:
    """Patch the node's gateway, its LoRA manager and its loading of weights."""
    import lightningbus.inference.gateway.served_model as served
    import lightningbus.inference.lora.manager as lora
    from lightningbus.inference.engine.base import BroadcastContent, WeightSource
    from lightningbus.inference.engine.peft import write_directory
    from lightningbus.inference.gateway.version_stamp import stamp_event
    from lightningbus.inference.node_model import NodeModel

    load = NodeModel._load_in_place
    written: list[Path] = []

    def stamp_older(event: bytes, version: int, *arguments: Any) -> bytes:
        wrong = version > 0 and acts("version mislabelled")
        return stamp_event(event, version - 1 if wrong else version, *arguments)

    def write_other(adapters: Path, directory: Path, max_rank: int) -> None:
        swapped = written[-1] if written and acts("adapter swapped") else adapters
        write_directory(swapped, directory, max_rank)
        written.append(adapters)

    async def load_while_serving(
        self: NodeModel, source: WeightSource, version: int, change: float | None = None, fingerprint: str = ""
    ) -> float:
        is_fault = acts("requests answered during an update")
        if is_fault and not isinstance(source, BroadcastContent) and len(source) == 1:
            half = source[0].with_name(f"{source[0].stem}{HALF}")
            half.unlink(missing_ok=True)
            half.hardlink_to(source[0])
            await load(self, [half], version, None)
            await asyncio.sleep(UPDATE_SECONDS)
        return await load(self, source, version, change, fingerprint)

    served.stamp_event = stamp_older  # type: ignore[attr-defined, assignment]
    lora.write_directory = write_other  # type: ignore[attr-defined]
    NodeModel._load_in_place = load_while_serving  # type: ignore[method-assign]


if __name__ == "__main__":
    install()
    from lightningbus.cli.app import main

    main()
