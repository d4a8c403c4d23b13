"""A training job from start to end: how good the model is, training, how good it is then; figures and a picture."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError

from lightningbus.bus.streams.specs import ConsumerSpec, runner_consumer
from lightningbus.bus.weights.registry import WeightRegistry
from lightningbus.common.aio import cancel_and_wait, run_unless
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.run.display.live_view import console
from lightningbus.run.errors import UserError
from lightningbus.run.evaluation.evaluation import Evaluation, format_label
from lightningbus.run.evaluation.held_out import HeldOut, HeldOutSet, build_held_out_request
from lightningbus.run.evaluation.pinned_version import VersionPins, wait_for_evaluations
from lightningbus.run.evaluation.version_turns import Turn, take_turns
from lightningbus.run.jobs.callbacks import Callback, CallbackCaller, Change, ReportedSteps
from lightningbus.run.jobs.children import (
    publish_models,
    start_children,
    wait_for_model,
    wait_for_runner,
    wait_for_trial,
)
from lightningbus.run.jobs.job_learners import JobLearners
from lightningbus.run.jobs.paused_tasks import tasks_paused
from lightningbus.run.jobs.prompt_rounds import PromptRounds, RoundRunner
from lightningbus.run.preflight.job_checks import TrainJob
from lightningbus.run.preflight.process import run_checks_apart
from lightningbus.run.processes.members import is_extra_runner
from lightningbus.run.processes.stack import LocalStack, learner_names, start_stack
from lightningbus.run.results.agent_code import describe_code, list_changes, read_code, record_code
from lightningbus.run.results.base_files import record_base_models
from lightningbus.run.results.best_version import find_best, has_stopped_improving, version_of
from lightningbus.run.results.prompt_files import write_prompts_in_use
from lightningbus.run.results.prompt_round import PromptRound
from lightningbus.run.results.results import COUNTS, UNFINISHED, Results, keep_changes
from lightningbus.run.results.reward_picture import draw_rewards
from lightningbus.run.results.run_record import check_resumable, describe_job, write_record
from lightningbus.run.results.step_rewards import read_step_rewards
from lightningbus.run.results.train_result import JobResult
from lightningbus.run.run_directory.directory import RunDirectory
from lightningbus.run.run_directory.recorded_settings import record_settings
from lightningbus.run.settings.evaluation import EvalSettings
from lightningbus.run.settings.hub_models import check_model_directories
from lightningbus.run.settings.run_file import RunSettings
from lightningbus.run.settings.setting_change import SettingChange, apply_changes, pick_fields
from lightningbus.run.settings.sources import to_fields
from lightningbus.store.clickhouse.client import query_row
from lightningbus.tasks.task_loading import load_tasks

MAX_CHANGES = 5
"""Changed files that are listed."""
SAVE_SECONDS = 5.0
"""Interval at which the seconds of a phase are saved: a job that is killed loses no more of them."""


async def run(
    settings: RunSettings,
    job: TrainJob,
    *,
    resume: bool = False,
    rounds: RoundRunner | None = None,
    callbacks: Sequence[Callback] = (),
) -> JobResult:
    """Run a job by itself, on its own bus or the one its settings name, to its end; prints nothing at the end.

    Before anything starts, all is checked as by a dry run. ``resume``: go on where the run of this name was stopped, in
    its directory. Otherwise an earlier run of this name is moved aside. ``rounds``: optimises prompts too. Raises
    `UserError` when a check, a part or a callback fails for good, or when there is nothing to resume.
    """
    directory = RunDirectory(settings.runs / settings.name)
    description = describe_job(job.learners, job.eval, settings.optimize if rounds is not None else None)
    changes: list[SettingChange] = []
    if resume:
        changes = check_resumable(directory.path, description, min(learner.max_steps for learner in job.learners))
    check_model_directories(settings)
    with directory.reserved():
        await _check(settings)
        with directory.opened(fresh=not resume):
            write_record(directory.path, description)
            await _record_code(directory.path, settings, job)
            if not resume:
                record_base_models(directory.path, job.learners)
            if changes:
                for change in changes:
                    console().print(f"{change.reason}: {json.dumps(change.learner)}", style="dim", highlight=False)
                keep_changes(directory.path, changes)
            record_settings(directory, settings)
            title = f"lightningbus train · {settings.name}"
            async with start_stack(directory, settings.bus, title, settings.policies) as stack:
                return await train(stack, settings, job.learners, job.eval, None, rounds, callbacks)


async def _record_code(directory: Path, settings: RunSettings, job: TrainJob) -> None:
    """Record the code of the run's agents and functions; print what a resumed run finds changed."""
    learners = [learner.model_dump(mode="json") for learner in job.learners]
    before, now = read_code(directory), await asyncio.to_thread(describe_code, settings.runners, learners)
    if before and (changed := list_changes(before, now)):
        names = ", ".join(changed[:MAX_CHANGES]) + (", ..." if len(changed) > MAX_CHANGES else "")
        console().print(f"code changed since the last start: {names}", style="yellow", highlight=False, soft_wrap=True)
    record_code(directory, now)


