"""Attempts as they end, read off the bus beside everybody else: nothing is stored for it, nobody waits for it."""

import asyncio
import sys
from datetime import UTC, datetime
from typing import Any

from nats.aio.msg import Msg
from rich.text import Text

from common.printable import printable_json
from lightningbus.run.discovery import connect
from lightningbus.run.role_process import on_stop_signals
from lightningbus.run.terminal import output
from schemas import subjects
from schemas.codec import DecodeError, decode
from schemas.spans import SpanBatch

COLOURS = {"ok": "green", "preempted": "dim"}


async def tail_rollouts(given: str | None, run: str, outcome: str, as_json: bool, count: int | None) -> None:
    """Print until asked to stop, or until ``count`` have been printed; ``given`` is where the bus is, if said."""
    stop = asyncio.Event()
    on_stop_signals(asyncio.get_running_loop(), stop)
    console = output()
    seen: set[str] = set()  # a publisher that heard no acknowledgement sends again

    async def heard(message: Msg) -> None:
        try:
            batch = decode(SpanBatch, message.data)
        except DecodeError:
            return  # not an attempt's: a task, a training step, an alarm
        if batch.end is None or batch.execution_id in seen or stop.is_set():
            return
        if (run and batch.run_id != run) or (outcome and batch.end.outcome != outcome):
            return
        seen.add(batch.execution_id)
        said = summarize(batch)
        if as_json:
            print(printable_json(said), flush=True)
        else:
            console.print(format_line(said))
        if count is not None and len(seen) >= count:
            stop.set()

    async with connect(given, "tail") as bus:
        for mode in ("train", "eval"):
            await bus.nc.subscribe(subjects.rollout(mode), cb=heard)
        await bus.nc.flush()
        print("following; Ctrl-C stops", file=sys.stderr, flush=True)
        await stop.wait()


def summarize(batch: SpanBatch) -> dict[str, Any]:
    """What is worth knowing of an attempt that ended."""
    assert batch.end is not None
    end, usage = batch.end, batch.end.usage
    return {
        "ended": datetime.fromtimestamp(end.ended_ns / 1e9, UTC).isoformat(timespec="milliseconds"),
        "run": batch.run_id,
        "rollout": batch.rollout_id,
        "attempt": batch.attempt,
        "mode": batch.mode,
        "runner": batch.runner,
        "outcome": end.outcome,
        "reward": end.reward,
        "seconds": (end.ended_ns - end.started_ns) / 1e9,
        "calls": usage.num_calls,
        "tokens": usage.response_tokens,
        "versions": [usage.min_weight_version, usage.max_weight_version],
        "error": end.error,
    }


def format_line(said: dict[str, Any]) -> Text:
    """One attempt in a line."""
    reward = "" if said["reward"] is None else f"{said['reward']:.3g}"
    low, high = said["versions"]
    versions = "" if high is None else f"v{high}" if low == high else f"v{low}–{high}"
    again = f" attempt {said['attempt']}" if said["attempt"] > 1 else ""
    shown = Text(f"{said['ended'][11:19]}  {said['run']}  {said['rollout']:<28}  ")
    shown.append(f"{said['outcome']:<11}", COLOURS.get(said["outcome"], "red"))
    shown.append(
        f"  reward {reward:<5}  {said['seconds']:7.3f} s  {said['calls']:>3} calls  {said['tokens']:>6} tokens"
    )
    shown.append(f"  {versions:<7}{again}  {said['error'][:120]}".rstrip())
    return shown
