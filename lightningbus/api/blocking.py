"""`train`, `evaluate`, `serve`, `connect` for code without an event loop, and for a notebook whose event loop is busy.

Written by ``python -m docs.reference`` from the async forms, which hold the work and the docstrings.
"""

import os
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

from lightningbus.analysis.transcript import Transcript
from lightningbus.api.evaluation_job import aevaluate, aserve
from lightningbus.api.evaluation_result import EvaluationResult
from lightningbus.api.options import with_options
from lightningbus.api.sessions.async_session import AsyncSession, Published, aconnect
from lightningbus.api.sessions.options import EvaluateOptions
from lightningbus.api.sessions.reward_curve import RewardCurve
from lightningbus.api.sessions.table import Table
from lightningbus.api.settings import EvaluateSettings, RunFile, TrainSettings
from lightningbus.api.tasks import Tasks
from lightningbus.api.train_result import TrainResult
from lightningbus.api.training import as_run_interrupted, atrain
from lightningbus.common.event_loop import run_blocking
from lightningbus.run.evaluation.publishing import PublishOptions
from lightningbus.run.jobs.callbacks import Callback
from lightningbus.run.run_directory.directory import RUNS


@with_options(TrainSettings)
def train(
    agent: str | Callable[..., Any] | None = None,
    model: str | os.PathLike[str] | None = None,
    tasks: Tasks | None = None,
    heldout: Tasks | None = None,
    *,
    settings: RunFile | None = None,
    resume: bool | str = False,
    callbacks: Sequence[Callback] = (),
    **options: Unpack[TrainSettings],
) -> TrainResult:
    """Train an agent to the end, as ``lightningbus train`` does: held-out reward before, training, and after.

    Args:
        agent: ``"module:function"`` in the current directory, or a function. A function of a notebook runs in a process
            of its own, with the functions and constants it uses.
        model: a Hugging Face model directory, or a name on the Hub whose model is in the Hub's cache on this machine.
        tasks: tasks to train on: a path, a list, a DataFrame or a dataset, see `Tasks`.
        heldout: tasks the model is never trained on; none: no evaluation, so no best version.
        settings: a run file: `lightningbus.settings.RunSettings`, its fields, or its path. The first four arguments may
            be left out where it, or ``options``, has them. They win over it.
        resume: go on where the run of this name was stopped, by the settings of its start; what is given here wins
            over them, but model, tasks and seed must stay. A string is the name: ``resume="small"``. Without it, an
            earlier run of the name is moved aside: its directory and name get the time at their end.
        callbacks: objects that get each step, evaluation and alert, and may end training, see `Callback`.
        options: the common settings by name (`max_steps`, `lr`, ...), all others in the section of a run file: a
            mapping, or an object (`learner=LearnerSettings(...)`). They win over all others.

    Returns:
        Figures, evaluations and the run's directory.

    Raises:
        UserError: something the user can put right, in one sentence.
        RunInterrupted: the run was stopped; its data is kept, and the same call with resume=True goes on.
    """
    with as_run_interrupted(options, settings, resume):
        return run_blocking(
            atrain(agent, model, tasks, heldout, settings=settings, resume=resume, callbacks=callbacks, **options)
        )