async def _check(settings: RunSettings) -> None:
    """Make the checks of a dry run, and print what they found; raises `UserError`."""
    screen = console()
    with screen.status("checking model, ports and agent") if screen.is_terminal else contextlib.nullcontext():
        findings = await run_checks_apart(settings)
    for line in findings:
        screen.print(line, style="dim", highlight=False, markup=False, soft_wrap=True)


async def train(
    stack: LocalStack,
    settings: RunSettings,
    learners: Sequence[LearnerSettings],
    heldout: EvalSettings,
    ready: Awaitable[object] | None,
    rounds: RoundRunner | None = None,
    callbacks: Sequence[Callback] = (),
) -> JobResult:
    """Run a job on a bus that is up; its figures lie in the run's directory too, and are the start of a resumed one.

    The first of ``learners`` trains the model that agents call by name. ``ready``: what else has to be there before
    version 0 is published; the other processes start meanwhile.
    Raises `UserError` when a part fails for good.
    """
    async with stack.trackers(settings, learners):
        return await _Training(stack, settings, learners, heldout, rounds, callbacks).run(ready)


class _Training:
    """One start of a training job."""

    def __init__(
        self,
        stack: LocalStack,
        settings: RunSettings,
        learners: Sequence[LearnerSettings],
        heldout: EvalSettings,
        runner: RoundRunner | None,
        callbacks: Sequence[Callback],
    ) -> None:
        self._stack, self._settings, self._heldout = stack, settings, heldout
        self._runner = runner
        self._results = Results.begin(settings, learners, heldout, Results.read(stack.directory.path))
        changed = apply_changes(learners, self._results.changes)
        self._learners = JobLearners(stack.supervisor, learner_names(settings) or ["learner"], changed)
        earlier = ReportedSteps(self._results.reported_steps, self._results.taken_steps)
        self._callbacks = CallbackCaller(callbacks, self._results.run, self._change_settings, earlier)
        self._pause = contextlib.AsyncExitStack()
        """While it is open, runners take no training task."""

    async def run(self, ready: Awaitable[object] | None) -> JobResult:
        """See `train`."""
        async with self._pause:
            return await self._run(ready)

    async def _run(self, ready: Awaitable[object] | None) -> JobResult:
        results, learner = self._results, self._learners.settings[0]
        sets = [
            HeldOutSet(
                build_held_out_request(self._settings, each, learner),
                each,
                load_tasks(each.task_source),
                results.evaluations,
            )
            for each in self._heldout.sets
        ]
        has_turns = self._heldout.has_turns or self._runner is not None
        owns_bus = self._settings.bus.url is None  # other jobs of a bus may share the durables
        if results.num_starts > 1 and has_turns and owns_bus:  # nodes may go back to the version of a turn
            await self._pause.enter_async_context(tasks_paused(self._stack.bus, self._list_consumers()))
        async with self._phase("starting", "starting"):
            self._client = await self._start_children(ready)
            await self._show_earlier_rewards()
            await self._callbacks.begin(self._client)
            models = self._learners.models
            self._pins = VersionPins(self._stack.bus, results.run, models)
            self._held_out = HeldOut(self._stack, self._client, sets, self._pins, self._add_evaluation)
            self._rounds: list[Turn] = []
            if self._runner is not None:
                await self._runner.publish_originals(self._stack.bus)
                self._rounds.append(PromptRounds(
                    self._stack, self._client, results.run, self._pins, self._runner, results.prompt_rounds,
                    self._keep_rounds,
                ))  # fmt: skip
            first = dict.fromkeys(models, 0)
            is_untrained = not self._held_out.is_complete(first) if sets else not results.prompt_rounds
            if is_untrained and (sets or self._rounds):  # else the learners publish it themselves
                self._stack.view.set_phase("publishing version 0")
                await publish_models(self._stack, self._learners.by_name)
            for model in {node.model for node in self._settings.inference if node.frozen}:  # before evaluations' time
                await wait_for_model(self._stack, model, f"node with the frozen model {model!r}")
            await wait_for_runner(self._stack)
        if is_untrained:
            await self._evaluate_newest()
        if self._rounds:
            await self._optimize_prompts()
        with contextlib.suppress(ClickHouseError):  # the store is being started again
            await self._keep_budget()  # an earlier start may have spent it
        if not self._callbacks.stop_reason:
            await self._train()
        await self._note_stop()
        await self._evaluate_newest()
        async with self._phase("counting", "counting"):
            await self._wait_until_stored()
            await self._callbacks.report_new(self._client)
            self._callbacks.end()
            await asyncio.to_thread(results.count, self._client)
            await self._draw()
            await self._write_prompts()
        await self._keep_budget()  # the seconds of all phases are known now
        results.is_finished = True
        results.write(self._stack.directory.path)
        return JobResult(self._stack.directory.path, results.to_figures(), results.evaluations)

    @contextlib.asynccontextmanager
    async def _phase(self, name: str, headline: str) -> AsyncIterator[None]:
        """Show the phase and count its seconds while the block runs."""
        self._stack.view.set_phase(headline)
        last = time.monotonic()

        def save() -> None:
            nonlocal last
            now = time.monotonic()
            self._results.add_seconds(name, now - last)
            last = now
            reported = self._callbacks.reported
            self._results.reported_steps, self._results.taken_steps = reported.by_callbacks, reported.by_loops
            self._results.write(self._stack.directory.path)

        async def keep_saving() -> None:
            while True:
                with contextlib.suppress(UserError):  # a full disk may have room again; the last save raises
                    save()
                await asyncio.sleep(SAVE_SECONDS)

        saving = asyncio.create_task(keep_saving())
        try:
            yield
        finally:
            await cancel_and_wait(saving)
            save()

    @contextlib.asynccontextmanager
    async def _counting_steps(self) -> AsyncIterator[None]:
        """Keep the number of steps and the last reward up to date while the block runs."""

        async def keep_counting() -> None:
            while True:
                await asyncio.sleep(SAVE_SECONDS)
                with contextlib.suppress(ClickHouseError):  # the store is being started again
                    await asyncio.to_thread(self._results.count_steps, self._client)
                    await self._keep_budget()

        counting = asyncio.create_task(keep_counting())
        try:
            yield
        finally:
            await cancel_and_wait(counting)
            with contextlib.suppress(ClickHouseError):  # it is away, or has ended with what the job ends by
                await asyncio.to_thread(self._results.count_steps, self._client)

    async def _keep_budget(self) -> None:
        """Add up the cost, and end training once the budget is spent. Raises `ClickHouseError` without a store."""
        await asyncio.to_thread(self._results.count_cost, self._client, self._settings)
        budget = self._settings.budget
        if budget is not None and (reason := budget.find_overrun(self._results.seconds, self._results.cost or 0.0)):
            self._callbacks.stop(reason)

    async def _optimize_prompts(self) -> None:
        """Run the round that an earlier start left, or the first one."""
        is_over = asyncio.Event()
        is_over.set()
        async with self._phase("optimizing", "optimising prompts"):
            await self._stack.or_child_failure(take_turns(self._stack.bus, self._pins, self._rounds, is_over))
            await self._write_prompts()

    async def _write_prompts(self) -> None:
        """Write the text in use of each prompt that is optimised to the run's directory: the bus ends with the run."""
        optimize = self._settings.optimize
        if self._runner is None or optimize is None:
            return
        self._results.prompts = await write_prompts_in_use(
            self._stack.bus, optimize.agent, optimize.prompts, self._stack.directory.path
        )

    async def _train(self) -> None:
        """Train to the last step; evaluations and rounds of prompt optimisation that are due have ended too."""
        learner, is_over = self._learners.settings[0], asyncio.Event()
        turns: list[Turn] = [*([self._held_out] if self._heldout.has_turns else []), *self._rounds]
        if self._heldout.has_turns:
            await self._end_evaluation()
        await self._pause.aclose()
        size = f"{learner.max_steps} steps of {learner.groups_per_step} x {learner.group_size} rollouts"
        async with self._phase("training", f"training: {size}"), self._counting_steps():
            await self._learners.start()
            if not turns:
                await self._pins.unpin()  # what an earlier start left
                await self._stack.or_child_failure(self._wait_finished())
                return

            async def watch_learners() -> None:
                await self._wait_finished()
                is_over.set()
                await asyncio.Event().wait()

            following = run_unless(watch_learners(), take_turns(self._stack.bus, self._pins, turns, is_over))
            await self._stack.or_child_failure(following)

    async def _end_evaluation(self) -> None:
        """End the evaluation that an earlier start left, before learners train on."""
        versions = await self._held_out.pin_interrupted()
        if versions is None:
            return
        async with self._phase("evaluating", f"held-out tasks under {format_label(versions)}, which were interrupted"):
            await self._held_out.run(versions)
            await self._pins.unpin()
            await self._stack.or_child_failure(self._stack.wait_until_served(await self._pins.find_newest() or {}))

    def _list_consumers(self) -> list[ConsumerSpec]:
        """List the durables by which runners of the job take training tasks."""
        waits = {each.agent_name: each.ack_wait for each in self._settings.runners}
        return [runner_consumer(agent, "train", ack_wait) for agent, ack_wait in waits.items()]

    async def _wait_finished(self) -> None:
        """Wait until the learners have ended by themselves."""
        following = asyncio.create_task(self._callbacks.follow(self._client))
        stopping = asyncio.create_task(self._stop_early())
        try:
            await self._learners.wait_finished(following)
        finally:
            await cancel_and_wait(following, stopping)

    async def _stop_early(self) -> None:
        """End the learners once somebody wants training to end."""
        await self._callbacks.wait_stopped()
        self._stack.view.set_note(f"training ends early: {self._callbacks.stop_reason}")
        await self._learners.stop()

    async def _change_settings(self, change: Change, name: str) -> None:
        """Give a learner other settings from its next step on, and keep them; raise `UserError` if it cannot have them.

        ``name``: the callback that asks for it.
        """
        fields = to_fields(change.learner)
        try:
            before = await self._learners.change(change.model, fields)
        except UserError as error:
            raise UserError(f"callback {name}: {error}") from error
        if before is None:
            return
        reason = f"{name}: {change.reason or json.dumps(fields)}"
        self._results.changes.append(
            SettingChange(
                model=before.model,
                learner=fields,
                before=pick_fields(before.model_dump(mode="json"), fields),
                reason=reason,
                changed_at=datetime.now(UTC),
            )
        )
        self._results.write(self._stack.directory.path)
        self._stack.view.set_note(f"settings change: {reason}")

    async def _note_stop(self) -> None:
        """Keep the reason why training ended early, if steps are left."""
        with contextlib.suppress(ClickHouseError):  # the steps are those of the last count
            await asyncio.to_thread(self._results.count_steps, self._client)
        is_whole = self._results.steps >= self._results.max_steps
        self._results.stop_reason = "" if is_whole else self._callbacks.stop_reason

    async def _evaluate_newest(self) -> None:
        """Evaluate the newest weight version of each model that nodes serve, if there are held-out tasks."""
        if not self._heldout.sets:
            return
        async with self._phase("evaluating", "held-out tasks under the newest version"):
            versions = {
                learner.model: await self._wait_for_version(learner.model) for learner in self._learners.settings
            }
            what = format_label(versions)
            labels = [label for each in self._heldout.sets for label in each.labels]
            self._stack.view.set_phase(f"held-out tasks under {what}: {', then '.join(labels)}")
            await self._held_out.run_all(versions)

    async def _add_evaluation(self, evaluation: Evaluation) -> None:
        """Show and keep an evaluation that has ended."""
        self._results.add_evaluation(evaluation)
        self._results.write(self._stack.directory.path)
        await self._keep_best()
        patience = self._heldout.patience
        if patience is not None and has_stopped_improving(self._results.evaluations, patience, self._heldout.best_by):
            self._callbacks.stop(f"no higher held-out reward in {patience} evaluations (eval.patience)")
        await self._callbacks.report_evaluation(evaluation)
        what = format_label(evaluation.versions)
        self._stack.view.set_note(f"{evaluation.label}, {what}: {evaluation.format_mean()}")
        for warning in filter(None, (evaluation.failures, evaluation.describe_without_call())):
            self._stack.view.warn(f"{evaluation.label}, {what}: {warning}")  # the same will happen in training
        with contextlib.suppress(ClickHouseError):  # the store is being started again; the picture is drawn at the end
            await self._draw()

    async def _keep_best(self) -> None:
        """Let the files of the best version so far stay, of each model whose learner wants that."""
        best = find_best(self._results.evaluations, self._heldout.best_by)
        for learner in self._learners.settings:
            if learner.weights.keep_best and best is not None:
                reason = f"the best so far: held-out reward {best.format_mean()}, {best.label}"
                await self._pins.keep(learner.model, version_of(best, learner.model), reason)

    def _keep_rounds(self, rounds: list[PromptRound]) -> None:
        self._results.prompt_rounds = rounds
        self._results.write(self._stack.directory.path)

    async def _draw(self) -> None:
        """Draw the picture of what is there by now."""
        await draw_rewards(self._client, self._stack.directory.path, self._results, self._settings.main_model)

    async def _wait_for_version(self, model: str) -> int:
        """Return the newest weight version of a model that nodes serve; one that is to be tried has been by then."""
        releases = WeightRegistry(self._stack.bus, model)
        with contextlib.suppress(TimeoutError):  # whoever pinned it may be gone
            async with asyncio.timeout(self._heldout.deadline):
                await self._stack.or_child_failure(wait_for_evaluations(self._stack.bus, releases, model))
        return await wait_for_trial(self._stack, releases)

    async def _start_children(self, ready: Awaitable[object] | None) -> Client:
        """Every process of the job but the learner; a client on its store."""
        client, num_tasks = await start_children(self._stack, self._settings, ready)
        run = self._results.run
        if num_tasks and self._results.num_starts == 1:
            raise UserError(f"the store holds a run {run!r} already: give this one another name")
        if self._results.evaluations and not num_tasks:
            raise UserError(f"the store holds nothing of run {run!r}: name the store that it began with")
        return client

    async def _show_earlier_rewards(self) -> None:
        if self._results.num_starts > 1:
            with contextlib.suppress(ClickHouseError):  # the store is being started again
                self._stack.view.add_rewards(
                    await asyncio.to_thread(read_step_rewards, self._client, self._results.run)
                )

    async def _wait_until_stored(self) -> None:
        """Wait until everything published has ended, evaluations of others too while somebody takes their tasks.

        Gives up when none ends for as long as an evaluation may take.
        """
        loop, num_left, seconds = asyncio.get_running_loop(), -1, self._heldout.deadline
        parameters = {"run_id": self._results.run}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds) as limit:
                while num_left:
                    before = num_left
                    has_others = any(map(is_extra_runner, self._stack.fleet.members()))
                    sql = UNFINISHED if has_others else COUNTS["rollouts_lost"]
                    (num_left,) = await asyncio.to_thread(query_row, self._client, sql, parameters)
                    if num_left != before:
                        limit.reschedule(loop.time() + seconds)
                    await self._stack.fleet.wait_for_change()
