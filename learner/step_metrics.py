"""Every metric of a training step: its name, unit and meaning. Pure.

Prometheus' metrics are others: `lightningbus.common.observability.metrics`.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepMetric:
    """A metric as it is stored. A placeholder in the name, as ``{reason}``, stands for any text without a slash."""

    name: str
    unit: str
    meaning: str

    def matches(self, name: str) -> bool:
        """Return whether a name is this metric's."""
        parts = re.split(r"\{\w+\}", self.name)
        return re.fullmatch("[^/]+".join(map(re.escape, parts)), name) is not None


STEP_METRICS: tuple[StepMetric, ...] = (
    StepMetric("reward/mean", "reward", "Mean reward over rollouts that have one."),
    StepMetric("reward/std", "reward", "Standard deviation of the reward over rollouts that have one."),
    StepMetric("rewards/ignored", "calls", "Calls with a reward of their own that the credit method does not use."),
    StepMetric("overlong/penalty", "reward", "Mean penalty for long answers that is added to the reward, 0 at most."),
    StepMetric(
        "groups/without_signal", "groups", "Groups whose rollouts all have advantage 0, as where all rewards are equal."
    ),
    StepMetric(
        "groups/replaced",
        "groups",
        "Groups without signal that others have replaced since the step before; absent without "
        "`task_selection.replace_without_signal`.",
    ),
    StepMetric("rollouts", "rollouts", "Rollouts in the groups of the step."),
    StepMetric("rollouts/trained", "rollouts", "Rollouts that were trained on."),
    StepMetric("sequences", "sequences", "Token sequences that were trained on."),
    StepMetric("calls", "calls", "The model's calls in trained rollouts."),
    StepMetric("calls/clipped", "calls", "Calls whose answer ended at its length limit."),
    StepMetric("excluded/{reason}", "calls", "Calls of trained rollouts that were left out, by reason."),
    StepMetric("prefix_breaks/{reason}", "calls", "Calls that continue a conversation without extending its tokens."),
    StepMetric("tokens", "tokens", "Tokens that were trained on."),
    StepMetric("tokens/imitated", "tokens", "Tokens of answers that `supervised` gave; absent without it."),
    StepMetric("tokens/compared", "tokens", "Tokens of answers in the pairs of `preferences`; absent without it."),
    StepMetric("tokens/sampled", "tokens", "Tokens of the model's answers in trained rollouts."),
    StepMetric("tokens/scored", "tokens", "Trained tokens that the teacher has scored; absent without one."),
    StepMetric("tokens/excluded", "tokens", "Tokens of calls that were left out."),
    StepMetric("tokens/forced", "tokens", "Tokens that the engine put in, as the end of a thought at its budget."),
    StepMetric("tokens/masked", "tokens", "Tokens masked as stale."),
    StepMetric("tokens/truncated", "tokens", "Tokens sampled with truncation, penalties or constraints."),
    StepMetric(
        "truncated_share", "share", "Share of trained tokens sampled with truncation, penalties or constraints."
    ),
    StepMetric(
        "truncated/{setting}", "calls", "Calls sampled with truncation, penalties or constraints, by the setting."
    ),
    StepMetric("response_length/mean", "tokens", "Mean length of an answer."),
    StepMetric("response_length/clip_ratio", "share", "Share of answers that ended at their length limit."),
    StepMetric("coverage", "share", "Share of trainable tokens that were trained on."),
    StepMetric("staleness/mean", "versions", "Mean number of versions between sampling and training, over tokens."),
    StepMetric("staleness/max", "versions", "Largest number of versions between sampling and training of a token."),
    StepMetric("seconds/idle", "s", "Time that the learner waited for groups before the step."),
    StepMetric("learner/idle_share", "share", "Share of the step's time that the learner waited for groups."),
    StepMetric("bus/gaps", "gaps", "Gaps in the stream of rollouts since the last step; absent if there was none."),
    StepMetric("bus/tasks_dispatched_again", "tasks", "Tasks dispatched again because of gaps in the stream."),
    StepMetric(
        "actor/loss",
        "loss",
        "Whole loss: policy loss with KL and entropy terms, and other parts, by weight; of pairs that of DPO.",
    ),
    StepMetric("actor/pg_loss", "loss", "Policy loss alone."),
    StepMetric("actor/ce_loss", "nats", "Mean -log π of imitated tokens; absent if there are none."),
    StepMetric("actor/teacher_kl", "nats", "k3 estimate of the divergence from the teacher; absent without one."),
    StepMetric("actor/kl_loss", "nats", "Mean divergence from the reference model."),
    StepMetric("actor/entropy", "nats", "Mean entropy of the policy over trained tokens."),
    StepMetric("actor/entropy_loss", "nats", "The entropy that the loss rewards; absent if `entropy_coeff` is 0."),
    StepMetric("actor/grad_norm", "norm", "Norm of the gradient before clipping."),
    StepMetric("actor/lr", "rate", "Learning rate of the schedule in this step."),
    StepMetric("actor/skipped_updates", "updates", "Updates that changed nothing: their gradient was not finite."),
    StepMetric("actor/pg_clipfrac", "share", "Share of tokens whose ratio was clipped."),
    StepMetric("actor/pg_clipfrac_lower", "share", "Share of tokens clipped by `verl.actor.clip_ratio_c`."),
    StepMetric("actor/ppo_kl", "nats", "Mean log-ratio of the old policy to the current one."),
    StepMetric("preference/accuracy", "share", "Share of pairs whose better answer has gained more than the worse."),
    StepMetric("preference/margin", "reward", "Mean reward of better answers minus that of worse ones."),
    StepMetric(
        "preference/chosen_reward", "reward", "Mean of β (log π − log π_start) of better answers; absent without pairs."
    ),
    StepMetric("preference/rejected_reward", "reward", "The same of worse answers."),
    StepMetric("critic/vf_loss", "loss", "Value loss of the critic."),
    StepMetric("critic/vf_clipfrac", "share", "Share of values that were clipped."),
    StepMetric("critic/grad_norm", "norm", "Norm of the critic's gradient before clipping."),
    StepMetric("critic/skipped_updates", "updates", "The critic's updates that changed nothing."),
    StepMetric("off_policy/ess", "share", "Effective sample size of the update as a share of all tokens."),
    StepMetric("off_policy/ess_scale", "factor", "Factor of the learning rate, by `ess_bound`."),
    StepMetric("rollout_corr/kl", "nats", "Mean log-ratio of the engine to the learner."),
    StepMetric("rollout_corr/k3_kl", "nats", "k3 estimate of the divergence of engine and learner."),
    StepMetric("rollout_corr/training_ppl", "perplexity", "Perplexity of answers under the learner."),
    StepMetric("rollout_corr/training_log_ppl", "nats", "Mean log-perplexity of a call's answer under the learner."),
    StepMetric("rollout_corr/rollout_ppl", "perplexity", "Perplexity of answers under the engine."),
    StepMetric("rollout_corr/rollout_log_ppl", "nats", "Mean log-perplexity of a call's answer under the engine."),
    StepMetric("rollout_corr/ppl_ratio", "ratio", "Perplexity under the learner divided by that under the engine."),
    StepMetric(
        "rollout_corr/log_ppl_diff", "nats", "Mean log-perplexity under the learner minus that under the engine."
    ),
    StepMetric(
        "rollout_corr/log_ppl_abs_diff",
        "nats",
        "Mean absolute difference of both log-perplexities of a call.",
    ),
    StepMetric(
        "rollout_corr/log_ppl_diff_max",
        "nats",
        "Largest log-perplexity of a call under the learner minus that under the engine.",
    ),
    StepMetric(
        "rollout_corr/log_ppl_diff_min",
        "nats",
        "Smallest log-perplexity of a call under the learner minus that under the engine.",
    ),
    StepMetric("rollout_corr/chi2_token", "chi²", "χ² divergence of learner and engine, over tokens."),
    StepMetric("rollout_corr/chi2_seq", "chi²", "χ² divergence of learner and engine, over calls."),
    StepMetric("rollout_corr/rollout_is_{statistic}", "weight", "A statistic of the importance weights, by verl."),
    StepMetric("rollout_corr/rollout_rs_{statistic}", "statistic", "A statistic of the rejection rules, by verl."),
)
"""All of them; the learner reports no other. ``actor/``, ``critic/`` and ``rollout_corr/`` are verl's names."""


def find_undeclared(names: Iterable[str]) -> list[str]:
    """List the names that no metric has."""
    return [name for name in names if not any(metric.matches(name) for metric in STEP_METRICS)]
