"""Tasks of Harbor without containers: those whose Dockerfile only copies files, in a sandbox of this machine."""

import asyncio
import json
import math
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .harbor_sandbox import run_in_sandbox
from .harbor_task import ContainerRequiredError, HarborTask, read_task

PROMPT = (
    "You work in a Linux shell without a network. Write the commands of a turn in one ```bash block. You then read "
    "what they print. Each block starts in the same directory; files stay, variables do not. When you are done, "
    "answer without a block."
)
BLOCK = re.compile(r"```(?:bash|sh)?[ \t]*\n(.*?)```", re.DOTALL)
REWARD_TEXT, REWARD_JSON = "reward.txt", "reward.json"


class Adapter:
    """A task's directory, or a directory of such directories.

    ``skip`` leaves out the tasks that need a container, instead of refusing them all.
    """

    is_endless = False

    def __init__(self, name: str, arguments: dict[str, Any]) -> None:
        known = {"prompt", "max_turns", "max_tokens", "command_seconds", "skip"}
        if unknown := set(arguments) - known:
            raise ValueError(f"no such argument: {', '.join(unknown)}; known are {', '.join(sorted(known))}")
        self._directory = Path(name)
        self._prompt: str = arguments.get("prompt", PROMPT)
        self._max_turns: int = arguments.get("max_turns", 30)
        self._max_tokens: int | None = arguments.get("max_tokens")
        self._command_seconds: float = arguments.get("command_seconds", 60.0)
        self._skips = bool(arguments.get("skip", False))

    def tasks(self, split: str) -> Iterator[dict[str, Any]] | None:
        """Yield the directories whose tests and solution passed a trial here; there are no held-out ones."""
        if split != "train":
            return None
        if (self._directory / "task.toml").exists():
            directories = [self._directory]
        else:
            directories = sorted(file.parent for file in self._directory.glob("*/task.toml"))
        if not directories:
            raise ValueError(f"{self._directory} has no task.toml, nor has a directory in it")
        return self._try_tasks(directories)

    def _try_tasks(self, directories: list[Path]) -> Iterator[dict[str, Any]]:
        for directory in directories:
            try:
                with tempfile.TemporaryDirectory() as folder:
                    asyncio.run(try_task(read_task(directory), Path(folder)))
            except ContainerRequiredError as error:
                if not self._skips:
                    reason = f"{directory.name} cannot run without a container: {error}"
                    raise ValueError(f"{reason}; --arg skip=true leaves out such tasks") from None
                continue
            yield {"id": directory.name, "input": {"task": str(directory)}}

    async def rollout(self, task: dict[str, Any], base_url: str, api_key: str, model: str) -> dict[str, Any]:
        """Run the model's commands until it writes none, then the task's tests; return their reward."""
        from openai import AsyncOpenAI

        harbor = read_task(Path(task["task"]))
        limits: dict[str, Any] = {} if self._max_tokens is None else {"max_tokens": self._max_tokens}
        num_commands = 0
        with tempfile.TemporaryDirectory() as folder:
            root = await asyncio.to_thread(make_root, harbor, Path(folder))
            messages: list[Any] = [{"role": "system", "content": self._prompt}] if self._prompt else []
            messages.append({"role": "user", "content": harbor.instruction})
            is_late = False
            try:
                async with (
                    asyncio.timeout(harbor.agent_seconds),
                    AsyncOpenAI(base_url=base_url, api_key=api_key, timeout=None) as client,
                ):
                    for _ in range(self._max_turns):
                        answer = await client.chat.completions.create(model=model, messages=messages, **limits)
                        text = answer.choices[0].message.content or ""
                        blocks = BLOCK.findall(text)
                        if not blocks:
                            break
                        num_commands += 1
                        status, output = await run_in_sandbox(
                            root, "\n".join(blocks), harbor.workdir, harbor.env, {}, self._command_seconds
                        )
                        note = (
                            f"[no end within {self._command_seconds:g} s]" if status is None else f"[status {status}]"
                        )
                        messages.append({"role": "assistant", "content": text})
                        messages.append({"role": "user", "content": f"{output}{note}"})
            except TimeoutError:
                is_late = True  # like Harbor, test the state reached so far
            reward, metrics = await verify(harbor, root)
        return {"reward": reward, "metrics": {**metrics, "commands": num_commands, "timed_out": float(is_late)}}


