"""``make bench``: every benchmark of the system's speed, one after the other, and the table of what they measured."""

import argparse
import re
import time
from pathlib import Path

from benchmarks import before_after, dispatch, publish, startup
from benchmarks.gateway import __main__ as gateway
from benchmarks.results import machine, read, table
from benchmarks.rollouts import latency, peers, scale
from benchmarks.store import call_storage, ingest, regrade
from benchmarks.weights import __main__ as weights
from benchmarks.workloads import __main__ as workloads

PAGE = Path(__file__).with_name("README.md")
NAMES = (
    "workloads",
    "peers",
    "ingest",
    "regrade",
    "latency",
    "gateway",
    "scale",
    "weights",
    "call_storage",
    "publish",
    "dispatch",
    "startup",
)


def table_of(name: str) -> str:
    """The table of a benchmark's results, as the page has it."""
    return table(read(name))


def rewrite(page: str, measured_on: str | None = None) -> str:
    """The page with every table made anew, and where they were measured if that is said."""
    for name in NAMES:
        before, begin, rest = page.partition(f"<!-- bench {name}: begin -->")
        _, end, after = rest.partition(f"<!-- bench {name}: end -->")
        page = f"{before}{begin}\n{table_of(name)}\n{end}{after}"
    if measured_on:
        page = re.sub(r"<!-- machine -->.*", f"<!-- machine --> {measured_on}", page)
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", type=Path, help="interpreter of an environment with agentlightning 0.3")
    parser.add_argument("--peer-v1", type=Path, help="interpreter of an environment with agentlightning 1.0")
    parser.add_argument("--only", default="", help=f"some of {', '.join(NAMES)}, with commas")
    parser.add_argument("--work", type=Path, default=Path("runs/bench"))
    options = parser.parse_args()
    has_peers = options.peer is not None and options.peer_v1 is not None
    wanted = options.only.split(",") if options.only else [name for name in NAMES if name != "peers" or has_peers]
    if "peers" in wanted and not has_peers:
        parser.error("peers needs --peer and --peer-v1")
    runs = {
        "workloads": workloads.main,
        "peers": lambda: peers.main(options.peer, options.peer_v1),
        "ingest": ingest.main,
        "regrade": regrade.main,
        "latency": latency.main,
        "gateway": gateway.main,
        "scale": scale.main,
        "call_storage": call_storage.main,
        "publish": publish.main,
        "dispatch": dispatch.main,
        "startup": startup.main,
        "weights": lambda: weights.main(options.work.resolve()),
    }
    started = time.monotonic()
    for name in wanted:
        print(f"[{time.monotonic() - started:.0f} s] {name}", flush=True)
        runs[name]()
        PAGE.write_text(rewrite(PAGE.read_text(), machine()))
    print(before_after.compare(wanted))
    print(f"all of it in {time.monotonic() - started:.0f} s; the table is in {PAGE}")


if __name__ == "__main__":
    main()
