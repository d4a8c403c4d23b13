"""Every alert rule: who raises it, when, from which threshold, and what it says. Pure.

`lightningbus.alerts.publisher` publishes alerts for most of them; a status or a log line tells of the others.
"""

from dataclasses import dataclass

NUM_STARTS = 4
RESTART_WINDOW_SECONDS = 600.0
"""Starts further apart are not a restart loop."""
MIN_FAILED_ATTEMPTS = 16
"""In a row, before the sentence of a step that does not come names them: fewer may be chance."""
START_SECONDS = 300.0
"""Seconds a child may take until its first heartbeat: a large model is loaded by then."""
ABSENT_SECONDS = 10.0
"""Seconds a child that was there may be missing from the fleet, which itself forgets whoever is silent for 10 s."""
NUM_STEPS, MIN_ROLLOUTS, MAX_GAP = 50, 200, 0.1
"""Newest training steps of a run that are compared; rollouts of them; and by so much the share trained of the slowest
tenth may be below that of all."""
NUM_FAILED_STEPS, MIN_FAILED_ROLLOUTS, MAX_FAILED = 10, 64, 0.1
"""Newest training steps whose failed rollouts are counted; rollouts of them; and the share that may fail."""
MIN_FRESH_TOKENS, MAX_CLIPPED_SHARE = 64, 0.02
"""Fresh tokens of a step from which engine and learner are compared, and the share of them whose ratio may be clipped:
rounding clips 0.5 % of a 16-bit engine's."""
STOP_CLIPPED_SHARE, MAX_APART_STEPS = 0.1, 3
"""Share of clipped fresh tokens with which so many steps in a row end the learner."""
NUM_TRAINING_STEPS = 3
"""Newest training steps that must all show a problem of training, so that it is not chance."""
MAX_REPEATING, MAX_CLIPPED, MIN_EFFECTIVE = 0.1, 0.2, 0.5
"""Share of answers that may end in a repetition, share of tokens that may be clipped, and least effective sample."""
FULL = 0.75
"""Share of a stream's bound at which room is made; a learner writes checkpoints of its own from 0.5 on."""


@dataclass(frozen=True, slots=True)
class AlertRule:
    """A condition that is watched; ``sentence`` has its values in braces, as `str.format` takes them."""

    raised_by: str
    condition: str
    threshold: str
    sentence: str


STALL, ABSENT = "`stall_timeout_seconds` of the store", "`absent_seconds` of the store"
IN_STEPS = f"each of {NUM_TRAINING_STEPS} steps, or of all if the run has fewer"
NO_ROLLOUT = "no rollout has finished for {seconds:.0f} s and {num_tasks} tasks wait: "
NO_GRADE = "no rollout has finished for {seconds:.0f} s and {num_ungraded} wait for a grade: "