def make_root(task: HarborTask, folder: Path) -> Path:
    """Make the directories that a sandbox can write, with the task's files and an ``/etc`` with one user."""
    root = folder / "root"
    task.copy_files(root)
    (root / "etc").mkdir(exist_ok=True)
    for name, line in {"passwd": "root:x:0:0:root:/root:/bin/bash", "group": "root:x:0:"}.items():
        if not (root / "etc" / name).exists():
            (root / "etc" / name).write_text(f"{line}\n", encoding="utf-8")
    make_logs(root)
    return root


def make_logs(root: Path) -> Path:
    """Make an empty ``/logs`` with Harbor's directories; return the verifier's."""
    shutil.rmtree(root / "logs", ignore_errors=True)
    for name in ("agent", "artifacts", "verifier"):
        (root / "logs" / name).mkdir(parents=True)
    return root / "logs" / "verifier"


async def verify(task: HarborTask, root: Path) -> tuple[float, dict[str, float]]:
    """Run the task's tests on the present files; return the reward, and all figures that the tests wrote."""
    logs = make_logs(root)  # drops files that the model wrote there
    status, output = await run_in_sandbox(
        root, "bash /tests/test.sh", task.workdir, {**task.env, **task.verifier_env},
        {"/tests": task.directory / "tests"}, task.verifier_seconds,
    )  # fmt: skip
    try:
        return read_reward(logs)
    except ValueError as error:
        how = f"no end within {task.verifier_seconds:g} s" if status is None else f"status {status}"
        last = (output.strip().splitlines() or ["nothing printed"])[-1][:300]
        raise RuntimeError(f"tests/test.sh: {error} ({how}: {last})") from None


def read_reward(logs: Path) -> tuple[float, dict[str, float]]:
    """Read the reward that the tests wrote, as Harbor does; raise `ValueError`."""
    files = [file for file in (logs / REWARD_JSON, logs / REWARD_TEXT) if file.is_file() and not file.is_symlink()]
    if not files:
        raise ValueError(f"it wrote neither {REWARD_JSON} nor {REWARD_TEXT} to /logs/verifier")
    value = json.loads(files[0].read_text(encoding="utf-8"))
    figures = value if isinstance(value, dict) else {"reward": value}
    if not figures or not all(isinstance(figure, int | float) and math.isfinite(figure) for figure in figures.values()):
        raise ValueError(f"{files[0].name} has no finite number")
    if "reward" not in figures and len(figures) > 1:
        raise ValueError(f"{files[0].name} has several figures, and none is called reward")
    reward = figures.get("reward", next(iter(figures.values())))
    return float(reward), {name: float(figure) for name, figure in figures.items()}


async def try_task(task: HarborTask, folder: Path) -> None:
    """Run the tests on the untouched task, then on its own solution.

    Raises `ContainerRequiredError` if the solution earns nothing.
    """
    if shutil.which("bwrap") is None:
        raise ContainerRequiredError("bubblewrap (bwrap) is not installed on this machine")
    try:
        before, _ = await verify(task, make_root(task, folder / "untouched"))
        solution = task.directory / "solution"
        if not (solution / "solve.sh").is_file():
            return
        root = make_root(task, folder / "solved")
        status, output = await run_in_sandbox(
            root, "bash /solution/solve.sh", task.workdir, {**task.env, **task.solution_env}, {"/solution": solution},
            task.agent_seconds or task.verifier_seconds,
        )  # fmt: skip
        after, _ = await verify(task, root)
    except RuntimeError as error:
        raise ContainerRequiredError(str(error)) from None
    if after <= before:
        last = (output.strip().splitlines() or ["nothing printed"])[-1][:300]
        raise ContainerRequiredError(
            f"its own solution has reward {after:g} here, as without it (status {status}: {last})"
        )
