"""Sessions of real coding agents, and what the learner would see of them."""

import asyncio
import os
import signal
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from lightningbus.common.observability import metrics
from lightningbus.learner.transitions.prefix_tree import Detokenize, find_parents, find_prefix_breaks
from lightningbus.learner.transitions.transitions import build_transitions
from lightningbus.schemas.spans import ModelCall
from tests.polling import HANG_SECONDS
from tests.runners.test_dialects import Desk

CLIS = Path(os.environ.get("CODING_CLIS", "/nonexistent"))
"""Directory in which the agents are installed, as docs/coding-agents.md says."""
INTERRUPT_SECONDS = 20.0
"""A program that has not ended by then is interrupted again."""
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c49444154789c63f8ffff3f0005fe02fe0def46b8"
    "0000000049454e44ae426082"
)


def make_directory(path: Path) -> Path:
    """Make a small repository with a picture, and a home of the agent's own beside it."""
    work = path / "work"
    work.mkdir()
    (path / "home").mkdir()
    (work / "a.txt").write_text("one\n")
    (work / "long.txt").write_text("".join(f"line {number} says nothing of note\n" for number in range(300)))
    (work / "a.png").write_bytes(PNG)
    subprocess.run(["git", "init", "-q"], cwd=work, check=True)
    return path


def claude(desk: Desk, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """Claude Code's command and variables."""
    command = [
        str(CLIS / "node_modules" / ".bin" / "claude"), "--model", "policy", "--permission-mode", "acceptEdits",
        "--allowedTools", "Bash,Read,Edit", *arguments,
    ]  # fmt: skip
    variables = {
        "ANTHROPIC_BASE_URL": desk.url, "ANTHROPIC_API_KEY": desk.key,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_TELEMETRY": "1",
    }  # fmt: skip
    return command, variables


def codex(desk: Desk, compact_at: int, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """Codex CLI's command and variables; ``compact_at`` tokens make it summarise."""
    provider = f'{{name="lightningbus", base_url="{desk.url}/v1", env_key="OPENAI_API_KEY", wire_api="responses"}}'
    *words, prompt = arguments
    command = [
        str(CLIS / "node_modules" / ".bin" / "codex"), "exec", *words,
        "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "-m", "policy",
        "-c", 'model_provider="lightningbus"', "-c", f"model_providers.lightningbus={provider}",
        "-c", f"model_auto_compact_token_limit={compact_at}", prompt,
    ]  # fmt: skip
    return command, {"OPENAI_API_KEY": desk.key}


async def run(
    command: list[str],
    directory: Path,
    interrupt_at: asyncio.Event | None = None,
    seconds: float = HANG_SECONDS,
    **variables: str,
) -> tuple[int, str]:
    """Run a CLI, without a network but the gateway; interrupt it at an event if wanted. Its status and output."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(directory / "home"), **variables}
    process = await asyncio.create_subprocess_exec(
        *command, cwd=directory / "work", env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )  # fmt: skip
    reading = asyncio.create_task(process.communicate())
    try:
        async with asyncio.timeout(seconds):
            if interrupt_at is not None:
                waiting = asyncio.create_task(interrupt_at.wait())
                await asyncio.wait({waiting, reading}, return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
                while not reading.done():  # as its user does: one that starts a program may miss the first
                    if process.returncode is None:
                        process.send_signal(signal.SIGINT)
                    await asyncio.wait({reading}, timeout=INTERRUPT_SECONDS)
            output, _ = await reading
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode is not None
    return process.returncode, output.decode(errors="replace")


@dataclass(frozen=True)
class Session:
    """What became of a session's calls."""

    calls: list[ModelCall]
    refused: Counter[str]
    """Requests of the agent that were not answered by 200, by status."""
    reasons: Counter[str]
    """Reasons of calls without tokens."""
    num_paths: int
    """Conversations that extend no other, by tokens."""
    breaks: Counter[str]
    recomputed: int
    """Tokens of prompts that break a prefix."""


def gateway_statuses() -> Counter[str]:
    """Requests that gateways of this process have answered, by status."""
    (metric,) = metrics.gateway_requests.collect()
    return Counter(
        {sample.labels["status"]: int(sample.value) for sample in metric.samples if sample.name.endswith("_total")}
    )


def judge(desk: Desk, detokenize: Detokenize, before: Counter[str]) -> Session:
    """Look at the record as the learner does."""
    after = gateway_statuses()
    after.subtract(before)
    calls = [each for each in desk.calls if each.response_ids]
    transitions = build_transitions(calls)
    parents = find_parents(transitions)
    breaks = find_prefix_breaks(calls, parents, detokenize)
    return Session(
        calls,
        +Counter({status: count for status, count in after.items() if status != "200"}),
        Counter(span.status_message for span in desk.spans if span.call is not None and not span.call.response_ids),
        sum(parent is None for parent in parents),
        Counter(breaks.values()),
        sum(len(transitions[index].prompt_ids) for index in breaks),
    )