class Session:
    """A run to read and to publish to; made by `connect`.

    It follows the run: the store while that is up, then the files. Every method raises `UserError` with one sentence
    where something is wrong. The results of methods show themselves in Jupyter and in a terminal.
    """

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._session).removeprefix("Async")

    def close(self) -> None:
        """Release the run's store or files, which a later question opens again; end the processes of `serve`."""
        return run_blocking(self._session.close())

    def query(self, sql: str, **parameters: Any) -> Table:
        """Answer a question in ClickHouse's SQL; ``{name:Type}`` stands for a parameter. It only reads."""
        return run_blocking(self._session.query(sql, **parameters))

    def query_df(self, sql: str, **parameters: Any) -> Any:
        """Answer like `query`, with a ``pandas.DataFrame`` of ClickHouse's types."""
        return run_blocking(self._session.query_df(sql, **parameters))

    def runs(self) -> Table:
        """List the runs in the store by mode and evaluation, the newest first, with their tags and notes."""
        return run_blocking(self._session.runs())

    def rollouts(
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
        return run_blocking(self._session.rollouts(run, mode, outcome, evaluation, limit))

    def transcript(self, rollout_id: str, run: str | None = None, *, prompts: bool = False) -> Transcript:
        """Read one rollout, call by call: requests, answers, tools, weight versions, reward.

        ``prompts``: each of ``calls`` has the text of the tokens that the model read as its ``prompt``, and the
        transcript shows it in place of the messages. Raises `UserError` where the run's model is not on this machine.
        """
        return run_blocking(self._session.transcript(rollout_id, run, prompts=prompts))

    def reward_curve(self, run: str | None = None, reward: str = "") -> RewardCurve:
        """Read the reward by weight version, of training and of each evaluation.

        Args:
            run: default: that of the session, else the newest in the store.
            reward: a named reward; default: the one that counts, as in the rewards by version.

        Raises:
            UserError: the store has no such run, or no rollout of it has a reward of that name.
        """
        return run_blocking(self._session.reward_curve(run, reward))

    def alerts(self, run: str | None = None) -> Table:
        """List the alerts that were raised while a run went on, the first one first, also of a run that has ended.

        The last column says whether the condition of the alert held no longer at the end. ``run``: default: that of the
        session, else the newest in the store. Raises `UserError` for a run that is not in the store.
        """
        return run_blocking(self._session.alerts(run))

    def report(self, name: str, run: str | None = None, **parameters: Any) -> Table:
        """Answer a question by name, as ``lightningbus report`` does: `pass_at_k`, `failures`, `compare`, ...

        Args:
            name: the report.
            run: default: that of the session. `compare` takes ``a`` and ``b`` in its place, and reads each run's store.
            parameters: those of the report, such as ``solved=0.5``.

        Raises:
            UserError: there is no such report, parameter or run.
        """
        return run_blocking(self._session.report(name, run, **parameters))

    def publish(self, tasks: Tasks, *, timeout: float = 300.0, **options: Unpack[PublishOptions]) -> Published:
        """Publish tasks to a run that is up, as ``lightningbus publish`` does.

        Args:
            tasks: a path, a list, a DataFrame or a dataset.
            timeout: seconds to wait while the queue is full.
            options: conditions of the rollouts, see `PublishOptions`.
        """
        return run_blocking(self._session.publish(tasks, timeout=timeout, **options))

    def evaluate(self, tasks: Tasks, **options: Unpack[EvaluateOptions]) -> EvaluationResult:
        """Answer tasks by a weight version of a run that is up, by its own nodes: no engine is started.

        Nodes are pinned to the version until the end, as by ``lightningbus weights pin``, and training rollouts come
        from it meanwhile. The run's runners answer, or one for the agent in ``options``. A run that has ended is
        evaluated by `lightningbus.evaluate`.

        Args:
            tasks: as in `publish`.
            options: version, sampling and others, see `EvaluateOptions`.
        """
        return run_blocking(self._session.evaluate(tasks, **options))


def connect(
    run: str | None = None,
    *,
    runs: str | os.PathLike[str] = RUNS,
    bus: str | None = None,
    sql: str | None = None,
    database: str = "lightningbus",
) -> Session:
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
    return Session(run_blocking(aconnect(run, runs=runs, bus=bus, sql=sql, database=database)))


@with_options(EvaluateSettings)
def evaluate(
    agent: str | Callable[..., Any] | None = None,
    tasks: Tasks | None = None,
    *,
    model: str | os.PathLike[str] | None = None,
    url: str | None = None,
    run: str | None = None,
    version: int | None = None,
    sampling: str | Sequence[str] | None = None,
    label: str | None = None,
    settings: RunFile | None = None,
    **options: Unpack[EvaluateSettings],
) -> EvaluationResult:
    """Answer tasks with a model directory, with an endpoint, or with a weight version of a run.

    An engine is started for a model directory and for a run that has ended. A run that is up answers with its nodes,
    and an endpoint by itself.

    Args:
        agent: as in `train`.
        tasks: as in `train`.
        model: a Hugging Face model directory; with ``url`` the model's name there. With ``run`` it may be left out.
        url: an OpenAI-compatible endpoint, such as a vLLM server: ``http://127.0.0.1:8000/v1``.
        run: name of a run. For one that has ended its processes start again, without the learner, and its store keeps
            the rollouts. For one that is up a runner is started for the agent.
        version: weight version of ``run``; default: the newest. The bus keeps the last few.
        sampling: ``greedy``, ``sampled`` or both; default: as ``settings``, else both.
        label: with ``run``, name under which its store keeps these rollouts apart; default: date and time. Rollouts of
            the same agent, tasks and settings on record count, and other ones refuse the label.
        settings: a run file as in `train`, of which the name is left out. Agent, tasks and model may be left out where
            it has them. They win over it. Not for a run that is up.
        options: the common settings by name, all others in the section of a run file.

    Raises:
        UserError: something the user can put right, in one sentence.
    """
    return run_blocking(
        aevaluate(
            agent,
            tasks,
            model=model,
            url=url,
            run=run,
            version=version,
            sampling=sampling,
            label=label,
            settings=settings,
            **options,
        )
    )


@with_options(EvaluateSettings)
def serve(
    agent: str | Callable[..., Any],
    *,
    model: str | os.PathLike[str] | None = None,
    url: str | None = None,
    run: str | None = None,
    **settings: Unpack[EvaluateSettings],
) -> Session:
    """Start what `evaluate` starts, once for any number of evaluations: `Session.evaluate` starts nothing more.

    Its processes end with the session. Nodes serve the newest version.

    Args:
        agent: as in `train`.
        model: as in `evaluate`.
        url: as in `evaluate`.
        run: name of a run that has ended.
        settings: as in `evaluate`.

    Raises:
        UserError: something the user can put right, in one sentence.
    """
    return Session(run_blocking(aserve(agent, model=model, url=url, run=run, **settings)))
