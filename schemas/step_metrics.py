"""Every metric of a training step: its name, unit and meaning. Pure.

Prometheus' metrics are others: `lightningbus.common.observability.metrics`.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

GROUPS = {
    "reward": "reward",
    "rewards": "reward",
    "overlong": "reward",
    "groups": "reward",
    "staleness": "staleness and waiting",
    "seconds": "staleness and waiting",
    "learner": "staleness and waiting",
    "bus": "staleness and waiting",
    "actor": "update of the policy",
    "preference": "pairs of answers",
    "critic": "critic",
    "off_policy": "off-policy correction",
    "agreement": "engine and learner",
    "rollout_corr": "engine and learner",
}
"""Groups of metrics by the first part of their names, in the order in which a page lists them."""
DEFAULT_GROUP = "batch"


@dataclass(frozen=True, slots=True)
class StepMetric:
    """A metric as it is stored. A placeholder in the name, as ``{reason}``, stands for any text without a slash."""

    name: str
    title: str
    """Its name in words; the placeholder stands in it too."""
    unit: str
    meaning: str

    def matches(self, name: str) -> bool:
        """Return whether a name is this metric's."""
        return self._match(name) is not None

    def describe(self, name: str) -> dict[str, str]:
        """Return ``title``, ``unit``, ``about`` and ``group`` of a name that is this metric's."""
        match = self._match(name)
        words = match.groups()[0].replace("_", " ") if match and match.groups() else ""
        title = re.sub(r"\{\w+\}", lambda _: words, self.title)
        group = GROUPS.get(name.split("/")[0], DEFAULT_GROUP)
        return {"title": title, "unit": self.unit, "about": self.meaning, "group": group}

    def _match(self, name: str) -> "re.Match[str] | None":
        parts = re.split(r"\{\w+\}", self.name)
        return re.fullmatch("([^/]+)".join(map(re.escape, parts)), name)


