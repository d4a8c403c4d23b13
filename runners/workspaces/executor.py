"""Runs each rollout of an agent in a workspace of its own, and grades it there."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightningbus.common.observability.faults import count_fault
from lightningbus.runners.agent.executors import AgentError, AgentExecutor, RolloutInfo
from lightningbus.runners.agent.launcher import AgentLauncher, AgentStartError, Launcher
from lightningbus.runners.agent.reward_function import RewardTimeoutError
from lightningbus.runners.recording.attempt import AttemptRecorder
from lightningbus.runners.workspaces.artifacts import (
    DIFF_NAME,
    WorkspaceRecord,
    make_artifact,
    pick_artifacts,
    record_workspace,
)
from lightningbus.runners.workspaces.errors import WorkspaceFailedError, WorkspaceRefusedError
from lightningbus.runners.workspaces.files.changes import Change, make_diff
from lightningbus.runners.workspaces.grading import PASSED, apply_patch, grade, run_program
from lightningbus.runners.workspaces.pool import WorkspacePool
from lightningbus.runners.workspaces.providers import Workspace
from lightningbus.runners.workspaces.specification import WorkspaceSpec, parse_workspace, without_workspace
from lightningbus.schemas.spans import PATCH_APPLIES

TRIAL_SECONDS = 60.0
MakeAgent = Callable[[Launcher], AgentExecutor]


class WorkspaceExecutor(AgentExecutor):
    """One slot: a workspace, an agent's process in it and a grade, for one rollout after the other."""

    def __init__(self, pool: WorkspacePool, launcher: AgentLauncher, make_agent: MakeAgent) -> None:
        """Prepare; ``make_agent`` makes the executor of one rollout from the launcher of its workspace."""
        self._pool, self._launcher, self._make_agent = pool, launcher, make_agent
        pool.join()
        self._exits = contextlib.AsyncExitStack()
        """Resources of the present rollout: its base, its workspace, its agent."""
        self._workspace: Workspace | None = None
        self._agent: AgentExecutor | None = None
        self._spec = WorkspaceSpec()
        self._record = WorkspaceRecord("")
        self._is_kept = False
        """Whether the diff and the artifacts have been read."""

    async def start(self) -> None:
        """Start the agent in an empty workspace once, to know that it can be; raise `AgentStartError`."""
        if self._pool.is_tried:
            return
        try:
            await self._pool.open()
            await self.prepare({})
            assert self._workspace is not None
            command = self._pool.provider.trial_command()
            ended = await run_program(self._workspace, self._launcher, command, TRIAL_SECONDS, "a trial")
        except (WorkspaceFailedError, WorkspaceRefusedError, RewardTimeoutError) as error:
            raise AgentStartError(f"no workspace can be made as configured: {error}") from error
        finally:
            await self._release()
        if ended.status:
            raise AgentStartError(f"no program can run in a workspace: {ended.describe()}")
        self._pool.is_tried = True

    async def prepare(self, task: Any, rollout_id: str = "") -> None:
        """Make the workspace of a rollout and start its agent in it; raise as `WorkspacePool.using` and `start`."""
        self._spec = parse_workspace(task)
        self._is_kept = False
        self._record = WorkspaceRecord("")
        base = await self._exits.enter_async_context(self._pool.using(self._spec))
        self._workspace = workspace = await self._pool.create(base, self._spec)
        self._exits.push_async_callback(workspace.destroy)
        self._record.method = workspace.method
        self._agent = self._make_agent(workspace.agent_launcher(self._launcher))
        self._exits.push_async_callback(self._agent.stop)
        await self._agent.start()

    async def run(self, task: Any, rollout: RolloutInfo | None = None) -> dict[str, Any]:
        """Run the agent in the workspace that `prepare` made; raise `WorkspaceFailedError` if its sandbox failed."""
        assert self._agent is not None and self._workspace is not None
        try:
            return await self._agent.run(without_workspace(task), rollout)
        except AgentError as error:
            if not self._workspace.has_started_agent():
                raise WorkspaceFailedError(f"the agent was not started by its sandbox: {error}") from error
            raise
        except WorkspaceFailedError as error:
            if reason := await self._workspace.find_agents_fault():
                raise AgentError(reason) from error
            raise

    async def grade(self, task: Any, answer: dict[str, Any]) -> dict[str, Any]:
        """Grade the workspace, if the task has a grader; raise as `lightningbus.runners.workspaces.grading.grade`."""
        assert self._agent is not None and self._workspace is not None
        await self._agent.stop()
        parts: dict[str, float] = {}
        spec, value = self._spec.grade, answer.get("value")
        patch = value.get("patch") if isinstance(value, dict) else None
        if isinstance(patch, str) and spec is not None:
            parts[PATCH_APPLIES] = float(await apply_patch(self._workspace, self._launcher, patch))
        await self._keep()
        if spec is None:
            return answer
        if parts.get(PATCH_APPLIES) == 0:
            return {**answer, "reward": {"rewards": {PASSED: 0.0, **parts}}}
        async with contextlib.AsyncExitStack() as files:
            over = await files.enter_async_context(self._pool.using_files(spec.files)) if spec.files else None
            seconds = self._pool.settings.max_grade_seconds
            parts = {**await grade(self._workspace, self._launcher, spec, over, seconds), **parts}
        return {**answer, "reward": {"rewards": parts}}

    async def finish(self, recorder: AttemptRecorder) -> None:
        """Record what the rollout keeps, and throw its workspace away; no error comes out of it."""
        try:
            try:
                if self._workspace is not None and self._agent is not None:
                    await self._agent.stop()
                    await self._agent.finish(recorder)
                    await self._keep()
                    record_workspace(recorder, self._record)
            finally:
                await self._release()
        except Exception as error:
            count_fault(f"the workspace of {recorder.rollout}", error)

    async def stop(self) -> None:
        """End the agent and remove the workspace; the last slot to stop removes the directory of all."""
        await self._release()
        await self._pool.leave()

    async def _keep(self) -> None:
        if not self._is_kept and self._workspace is not None:
            self._is_kept = True
            try:
                changes = await self._workspace.copy_out()
                await asyncio.to_thread(self._read_artifacts, self._workspace.folder, changes)
            except Exception as error:  # of files as odd as an agent can make them: its reward does not depend on it
                count_fault("the diff of a workspace", error)

    def _read_artifacts(self, folder: Path, changes: list[Change]) -> None:
        max_bytes = self._pool.settings.max_artifact_kib * 1024
        diff, num_not_in_diff = make_diff(folder, changes)
        picked, num_not_kept = pick_artifacts(changes, self._spec.artifacts, max_bytes)
        self._record.artifacts = [*([make_artifact(DIFF_NAME, diff, max_bytes)] if diff else []), *picked]
        self._record.counts = {"changed": len(changes), "not_in_diff": num_not_in_diff, "not_kept": num_not_kept}

    async def _release(self) -> None:
        exits, self._exits = self._exits, contextlib.AsyncExitStack()
        self._workspace = self._agent = None
        await exits.aclose()
