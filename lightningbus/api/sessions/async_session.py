"""`aconnect`: a session with a run, which publishes tasks and reads their results.

`lightningbus.api.blocking` has the same for code without an event loop; ``python -m docs.reference`` writes it.
"""

import logging
import os
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar, Unpack

from clickhouse_connect.driver.client import Client

from lightningbus.analysis.transcript import Transcript
from lightningbus.api.agent_function import parse_runner
from lightningbus.api.evaluation_result import EvaluationResult
from lightningbus.api.sessions.options import EvaluateOptions, build_evaluation_job, check_options, has_own_runner
from lightningbus.api.sessions.queries import load_frame, load_table
from lightningbus.api.sessions.reports import find_report, load_report
from lightningbus.api.sessions.reward_curve import RewardCurve
from lightningbus.api.sessions.rollout_list import RolloutFilter, list_rollouts
from lightningbus.api.sessions.table import Table
from lightningbus.api.tasks import Tasks, read_tasks
from lightningbus.api.user_errors import as_user_error, require_package
from lightningbus.common.aio import WorkInterruptedError, run_in_daemon_thread, run_unless
from lightningbus.common.kept_open import KeptOpen
from lightningbus.run.errors import UserError
from lightningbus.run.evaluation.evaluation import Evaluation
from lightningbus.run.evaluation.live_evaluation import evaluate_live
from lightningbus.run.evaluation.publishing import PublishOptions, build_tasks, publish_all
from lightningbus.run.jobs.extra_runner import with_extra_runner
from lightningbus.run.processes.stack import LocalStack
from lightningbus.run.run_data.comparison import ComparedRun, join_runs, load_side
from lightningbus.run.run_data.run_data import RunData
from lightningbus.run.run_data.run_names import check_run, list_stored_runs
from lightningbus.run.run_directory.directory import RUNS, RunDirectory
from lightningbus.run.run_directory.discovery import connect as connect_bus
from lightningbus.run.run_directory.labels import Labels, read_all_labels
from lightningbus.run.run_directory.lookup import find_named_run, find_run, find_run_names
from lightningbus.schemas import subjects
from lightningbus.store.reports.compared_runs import COMPARISONS, SIDES, Side
from lightningbus.store.reports.run_alerts import RUN_ALERTS

log = logging.getLogger(__name__)

T = TypeVar("T")

RUNS_SQL = """
SELECT run_id, mode, evaluation, rollouts, first_started_at, last_ended_at FROM runs
ORDER BY first_started_at DESC, mode DESC, evaluation
"""
NEWEST_RUN_SQL = "SELECT run_id FROM runs GROUP BY run_id ORDER BY max(last_ended_at) DESC LIMIT 1"


class Published(NamedTuple):
    """Number of rollouts that were published, and of those that the bus had already."""

    new: int
    existing: int


