"""``make bench-kv``: what a swap amid an answer does to the log-probabilities that are recorded.

Streams are half made when the weights change. With ``keep`` the tokens before the swap stay in the KV cache as the old
weights computed them, so what comes after is sampled by neither version; with ``recompute`` they are computed anew.
"""

import argparse
import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.weights.swaps import CONTEXT, CPU_ENGINE, EXAMPLE, measure

RESULTS = Path(__file__).resolve().parents[1] / "results" / "kv_cache.json"
POLICIES = ("auto", "keep", "recompute")
SIZES = {"one step at 1e-6": 1e-6, "one step at 4e-4": 4e-4, "eight steps at 4e-4": 3.2e-3, "far off": 2e-2}
"""Standard deviation of what is added to every weight."""


def table(results: list[dict[str, Any]]) -> str:
    """One line per update and policy."""
    lines = [
        "| update | share of the norm | policy | k3 before it | k3 after | largest difference | longest gap, ms |",
        "|---|---|---|---|---|---|---|",
    ]
    for item in sorted(results, key=lambda item: (item["deviation"], item["policy"])):
        lines.append(
            f"| {item['update']} | {item['change']:.1e} | {item['policy']} | {item['k3_before']:.1e} "
            f"| {item['k3_after']:.1e} | {item['largest_after']:.1e} | {item['pause_ms']:.0f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("runs/bench-kv"))
    work = parser.parse_args().work.resolve()
    model = work / "model"
    if not (model / "model.safetensors").exists():
        command = [sys.executable, str(EXAMPLE / "model.py"), "--out", str(model), "--steps", "200"]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
        config = json.loads((model / "config.json").read_text())  # long answers leave time for a swap amid them
        (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": CONTEXT}))
    results = [item for policy in POLICIES for item in asyncio.run(measure(policy, model, work, CPU_ENGINE, SIZES))]
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print(table(results))


if __name__ == "__main__":
    main()
