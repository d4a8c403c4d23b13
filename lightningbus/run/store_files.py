"""``python -m lightningbus.run.store_files DIRECTORY``: SQL on a finished run's files, until standard input closes.

Prints the address, or ``error: `` and a sentence. A process of its own keeps ClickHouse out of a notebook's process,
where only one directory could be open.
"""

import asyncio
import sys
from pathlib import Path

from store.embedded.engine import EngineBusy
from store.service import serve_readonly

ERROR = "error: "


async def serve(directory: Path) -> None:
    """Serve the store in ``directory`` until standard input closes."""
    try:
        async with serve_readonly(directory) as url:
            print(url, flush=True)
            await asyncio.to_thread(sys.stdin.read)
    except EngineBusy as error:
        print(f"{ERROR}{error}", flush=True)


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