STEP_METRICS: tuple[StepMetric, ...] = (
    StepMetric("reward/mean", "mean reward", "reward", "Mean reward over rollouts that have one."),
    StepMetric(
        "reward/std", "spread of the reward", "reward", "Standard deviation of the reward over rollouts that have one."
    ),
    StepMetric(
        "rewards/ignored",
        "rewards of calls not used",
        "calls",
        "Calls with a reward of their own that the credit method does not use.",
    ),
    StepMetric(
        "overlong/penalty",
        "penalty for long answers",
        "reward",
        "Mean penalty for long answers that is added to the reward, 0 at most.",
    ),
    StepMetric("groups/trained", "groups trained", "groups", "Groups of which rollouts were trained on."),
    StepMetric(
        "groups/without_signal",
        "groups without signal",
        "groups",
        "Groups whose rollouts all have advantage 0, as where all rewards are equal.",
    ),
    StepMetric(
        "groups/replaced",
        "groups replaced",
        "groups",
        "Groups without signal that others have replaced since the step before; absent without "
        "`task_selection.replace_without_signal`.",
    ),
    StepMetric(
        "groups/update_scale",
        "update beside groups without signal",
        "ratio",
        "Groups that ended for each group of the step: replacing makes the gradient about as many times larger; absent "
        "without `task_selection.replace_without_signal`.",
    ),
    StepMetric("rollouts", "rollouts", "rollouts", "Rollouts in the groups of the step."),
    StepMetric("rollouts/trained", "rollouts trained", "rollouts", "Rollouts that were trained on."),
    StepMetric(
        "rollouts/without_call",
        "rollouts without a call",
        "rollouts",
        "Rollouts whose agent called no model, as where a cache of its client answers.",
    ),
    StepMetric(
        "rollouts/offered_tools", "rollouts offered tools", "rollouts", "Rollouts whose agent offers the model tools."
    ),
    StepMetric(
        "rollouts/called_tool", "rollouts with a tool call", "rollouts", "Rollouts in which the model calls a tool."
    ),
    StepMetric("sequences", "sequences", "sequences", "Token sequences that were trained on."),
    StepMetric("calls", "calls", "calls", "The model's calls in trained rollouts."),
    StepMetric(
        "calls/repeating",
        "answers that repeat",
        "calls",
        "Calls whose answer ends in a repetition of a few tokens.",
    ),
    StepMetric("calls/clipped", "answers cut at their limit", "calls", "Calls whose answer ended at its length limit."),
    StepMetric(
        "excluded/{reason}",
        "calls left out: {reason}",
        "calls",
        "Calls of trained rollouts that were left out, by reason.",
    ),
    StepMetric(
        "prefix_breaks/{reason}",
        "conversations broken: {reason}",
        "calls",
        "Calls that continue a conversation without extending its tokens.",
    ),
    StepMetric("tokens", "tokens trained", "tokens", "Tokens that were trained on."),
    StepMetric(
        "tokens/imitated", "tokens imitated", "tokens", "Tokens of answers that `supervised` gave; absent without it."
    ),
    StepMetric(
        "tokens/compared",
        "tokens compared",
        "tokens",
        "Tokens of answers in the pairs of `preferences`; absent without it.",
    ),
    StepMetric("tokens/sampled", "tokens sampled", "tokens", "Tokens of the model's answers in trained rollouts."),
    StepMetric(
        "tokens/scored",
        "tokens scored by teachers",
        "tokens",
        "Trained tokens that a teacher has scored; absent without one.",
    ),
    StepMetric(
        "tokens/scored/{teacher}",
        "tokens scored by {teacher}",
        "tokens",
        "Trained tokens that one of several teachers has scored.",
    ),
    StepMetric("tokens/excluded", "tokens left out", "tokens", "Tokens of calls that were left out."),
    StepMetric(
        "tokens/forced",
        "tokens put in by the engine",
        "tokens",
        "Tokens that the engine put in, as the end of a thought at its budget.",
    ),
    StepMetric("tokens/masked", "tokens masked as stale", "tokens", "Tokens masked as stale."),
    StepMetric(
        "tokens/truncated",
        "tokens of truncated sampling",
        "tokens",
        "Tokens sampled with truncation, penalties or constraints.",
    ),
    StepMetric(
        "truncated_share",
        "share of truncated sampling",
        "share",
        "Share of trained tokens sampled with truncation, penalties or constraints.",
    ),
    StepMetric(
        "truncated/{setting}",
        "calls of truncated sampling: {setting}",
        "calls",
        "Calls sampled with truncation, penalties or constraints, by the setting.",
    ),
    StepMetric("response_length/mean", "mean length of an answer", "tokens", "Mean length of an answer."),
    StepMetric(
        "response_length/clip_ratio",
        "share of answers cut",
        "share",
        "Share of answers that ended at their length limit.",
    ),
    StepMetric("coverage", "share of tokens trained", "share", "Share of trainable tokens that were trained on."),
    StepMetric(
        "staleness/mean",
        "mean staleness",
        "versions",
        "Mean number of versions between sampling and training, over tokens.",
    ),
    StepMetric(
        "staleness/max",
        "largest staleness",
        "versions",
        "Largest number of versions between sampling and training of a token.",
    ),
    StepMetric(
        "seconds/idle", "time waited for groups", "s", "Time that the learner waited for groups before the step."
    ),
    StepMetric(
        "learner/idle_share",
        "idle share of the learner",
        "share",
        "Share of the step's time that the learner waited for groups.",
    ),
    StepMetric(
        "bus/gaps",
        "gaps in the stream",
        "gaps",
        "Gaps in the stream of rollouts since the last step; absent if there was none.",
    ),
    StepMetric(
        "bus/tasks_dispatched_again",
        "tasks dispatched again",
        "tasks",
        "Tasks dispatched again because of gaps in the stream.",
    ),
    StepMetric(
        "actor/loss",
        "loss",
        "loss",
        "Whole loss: policy loss with KL and entropy terms, and other parts, by weight; of pairs that of DPO.",
    ),
    StepMetric("actor/pg_loss", "policy loss", "loss", "Policy loss alone."),
    StepMetric(
        "actor/ce_loss", "loss of imitation", "nats", "Mean -log π of imitated tokens; absent if there are none."
    ),
    StepMetric(
        "actor/teacher_kl",
        "divergence from the teacher",
        "nats",
        "Divergence from the teacher: with `top_k` itself, else its k3 estimate; absent without one.",
    ),
    StepMetric("actor/kl_loss", "divergence from the reference", "nats", "Mean divergence from the reference model."),
    StepMetric("actor/entropy", "entropy", "nats", "Mean entropy of the policy over trained tokens."),
    StepMetric(
        "actor/entropy_loss",
        "entropy in the loss",
        "nats",
        "The entropy that the loss rewards; absent if `entropy_coeff` is 0.",
    ),
    StepMetric("actor/grad_norm", "gradient norm", "norm", "Norm of the gradient before clipping."),
    StepMetric("actor/lr", "learning rate", "rate", "Learning rate of the schedule in this step."),
    StepMetric(
        "actor/skipped_updates",
        "updates skipped",
        "updates",
        "Updates that changed nothing: their gradient was not finite.",
    ),
    StepMetric("actor/pg_clipfrac", "share of tokens clipped", "share", "Share of tokens whose ratio was clipped."),
    StepMetric(
        "actor/pg_clipfrac_lower",
        "share of tokens clipped below",
        "share",
        "Share of tokens clipped by `verl.actor.clip_ratio_c`.",
    ),
    StepMetric("actor/ppo_kl", "drift of the update", "nats", "Mean log-ratio of the old policy to the current one."),
    StepMetric(
        "preference/accuracy",
        "share of pairs in order",
        "share",
        "Share of pairs whose better answer has gained more than the worse.",
    ),
    StepMetric(
        "preference/margin",
        "margin of better answers",
        "reward",
        "Mean reward of better answers minus that of worse ones.",
    ),
    StepMetric(
        "preference/chosen_reward",
        "reward of better answers",
        "reward",
        "Mean of β (log π − log π_start) of better answers; absent without pairs.",
    ),
    StepMetric("preference/rejected_reward", "reward of worse answers", "reward", "The same of worse answers."),
    StepMetric("critic/vf_loss", "loss of the critic", "loss", "Value loss of the critic."),
    StepMetric("critic/vf_clipfrac", "share of values clipped", "share", "Share of values that were clipped."),
    StepMetric(
        "critic/grad_norm", "gradient norm of the critic", "norm", "Norm of the critic's gradient before clipping."
    ),
    StepMetric(
        "critic/skipped_updates",
        "updates of the critic skipped",
        "updates",
        "The critic's updates that changed nothing.",
    ),
    StepMetric(
        "off_policy/ess",
        "effective sample size",
        "share",
        "Effective sample size of the update as a share of all tokens.",
    ),
    StepMetric(
        "off_policy/ess_scale", "factor of the learning rate", "factor", "Factor of the learning rate, by `ess_bound`."
    ),
    StepMetric(
        "agreement/tokens",
        "fresh tokens",
        "tokens",
        "Trained tokens of calls that the newest version sampled alone: engine and learner compute one policy there.",
    ),
    StepMetric(
        "agreement/k3",
        "divergence on fresh tokens",
        "nats",
        "Divergence of learner and engine on fresh tokens by the k3 estimate; rounding alone gives about 0.001.",
    ),
    StepMetric(
        "agreement/clipped_share",
        "clipped fresh tokens",
        "share",
        "Share of the fresh tokens whose ratio of learner to engine is outside PPO's clip before the update; only with "
        "`bypass_mode`, whose ratio is against the engine.",
    ),
    StepMetric(
        "rollout_corr/kl", "drift to the engine, mean log-ratio", "nats", "Mean log-ratio of the engine to the learner."
    ),
    StepMetric(
        "rollout_corr/k3_kl",
        "drift to the engine, k3",
        "nats",
        "k3 estimate of the divergence of engine and learner: mean of r - 1 - log r, r the ratio of probabilities.",
    ),
    StepMetric(
        "rollout_corr/training_ppl", "perplexity, learner", "perplexity", "Perplexity of answers under the learner."
    ),
    StepMetric(
        "rollout_corr/training_log_ppl",
        "log-perplexity, learner",
        "nats",
        "Mean log-perplexity of a call's answer under the learner.",
    ),
    StepMetric(
        "rollout_corr/rollout_ppl", "perplexity, engine", "perplexity", "Perplexity of answers under the engine."
    ),
    StepMetric(
        "rollout_corr/rollout_log_ppl",
        "log-perplexity, engine",
        "nats",
        "Mean log-perplexity of a call's answer under the engine.",
    ),
    StepMetric(
        "rollout_corr/ppl_ratio",
        "ratio of perplexities",
        "ratio",
        "Perplexity under the learner divided by that under the engine.",
    ),
    StepMetric(
        "rollout_corr/log_ppl_diff",
        "difference of log-perplexities",
        "nats",
        "Mean log-perplexity under the learner minus that under the engine.",
    ),
    StepMetric(
        "rollout_corr/log_ppl_abs_diff",
        "absolute difference of log-perplexities",
        "nats",
        "Mean absolute difference of both log-perplexities of a call.",
    ),
    StepMetric(
        "rollout_corr/log_ppl_diff_max",
        "largest difference of log-perplexities",
        "nats",
        "Largest log-perplexity of a call under the learner minus that under the engine.",
    ),
    StepMetric(
        "rollout_corr/log_ppl_diff_min",
        "smallest difference of log-perplexities",
        "nats",
        "Smallest log-perplexity of a call under the learner minus that under the engine.",
    ),
    StepMetric(
        "rollout_corr/chi2_token", "χ² over tokens", "chi²", "χ² divergence of learner and engine, over tokens."
    ),
    StepMetric("rollout_corr/chi2_seq", "χ² over calls", "chi²", "χ² divergence of learner and engine, over calls."),
    StepMetric(
        "rollout_corr/rollout_is_{statistic}",
        "importance weights: {statistic}",
        "weight",
        "A statistic of the importance weights, by verl.",
    ),
    StepMetric(
        "rollout_corr/rollout_rs_{statistic}",
        "rejection rules: {statistic}",
        "statistic",
        "A statistic of the rejection rules, by verl.",
    ),
)
"""All of them; the learner reports no other. ``actor/``, ``critic/`` and ``rollout_corr/`` are verl's names."""


def find_undeclared(names: Iterable[str]) -> list[str]:
    """List the names that no metric has."""
    return [name for name in names if not any(metric.matches(name) for metric in STEP_METRICS)]


def describe_metric(name: str) -> dict[str, str]:
    """Return ``title``, ``unit``, ``about`` and ``group`` of a metric; an undeclared one is its own title."""
    for metric in STEP_METRICS:
        if metric.matches(name):
            return metric.describe(name)
    return {"title": name, "unit": "", "about": "", "group": GROUPS.get(name.split("/")[0], DEFAULT_GROUP)}
