"""``results.json``: all figures of a training job, kept up to date while it runs."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from clickhouse_connect.driver.client import Client
from pydantic import BaseModel, Field, ValidationError

from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.run.errors import UserError
from lightningbus.run.evaluation.evaluation import Evaluation
from lightningbus.run.machine.hardware import Hardware, read_hardware, read_versions
from lightningbus.run.processes.members import EXTRA_AGENT
from lightningbus.run.results.model_results import ModelResults, count_models
from lightningbus.run.results.prompt_files import PromptFile
from lightningbus.run.results.prompt_round import PromptRound
from lightningbus.run.run_directory.whole_file import write_whole
from lightningbus.run.settings.evaluation import EvalSettings
from lightningbus.run.settings.run_file import RunSettings
from lightningbus.run.settings.setting_change import SettingChange, find_first_steps
from lightningbus.store.clickhouse.client import query_row
from lightningbus.store.reports.run_alerts import RUN_ALERTS

RESULTS = "results.json"
UNFINISHED = "SELECT count() FROM check_unfinished_rollouts WHERE run_id = {run_id:String}"
COUNTS = {
    "weight_versions": "SELECT uniqExact(model, version) FROM weight_versions WHERE run_id = {run_id:String}",
    "rollouts": "SELECT count() FROM rollouts WHERE run_id = {run_id:String}",
    "tokens_sampled": "SELECT sum(response_tokens) FROM model_calls WHERE run_id = {run_id:String}",
    "tokens_trained": "SELECT sum(tokens) FROM training_rollouts WHERE run_id = {run_id:String} AND trained",
    # Rollouts of an evaluation with a runner of its own end with it, whether or not they have begun.
    "rollouts_lost": (
        f"{UNFINISHED} AND rollout_id NOT IN "
        f"(SELECT rollout_id FROM tasks WHERE run_id = {{run_id:String}} AND match(agent, '^{EXTRA_AGENT}$'))"
    ),
    "rollouts_trained_twice": "SELECT count() FROM check_duplicate_training WHERE run_id = {run_id:String}",
    "share_trained": (
        "SELECT round(uniqExactIf((model, rollout_id), trained) / uniqExact(model, rollout_id), 4) "
        "FROM training_rollouts WHERE run_id = {run_id:String}"
    ),
    "max_staleness": "SELECT max(max_staleness) FROM staleness WHERE run_id = {run_id:String}",
    "mean_staleness": (
        "SELECT round(sum(mean_staleness * tokens) / sum(tokens), 3) FROM staleness WHERE run_id = {run_id:String}"
    ),
}
"""Queries of figures over all models of a run."""
ALERTS = f"SELECT reason FROM ({RUN_ALERTS}) WHERE role = 'learner' ORDER BY raised_at"
"""Query of the alerts of learners while the run went on."""
LAST_STEPS = """
SELECT model, count(), argMax(if(mapContains(metrics, 'reward/mean'), metrics['reward/mean'], NULL), step)
FROM training_steps WHERE run_id = {run_id:String} GROUP BY model
"""
"""Query of the number of steps of each model, and of the mean reward of its last one."""
SETTINGS_STARTS = """
SELECT model, step, settings FROM
(
    SELECT model, step, settings,
        lagInFrame(settings, 1, '') OVER (PARTITION BY model ORDER BY step ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)
            AS before
    FROM training_steps WHERE run_id = {run_id:String}
)
WHERE settings != before ORDER BY model, step
"""
"""Query of the steps whose settings differ from those of the step before."""
KEPT_TIMES = ("seconds", "seconds_by_phase")
BEFORE_AND_AFTER = ("greedy_before", "sampled_before", "greedy_after", "sampled_after")
EXCLUDED = (
    "SELECT exclusion_reason, count() FROM training_rollouts WHERE run_id = {run_id:String} AND NOT trained "
    "GROUP BY exclusion_reason ORDER BY exclusion_reason"
)


CALLS = """
SELECT (SELECT sum(cost) FROM grades WHERE run_id = {run_id:String}), sum(external_cost), sum(num_unpriced_calls)
FROM attempts WHERE run_id = {run_id:String}
"""
"""Query of the cost of judges and of external model calls, and of the number of those without a price."""


class Results(BaseModel):
    """Figures of a training job; those that the store counts are there once it has finished."""

    run: str = Field(description="name of the run")
    is_finished: bool = Field(default=False, description="whether the job has reached its end")
    num_starts: int = Field(default=1, description="times the job was started: 1, and one for each resume")
    model: str = Field(description="name of the trained model; of several, the one that agents call by name")
    models: dict[str, ModelResults] = Field(default={}, description="figures of each trained model")
    model_path: Path = Field(description="model that training started from")
    settings_sha256: str = Field(description="digest of all settings but the name of the run and its directory")
    seed: int = Field(description="seed of the order of tasks and of random choices in training")
    max_steps: int = Field(description="training steps that the job was set to make")
    perfect_reward: float = Field(
        default=1.0,
        description="reward of a perfect policy, as `eval.max_reward` says; no measurement: rewards may be higher",
    )
    best_by: str = Field(
        default="", description="evaluation that decides which version is the best; empty: the first of `eval.sampling`"
    )
    steps: int = Field(default=0, description="training steps made; of several models, those of the slowest")
    reward: float | None = Field(
        default=None, description="mean reward of the last training step of `model`; none: no step"
    )
    stop_reason: str = Field(default="", description="reason why training ended before `max_steps`; empty: it did not")
    cost: float | None = Field(
        default=None,
        description="price so far of machines by `budget`, of judges and of external model calls; none: no prices",
    )
    num_unpriced_calls: int = Field(
        default=0, description="external model calls without a price in `model_prices`, which `cost` leaves out"
    )
    weight_versions: int = Field(default=0, description="weight versions published, of all models")
    rollouts: int = Field(default=0, description="rollouts that ended, evaluations included")
    rollouts_lost: int = Field(
        default=0,
        description="published rollouts that never ended; those of an evaluation given up with its runner do not count",
    )
    rollouts_trained_twice: int = Field(default=0, description="rollouts trained in two steps of a model; always 0")
    share_trained: float | None = Field(default=None, description="share of the training rollouts that were trained on")
    excluded: dict[str, int] = Field(default={}, description="training rollouts not trained on, by reason")
    alerts: list[str] = Field(
        default=[], description="alerts of the learners since the first task, the oldest first: look at these"
    )
    tokens_sampled: int = Field(default=0, description="tokens that engines sampled, evaluations included")
    tokens_trained: int = Field(default=0, description="tokens trained on")
    mean_staleness: float | None = Field(default=None, description="mean staleness of the trained tokens, in versions")
    max_staleness: int | None = Field(default=None, description="largest staleness of a trained token, in versions")
    evaluations: list[Evaluation] = Field(default=[], description="every evaluation, in the order in which they ended")
    changes: list[SettingChange] = Field(
        default=[], description="every change of settings by a callback or a resume, in order"
    )
    reported_steps: dict[str, int] | None = Field(
        default=None, description="last step of each model that callbacks had, after which a resume goes on; none: none"
    )
    taken_steps: dict[str, int] | None = Field(
        default=None, description="the same of a loop over `atrain_steps`, which may have left the last ones"
    )
    prompt_rounds: list[PromptRound] = Field(default=[], description="every round of prompt optimisation, in order")
    prompts: dict[str, PromptFile] = Field(default={}, description="optimised prompts in use at the end, by name")
    greedy_before: float | None = Field(default=None, description="mean held-out reward of the first version, greedy")
    sampled_before: float | None = Field(default=None, description="mean held-out reward of the first version, sampled")
    greedy_after: float | None = Field(
        default=None, description="mean held-out reward of the last version evaluated, greedy"
    )
    sampled_after: float | None = Field(
        default=None, description="mean held-out reward of the last version evaluated, sampled"
    )
    seconds: float = Field(default=0.0, description="wall-clock seconds of all phases, over all starts")
    seconds_by_phase: dict[str, float] = Field(
        default={},
        description="starting, evaluating (before and after), optimizing (prompts, before training), training (with "
        "evaluations and rounds during it), counting",
    )
    hardware: Hardware
    packages: dict[str, str] = Field(description="versions of lightningbus, vllm, torch, verl and transformers")

    @classmethod
    def begin(
        cls,
        settings: RunSettings,
        learners: Sequence[LearnerSettings],
        heldout: EvalSettings,
        earlier: "Results | None",
    ) -> Self:
        """Return the results of a job that starts, or continues from its ``earlier`` results."""
        kept = {
            name: getattr(earlier, name)
            for name in (
                "evaluations",
                "prompt_rounds",
                "prompts",
                "changes",
                "reported_steps",
                "taken_steps",
                "steps",
                "reward",
                "cost",
                "excluded",
                "alerts",
                *COUNTS,
                *KEPT_TIMES,
                *BEFORE_AND_AFTER,
            )
            if earlier is not None
        }
        learner = learners[0]
        models = earlier.models if earlier is not None else {}
        return cls(
            **kept,
            num_starts=1 if earlier is None else earlier.num_starts + 1,
            run=settings.name,
            model=learner.model,
            model_path=learner.model_path,
            models={each.model: models.get(each.model, ModelResults()) for each in learners},
            settings_sha256=compute_settings_sha256(settings, learners, heldout),
            seed=learner.seed,
            max_steps=learner.max_steps,
            perfect_reward=heldout.max_reward,
            best_by=heldout.best_by,
            hardware=read_hardware(),
            packages=read_versions(),
        )

    @classmethod
    def read(cls, directory: Path) -> Self | None:
        """Read the results in a run's directory, None if there are none; raises `UserError` if they cannot be read."""
        path = directory / RESULTS
        try:
            return cls.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            raise UserError(f"{path} cannot be read: start the run again without --resume") from error

    def write(self, directory: Path) -> None:
        """Write the results to a run's directory, whole or not at all; raises `UserError` if that fails."""
        write_whole(directory / RESULTS, json.dumps(self.to_figures(), indent=2) + "\n")

    def to_figures(self) -> dict[str, Any]:
        """Return the content of ``results.json``."""
        figures = self.model_dump(mode="json")
        figures["seconds"] = round(self.seconds, 1)
        figures["seconds_by_phase"] = {phase: round(seconds, 1) for phase, seconds in self.seconds_by_phase.items()}
        return figures

    def add_evaluation(self, evaluation: Evaluation) -> None:
        """Append an evaluation, or replace an earlier one with its label and versions."""
        others = [other for other in self.evaluations if other.key != evaluation.key]
        self.evaluations = [*others, evaluation]
        self.greedy_before, self.greedy_after = self._first_and_last("greedy")
        self.sampled_before, self.sampled_after = self._first_and_last("sampled")

    def _first_and_last(self, label: str) -> tuple[float | None, float | None]:
        means = {each.version: round(each.mean_reward, 4) for each in self.evaluations if each.label == label}
        versions = sorted(means)
        return means[versions[0]] if versions else None, means[versions[-1]] if len(versions) > 1 else None

    def add_seconds(self, phase: str, seconds: float) -> None:
        """Add wall-clock seconds to a phase."""
        self.seconds_by_phase[phase] = self.seconds_by_phase.get(phase, 0.0) + seconds
        self.seconds = sum(self.seconds_by_phase.values())

    def count_steps(self, client: Client) -> None:
        """Read the training steps that the store has by now, the reward of the last one, and where changes began."""
        rows = client.query(LAST_STEPS, parameters={"run_id": self.run}).result_rows
        steps = {model: (num_steps, reward) for model, num_steps, reward in rows}
        for model, figures in self.models.items():
            figures.steps = steps.get(model, (0, None))[0]
        self.steps = min(steps.get(model, (0, None))[0] for model in {*self.models, self.model})
        _, reward = steps.get(self.model, (0, None))
        self.reward = None if reward is None else round(reward, 4)

        if any(change.first_step is None for change in self.changes):
            starts = client.query(SETTINGS_STARTS, parameters={"run_id": self.run}).result_rows
            parsed = [(model, step, json.loads(settings or "{}")) for model, step, settings in starts]
            self.changes = find_first_steps(self.changes, parsed)

    def count_cost(self, client: Client, settings: RunSettings) -> None:
        """Add up what machines, judges and external model calls cost until now, by the prices of a run file."""
        judges, external, self.num_unpriced_calls = query_row(client, CALLS, {"run_id": self.run})
        if not settings.has_prices:
            self.cost = None
            return
        machines = 0.0 if settings.budget is None else settings.budget.compute_cost(self.seconds)
        self.cost = round(machines + judges + external, 4)

    def count(self, client: Client) -> None:
        """Read the figures that the store counts."""
        parameters = {"run_id": self.run}
        for name, sql in COUNTS.items():
            setattr(self, name, query_row(client, sql, parameters)[0])
        self.models |= count_models(client, self.run, {each.label for each in self.evaluations})
        self.count_steps(client)
        rows = client.query(EXCLUDED, parameters=parameters).result_rows
        self.excluded = dict(map(tuple, rows))
        self.alerts = [sentence for (sentence,) in client.query(ALERTS, parameters=parameters).result_rows]


def keep_changes(directory: Path, changes: Sequence[SettingChange]) -> None:
    """Add changes to the results in a run's directory, if there are some; raise `UserError`."""
    results = Results.read(directory)
    if results is not None:
        results.changes += changes
        results.write(directory)


def compute_settings_sha256(settings: RunSettings, learners: Sequence[LearnerSettings], heldout: EvalSettings) -> str:
    """Return the digest of all settings of a job but its name and directory, whatever the form of its file."""
    fields = {
        **settings.model_dump(mode="json", exclude={"name", "runs", "learner"}),
        "learners": [learner.model_dump(mode="json", exclude={"run", "checkpoint_dir"}) for learner in learners],
        "eval": heldout.model_dump(mode="json"),
    }
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