class AsyncSession:
    """A run to read and to publish to; made by `aconnect`.

    It follows the run: the store while that is up, then the files. Every method raises `UserError` with one sentence
    where something is wrong. The results of methods show themselves in Jupyter and in a terminal.
    """

    def __init__(
        self,
        directory: RunDirectory | None,
        run: str | None,
        bus: str | None,
        data: RunData,
        runs: Path = RUNS,
        processes: KeptOpen[LocalStack] | None = None,
    ) -> None:
        """Prepare the session; ``processes`` are those of a run that is up for it, and end with it."""
        self._directory, self._run, self._bus, self._data, self._runs = directory, run, bus, data, runs
        self._processes = processes

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"AsyncSession(run={self._run!r})"

    async def close(self) -> None:
        """Release the run's store or files, which a later question opens again; end the processes of `aserve`."""
        await run_in_daemon_thread(self._data.close)
        processes, self._processes = self._processes, None
        if processes is not None:
            await run_in_daemon_thread(processes.close)

    async def query(self, sql: str, **parameters: Any) -> Table:
        """Answer a question in ClickHouse's SQL; ``{name:Type}`` stands for a parameter. It only reads."""
        return await self._ask(lambda client: load_table(client, sql, parameters))

    async def query_df(self, sql: str, **parameters: Any) -> Any:
        """Answer like `query`, with a ``pandas.DataFrame`` of ClickHouse's types."""
        require_package("pandas", "notebook")
        return await self._ask(lambda client: load_frame(client, sql, parameters))

    async def runs(self) -> Table:
        """List the runs in the store by mode and evaluation, the newest first, with their tags and notes."""
        table = await self.query(RUNS_SQL)
        with as_user_error():
            labels = read_all_labels(self._runs)
        added = [labels.get(run_id, Labels()) for run_id in table.column("run_id")]
        rows = ((*row, list(each.tags), each.note) for row, each in zip(table.rows, added, strict=True))
        sample = (*table.sample, [], "") if table.sample else ()
        return Table((*table.columns, "tags", "note"), tuple(rows), sample=sample)

    async def rollouts(
        self,
        run: str | None = None,
        mode: str | None = None,
        outcome: str | None = None,
        evaluation: str | None = None,
        limit: int = 100,
    ) -> Table:
        """List the rollouts that ended last, the newest first.

        Of one run, mode (``train``, ``eval``), outcome (``ok``, ...) or evaluation, where it is given. The column
        ``task`` is the id of the task in your file or DataFrame, as text; ``reward`` is the main reward, None for a
        failed rollout. Raises `UserError` for a run, mode or outcome that does not exist.
        """
        wanted = RolloutFilter(mode or "", outcome or "", evaluation or "", limit)
        return await self._ask_about(run, lambda client: list_rollouts(client, run or self._run or "", wanted))

    async def transcript(self, rollout_id: str, run: str | None = None, *, prompts: bool = False) -> Transcript:
        """Read one rollout, call by call: requests, answers, tools, weight versions, reward.

        ``prompts``: each of ``calls`` has the text of the tokens that the model read as its ``prompt``, and the
        transcript shows it in place of the messages. Raises `UserError` where the run's model is not on this machine.
        """

        def load(client: Client) -> Transcript:
            return Transcript.load(client, rollout_id, run or self._run or "", has_prompts=prompts)

        return await self._ask_about(run, load)

    async def reward_curve(self, run: str | None = None, reward: str = "") -> RewardCurve:
        """Read the reward by weight version, of training and of each evaluation.

        Args:
            run: default: that of the session, else the newest in the store.
            reward: a named reward; default: the one that counts, as in the rewards by version.

        Raises:
            UserError: the store has no such run, or no rollout of it has a reward of that name.
        """
        return await self._ask_about(
            run, lambda client: RewardCurve.load(client, run or self._run or _find_newest_run(client), reward)
        )

    async def alerts(self, run: str | None = None) -> Table:
        """List the alerts that were raised while a run went on, the first one first, also of a run that has ended.

        The last column says whether the condition of the alert held no longer at the end. ``run``: default: that of the
        session, else the newest in the store. Raises `UserError` for a run that is not in the store.
        """
        return await self._ask_about(
            run, lambda client: load_table(client, RUN_ALERTS, {"run_id": run or self._run or _find_newest_run(client)})
        )

    async def report(self, name: str, run: str | None = None, **parameters: Any) -> Table:
        """Answer a question by name, as ``lightningbus report`` does: `pass_at_k`, `failures`, `compare`, ...

        Args:
            name: the report.
            run: default: that of the session. `compare` takes ``a`` and ``b`` in its place, and reads each run's store.
            parameters: those of the report, such as ``solved=0.5``.

        Raises:
            UserError: there is no such report, parameter or run.
        """
        with as_user_error():
            report, values = find_report(name, parameters)
            if name in COMPARISONS:
                a, b = [await self._ask_side(values, side) for side in SIDES]
                (columns, rows), notes = join_runs(name, a, b, values, self._runs)
                for note in notes:
                    log.warning("%s", note)
            else:
                columns, rows = await self._ask_about(
                    run, lambda client: load_report(client, report, values, run or self._run or "")
                )
            return Table(tuple(columns), tuple(rows), report.title)

    async def _ask_side(self, values: Mapping[str, str], side: Side) -> ComparedRun:
        """Answer a comparison for one of its runs: in this session's store, or in the run's own."""

        def work(client: Client) -> ComparedRun:
            return load_side(client, values, side, partial(load_report, client), self._runs)

        run = values[side]
        named = find_named_run(run, self._runs)
        if named is None or self._has_data_of(named):
            return await self._ask(work)
        async with await aconnect(run, runs=self._runs) as session:
            return await session._ask(work)

    def _has_data_of(self, run: RunDirectory) -> bool:
        """Whether this session reads a run's data; an earlier run of the same name has another directory."""
        if self._directory is None:  # a server that has many
            return run.run_id == self._run
        return run.path.resolve() == self._directory.path.resolve()

    async def publish(self, tasks: Tasks, *, timeout: float = 300.0, **options: Unpack[PublishOptions]) -> Published:
        """Publish tasks to a run that is up, as ``lightningbus publish`` does.

        Args:
            tasks: a path, a list, a DataFrame or a dataset.
            timeout: seconds to wait while the queue is full.
            options: conditions of the rollouts, see `PublishOptions`.
        """
        with as_user_error():
            check_options(options, PublishOptions)
            options.setdefault("run", self._run or "run")
            expanded = build_tasks(read_tasks(tasks), **options)
            if self._bus is None and self._directory is not None and self._directory.read_endpoints() is None:
                raise UserError(f"run {self._directory.path.name!r} is not up: tasks are published while it is")
            async with connect_bus(self._bus, "publish", run=self._directory) as bus:
                await bus.check_stream(subjects.TASKS)
                return Published(*await publish_all(bus, expanded, timeout, on_done=lambda: None))

    async def evaluate(self, tasks: Tasks, **options: Unpack[EvaluateOptions]) -> EvaluationResult:
        """Answer tasks by a weight version of a run that is up, by its own nodes: no engine is started.

        Nodes are pinned to the version until the end, as by ``lightningbus weights pin``, and training rollouts come
        from it meanwhile. The run's runners answer, or one for the agent in ``options``. A run that has ended is
        evaluated by `lightningbus.aevaluate`.

        Args:
            tasks: as in `publish`.
            options: version, sampling and others, see `EvaluateOptions`.
        """
        with as_user_error():
            work = self._evaluate(tasks, options)
            if self._processes is None:
                return await work
            try:
                return await run_unless(self._processes.wait_ended(), work, retry_after=None)
            except WorkInterruptedError:
                raise UserError("the session was closed meanwhile") from None

    async def _evaluate(self, tasks: Tasks, options: EvaluateOptions) -> EvaluationResult:
        directory = self._directory
        if directory is None or directory.read_endpoints() is None:
            raise UserError(f"run {self._run!r} is not up: `lightningbus.evaluate` evaluates one that has ended")
        job = build_evaluation_job(directory, read_tasks(tasks), options)
        async with connect_bus(self._bus, "evaluate", "admin", run=directory) as bus:
            client = await self._ask(lambda client: client)
            if not has_own_runner(options):
                return EvaluationResult(directory.path, await evaluate_live(bus, client, job))
            recorded = directory.read_settings("runner-0")
            runner = parse_runner(options["agent"], self._runs, options.get("runner", {}), recorded)

            def evaluate(agent: str) -> Coroutine[Any, Any, dict[str, Evaluation]]:
                return evaluate_live(bus, client, replace(job, request=replace(job.request, agent=agent, nonce=agent)))

            return EvaluationResult(directory.path, await with_extra_runner(directory, bus, runner, evaluate))

    async def _ask(self, work: Callable[[Client], T]) -> T:
        return await run_in_daemon_thread(self._data.ask, work)

    async def _ask_about(self, run: str | None, work: Callable[[Client], T]) -> T:
        """Answer a question about a run; raise `UserError` where that is another than the session's and not stored."""

        def check_and_work(client: Client) -> T:
            if run is None or run == self._run or run in list_stored_runs(client):
                return work(client)
            if run in find_run_names(self._runs):
                raise UserError(f"run {run!r} has a store of its own: lightningbus.connect({run!r}) reads it")
            check_run(client, run)
            return work(client)

        return await self._ask(check_and_work)


async def aconnect(
    run: str | None = None,
    *,
    runs: str | os.PathLike[str] = RUNS,
    bus: str | None = None,
    sql: str | None = None,
    database: str = "lightningbus",
) -> AsyncSession:
    """Open a session with a run that is up, or with the files of one that has ended.

    Args:
        run: name of the run, or its directory; default: the one that was started last.
        runs: directory of run directories.
        bus: NATS URL; default: the run's.
        sql: ClickHouse URL; default: the run's store, else its files.
        database: ClickHouse database.

    Raises:
        UserError: there is no such run.
    """
    with as_user_error():
        directory = find_run(run, Path(runs)) if sql is None else None
        name = directory.run_id if directory is not None else run
        return AsyncSession(directory, name, bus, RunData(directory, sql, database), Path(runs))


def _find_newest_run(client: Client) -> str:
    rows = client.query(NEWEST_RUN_SQL).result_rows
    if not rows:
        raise UserError("the store holds no run yet")
    return str(rows[0][0])
