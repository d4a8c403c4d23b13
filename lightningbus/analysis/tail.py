"""Attempts as they end, read off the bus beside all other readers: nothing is stored, and no reader is delayed."""

import asyncio
import os
import sys
from datetime import UTC, datetime
from typing import Any

from nats.aio.msg import Msg
from rich.text import Text

from lightningbus.common.printable import printable_json
from lightningbus.run.display.terminal import output
from lightningbus.run.processes.role_process import on_stop_signals
from lightningbus.run.run_directory.directory import RunDirectory
from lightningbus.run.run_directory.discovery import connect
from lightningbus.schemas import subjects
from lightningbus.schemas.codec import DecodeError, decode
from lightningbus.schemas.spans import SpanBatch
from lightningbus.schemas.text import shorten_line

MAX_ERROR_CHARS = 120
COLOURS = {"ok": "green", "preempted": "dim"}


async def tail_rollouts(
    url: str | None, run: str, outcome: str, as_json: bool, count: int | None, directory: RunDirectory | None = None
) -> None:
    """Print attempts until asked to stop, or until ``count`` have been printed.

    The bus is at ``url``, else that of the run of a ``directory``, else the one that is up here.
    """
    stop = asyncio.Event()
    on_stop_signals(asyncio.get_running_loop(), stop)
    console = output()
    seen: set[str] = set()  # a publisher that heard no acknowledgement sends again

    async def on_message(message: Msg) -> None:
        try:
            batch = decode(SpanBatch, message.data)
        except DecodeError:
            return  # not an attempt's: a task, a training step, an alert
        if batch.end is None or batch.execution_id in seen or stop.is_set():
            return
        if (run and batch.run_id != run) or (outcome and batch.end.outcome != outcome):
            return
        seen.add(batch.execution_id)
        summary = summarize(batch)
        try:
            if as_json:
                print(printable_json(summary), flush=True)
            else:
                console.print(format_line(summary))
        except (BrokenPipeError, SystemExit):  # the reader, such as `head`, has read enough; rich asks to exit then
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is buffered has no reader either
            stop.set()
        if count is not None and len(seen) >= count:
            stop.set()

    async with connect(url, "tail", run=directory) as bus:
        for mode in ("train", "eval"):
            await bus.nc.subscribe(subjects.rollout(mode), cb=on_message)
        await bus.nc.flush()
        print("following; Ctrl-C stops", file=sys.stderr, flush=True)
        await stop.wait()


def summarize(batch: SpanBatch) -> dict[str, Any]:
    """Summarise an attempt that ended."""
    assert batch.end is not None
    end, usage = batch.end, batch.end.usage
    return {
        "ended": datetime.fromtimestamp(end.ended_ns / 1e9, UTC).isoformat(timespec="milliseconds"),
        "run": batch.run_id,
        "rollout": batch.rollout_id,
        "attempt": batch.attempt,
        "mode": batch.mode,
        "evaluation": batch.evaluation,
        "runner": batch.runner,
        "outcome": end.outcome,
        "reward": end.reward,
        "seconds": (end.ended_ns - end.started_ns) / 1e9,
        "calls": usage.num_calls,
        "tokens": usage.response_tokens,
        "versions": [usage.min_weight_version, usage.max_weight_version],
        "error": end.error,
    }


def format_line(summary: dict[str, Any]) -> Text:
    """Format one attempt as a line."""
    reward = "" if summary["reward"] is None else f"{summary['reward']:.3g}"
    low, high = summary["versions"]
    versions = "" if high is None else f"v{high}" if low == high else f"v{low}–{high}"
    again = f" attempt {summary['attempt']}" if summary["attempt"] > 1 else ""
    text = Text(f"{summary['ended'][11:19]}  {summary['run']}  {summary['rollout']:<28}  ")
    text.append(f"{summary['outcome']:<11}", COLOURS.get(summary["outcome"], "red"))
    text.append(
        f"  reward {reward:<5}  {summary['seconds']:7.3f} s  {summary['calls']:>3} calls  {summary['tokens']:>6} tokens"
    )
    text.append(f"  {versions:<7}{again}  {shorten_line(summary['error'], MAX_ERROR_CHARS)}".rstrip())
    return text
