"""A ClickHouse server for faults: the embedded engine in a process of its own. ``python -m … DIRECTORY PORT``."""

import asyncio
import sys
from pathlib import Path

from lightningbus.store.embedded.serving import serve_embedded


async def main() -> None:
    async with serve_embedded(Path(sys.argv[1]), port=int(sys.argv[2])) as (_, url):
        print(url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