ALERT_RULES = {
    "disk_full": AlertRule(
        "store", "The disk of the store or of a learner is full.", "`disk_free_mib` of the role",
        "{role} {id}: {problem}",
    ),
    "role_gone": AlertRule(
        "store", "A role that is expected, or did not say that it stops, is silent.", ABSENT,
        "no {who} has been there for {seconds:.0f} s: it ended without a word, or is cut off",
    ),
    "restart_loop": AlertRule(
        "store", "A learner starts again and again.", f"{NUM_STARTS} starts in {RESTART_WINDOW_SECONDS:.0f} s",
        "the {who} has started {num_starts} times without a training step between: its log says why it ends",
    ),
    "store_cannot_write": AlertRule(
        "store", "No rollout finishes, and ClickHouse takes no rows.", STALL,
        NO_ROLLOUT + "the store cannot write: {problem}",
    ),
    "no_runner": AlertRule(
        "store", "No rollout finishes, and no runner is up.", STALL,
        NO_ROLLOUT + "no runner is there to take them ({states})",
    ),
    "no_node": AlertRule(
        "store", "No rollout finishes, and no node serves.", STALL, NO_ROLLOUT + "no inference node is ready ({states})"
    ),
    "stream_full": AlertRule(
        "store", "No rollout finishes, as a stream is full and one reader of it lags.", STALL,
        NO_ROLLOUT + "{stream} is full: {slowest} lags (messages not acknowledged: {counts})",
    ),
    "store_behind": AlertRule(
        "store", "No rollout finishes, as a stream is full and the store is behind.", STALL,
        NO_ROLLOUT + "{stream} is full, {num_pending} messages are not written yet",
    ),
    "other_agent": AlertRule(
        "store", "No rollout finishes, and no runner takes the tasks.", STALL,
        NO_ROLLOUT + "the runners, of agent {agents}, get none of them; are they another agent's?",
    ),
    "agents_hang": AlertRule(
        "store", "No rollout finishes, and all runners are busy.", STALL,
        NO_ROLLOUT + "the runners are busy, but no agent comes to an end",
    ),
    "no_grader": AlertRule(
        "store", "No rollout finishes, and no grader is up.", STALL, NO_GRADE + "no grader is there to give it"
    ),
    "graders_hang": AlertRule(
        "store", "No rollout finishes, and a grader is at work.", STALL,
        NO_GRADE + "the graders are there, and come to no end",
    ),
    "no_step": AlertRule(
        "store", "A learner that has work makes no training step.",
        f"{STALL}; three times as long for its first steps, or three times its last step if that is longer",
        "no training step for {seconds:.0f} s: the {who} is {state}{details}",
    ),
    "slow_left_out": AlertRule(
        "store", f"Of the newest {NUM_STEPS} steps, slow rollouts are trained less than others.",
        f"{MAX_GAP:.0%} less, from {MIN_ROLLOUTS} rollouts on",
        "run {run}{of_model} leaves out slow rollouts: of the slowest tenth {slow_share:.0%} is trained, of all "
        "{share:.0%} (`lightningbus report fairness` has more)",
    ),
    "failed_left_out": AlertRule(
        "store", f"Of the newest {NUM_FAILED_STEPS} steps, rollouts that the agent failed are left out.",
        f"{MAX_FAILED:.0%} of them, from {MIN_FAILED_ROLLOUTS} rollouts on",
        "run {run}{of_model} leaves out {share:.0%} of its newest rollouts, which the agent failed ({error}): nothing "
        "teaches the model to avoid that, and rewards of training look better than they are; `failed_rollouts: zero` "
        "counts them as 0",
    ),
    "child_not_up": AlertRule(
        "supervisor", "A role that the run starts has not come up.", f"{START_SECONDS:.0f} s",
        "{name} has not come up: {doing}",
    ),
    "child_gone": AlertRule(
        "supervisor", "A role that the run started is silent.", f"{ABSENT_SECONDS:.0f} s after the fleet forgets it",
        "{name} is gone: {doing}",
    ),
    "groups_rejected": AlertRule(
        "learner", "Groups in a row give nothing to train on.", "as many as may be under way",
        "{findings}: they are tried one by one now",
    ),
    "policies_apart": AlertRule(
        "learner", "Engine and learner differ on tokens that the newest version sampled.",
        f"{MAX_CLIPPED_SHARE:.0%} of at least {MIN_FRESH_TOKENS} tokens clipped, by three standard deviations; the "
        f"learner ends at {STOP_CLIPPED_SHARE:.0%} in {MAX_APART_STEPS} steps in a row",
        "engine and learner compute different policies: of the tokens that the newest version sampled {share:.1%} have "
        "a clipped ratio (k3 {k3:.2g} nats). Give inference.dtype, learner.weights.dtype and learner.engine.dtype one "
        "number format, or set algorithm.rollout_correction.bypass_mode: false",
    ),
    "rewards_equal": AlertRule(
        "learner", "All rewards of a step are equal, so that no advantage is above or below 0.", IN_STEPS,
        "nothing is learned: all rewards of the last steps are {reward:g}, so no answer is better than another; look "
        "at rollouts (`lightningbus rollouts show`), and if agent and reward are right, take other tasks, a larger "
        "group_size, or a reward with partial credit",
    ),
    "tools_uncalled": AlertRule(
        "learner", "No rollout calls a tool that it was offered, and no group has a signal.", IN_STEPS,
        "nothing is learned: of {num_rollouts:g} rollouts of the last step that were offered tools, none called one; "
        "see what the model read and answered (`rollouts show`), check tool_parser, and train a model that does not "
        "know such calls on right conversations first (`lightningbus sft`)",
    ),
    "no_signal": AlertRule(
        "learner", "No group of a step has an advantage other than 0, though rewards differ between groups.", IN_STEPS,
        "nothing is learned: in the last steps the rollouts of each group had equal rewards; take tasks that the "
        "model solves sometimes (`task_selection`), a larger group_size, or a reward with partial credit",
    ),
    "zero_gradient": AlertRule(
        "learner", "The gradient of a step is 0, though its groups have a signal.", IN_STEPS,
        "nothing is learned: the gradient of the last steps is 0, so no weight moves; check `loss_weights`, the loss, "
        "and that the engine's settings freeze no weights",
    ),
    "sampling_constrained": AlertRule(
        "learner", "Trained tokens were sampled with truncation, penalties or constraints.", "above 0",
        "{share:.0%} of the trained tokens were sampled with {names}: their recorded log-probabilities are of another "
        "distribution than the learner's, and ratios are off with nothing moved; leave {names} out of the calls",
    ),
    "rewards_ignored": AlertRule(
        "learner", "Calls have a reward that the credit method does not use.", "above 0",
        "{num_calls:g} calls of a step have a reward of their own, which the credit method ignores; set credit to "
        "reward_to_go or gigpo",
    ),
    "rollouts_without_call": AlertRule(
        "learner", "Rollouts end without a model call.", "above 0",
        "{share:.0%} of the rollouts of a step called no model, so they are left out: if the agent asks a model each "
        "time, a cache of its client gives it old answers; turn the cache off",
    ),
    "answers_repeat": AlertRule(
        "learner", "Answers end in a repetition.", f"{MAX_REPEATING:.0%} of the calls of {IN_STEPS}",
        "{share:.0%} of the answers of the last step end in a repetition; go back to an earlier "
        "version, lower actor.optim.lr, or give such answers a lower reward",
    ),
    "tokens_clipped": AlertRule(
        "learner", "Many ratios are clipped.", f"{MAX_CLIPPED:.0%} of the tokens of {IN_STEPS}",
        "an update moves the policy too far: {share:.0%} of the tokens of the last step were clipped; lower "
        "actor.optim.lr, actor.ppo_epochs or max_staleness",
    ),
    "sample_small": AlertRule(
        "learner", "The effective sample size of an update is low.", f"{MIN_EFFECTIVE:g} in {IN_STEPS}",
        "tokens are of a policy far from the one that is trained: the effective sample of the last step is "
        "{share:.0%}; lower max_staleness or actor.optim.lr",
    ),
    "messages_lost": AlertRule(
        "learner", "The bus has lost messages.", "1",
        "the bus lost messages: {reason}; {tasks} tasks are dispatched again",
    ),
    "steps_given_up": AlertRule(
        "learner", "A learner starts behind the newest version, without the batches that made it.", "1",
        "training goes back to step {step}: {directory} ends there, and the newer steps on the bus ({num_steps}) are "
        "given up; to keep them, stop this learner, and start it with the checkpoints of the learner that made them",
    ),
    "engine_fails_audit": AlertRule(
        "auditor", "An engine's tokens are not what it says.", "`false_alarm_rate` of the auditor",
        "engine {engine} fails the audit since version {version}: {reason} ({num_tokens} tokens, odds "
        "e^{evidence:.0f})",
    ),
    "version_fails_audit": AlertRule(
        "auditor, in its log", "A weight version fails on a second engine.", "`false_alarm_rate` of the auditor",
        "version {version} fails the audit: {reason} ({num_tokens} tokens, odds e^{evidence:.0f})",
    ),
    "rollouts_missing": AlertRule(
        "store, in its log", "The bus has settled tasks whose end is not in ClickHouse.", "1, twice in a row",
        "{num_missing} tasks that the bus has settled have no end in ClickHouse",
    ),
    "learner_passed_by": AlertRule(
        "store, in its log", "A learner is behind and fills the stream of others.", f"{FULL:.0%} of the stream's bound",
        "stream {stream} is filling: the learner of {model!r} is behind and will not get {num_messages} messages, so "
        "that others go on",
    ),
}  # fmt: skip


def describe(rule: str, /, **values: object) -> str:
    """Return the sentence of an alert rule, by its name."""
    return ALERT_RULES[rule].sentence.format(**values)
