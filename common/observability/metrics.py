"""Every metric there is: when it moves, and what to do about it. A room moves it where the thing happens.

docs/operations.md has them as a table, which `python -m docs.reference` writes.
"""

from prometheus_client import Counter, Gauge, Histogram

from lightningbus.common.observability.metric_registry import register

SHORT_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
LONG_BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)

ready = register(
    Gauge, "common", "ready", "1 while `/readyz` answers 200, else 0.",
    "0 for long: ask `/readyz` why; it says so in a sentence.",
)  # fmt: skip
reconnects = register(
    Counter, "common", "bus_reconnects_total", "The connection to the bus was lost and made again.",
    "Rising on one role: its network. On all of them: the broker restarts or is overloaded; see its log.",
)  # fmt: skip
certificate_expires_at = register(
    Gauge, "common", "certificate_expires_at_seconds",
    "The connection is made, or a day is over: when its certificates end, in Unix seconds.",
    "Less than 30 days off, of `own`, `authority` or `server`: `lightningbus bus rotate`.", ["certificate"],
)  # fmt: skip
publish_duration = register(
    Histogram, "common", "bus_publish_duration_seconds", "An event is published: until the stream has it.",
    "Slow: the broker's disk (`sync_interval: always`), or a stream that is full.", buckets=SHORT_BUCKETS,
)  # fmt: skip
publishes_blocked = register(
    Gauge, "common", "bus_publishes_blocked", "Events that wait because their stream is full.",
    "Above 0: whoever reads that stream is slow or gone: the store or the learner for rollouts, runners for TASKS.",
)  # fmt: skip
dead_letters = register(
    Counter, "common", "dead_letters_total", "A message nobody can use is kept as a dead letter.",
    "Rising: `lightningbus dlq list` says why; after a fix, `dlq replay`.", ["stream"],
)  # fmt: skip
unreadable_entries = register(
    Counter, "common", "unreadable_entries_total", "An entry of the weights' bucket cannot be read and is skipped.",
    "Rising: something else than the learner writes into the bucket; the log names the blob.",
)  # fmt: skip
faults = register(
    Counter, "common", "faults_total",
    "A message meets an unexpected error: a task is retried, any other is skipped or becomes a dead letter.",
    "Above 0: worth a report; the role's log has the traceback.",
)  # fmt: skip

messages_skipped = register(
    Counter, "common", "messages_skipped_total",
    "A weight version, decision or swap lock is skipped: it is unreadable, or its signer has no right to it.",
    "Rising: somebody else writes there; the log says why. `lightningbus weights repair` removes such messages.",
    ["kind"],
)  # fmt: skip

disk_free = register(
    Gauge, "common", "disk_free_bytes", "Bytes free on the disk of a role's `store` or `checkpoints`.",
    "Below `disk_free_mib` the role is not ready and an alert is raised: make room.", ["disk"],
)  # fmt: skip

tasks_received = register(
    Counter, "runner", "runner_tasks_received_total", "A runner received a task from the queue.",
    "Flat while `lightningbus_queue_tasks` is above 0: no free slots, or runners of another agent.",
)  # fmt: skip
tasks_nacked = register(
    Counter, "runner", "runner_tasks_nacked_total", "A task goes back to the queue: the runner stops, or lost the bus.",
    "Rising without deployments: the bus, or `drain_timeout_seconds` is too short.",
)  # fmt: skip
attempts = register(
    Counter, "runner", "runner_attempts_total", "An attempt at a rollout ends.",
    "`agent_error`, `timeout`: the agent's own. `reward_timeout`: the reward function's. `infra_error`, `poison`: "
    "ours; the runner's log says why.",
    ["outcome"],
)  # fmt: skip
attempt_duration = register(
    Histogram, "runner", "runner_attempt_duration_seconds", "As above: how long it took.",
    "Near the deadline of the tasks: more nodes, fewer slots, or a longer deadline.", buckets=LONG_BUCKETS,
)  # fmt: skip
slots = register(
    Gauge, "runner", "runner_slots", "Rollouts this runner may run at once; set as it starts.",
    "The sum over runners is what the nodes have to bear.",
)  # fmt: skip
slots_in_use = register(
    Gauge, "runner", "runner_slots_in_use", "Rollouts this runner runs now.",
    "At `slots` while tasks are queued: more runners help, if the nodes keep up. Low: tasks are what is missing.",
)  # fmt: skip
upstream_calls_waiting = register(
    Gauge, "runner", "runner_upstream_calls_waiting", "Model calls that wait for a node to answer them now.",
    "Above 0 for long: no node is ready, or all are full; see `lightningbus status`.",
)  # fmt: skip
upstream_retries = register(
    Counter, "runner", "runner_upstream_retries_total", "A node rejected a call, broke off or was not reached.",
    "The call is retried. Rising steadily: a node is in trouble; see the nodes' own counts.",
)  # fmt: skip
gateway_requests = register(
    Counter, "runner", "runner_gateway_requests_total",
    "The runner's gateway answers an agent; 499: the agent went away.",
    "4xx: the agent's requests. 5xx: no node answered before the rollout's deadline.", ["status"],
)  # fmt: skip
spans_refused = register(
    Counter, "runner", "runner_spans_refused_total",
    "A span, log record or event of an agent is not kept: its `id`, `form`, `time` or `size`, or no `room` is left.",
    "Rising: the agent's instrumentation; the answer to its exporter says what is wrong (`partialSuccess`).",
    ["reason"],
)  # fmt: skip
calls_without_tokens = register(
    Counter, "runner", "runner_calls_without_tokens_total",
    "A model call is recorded as text alone: token ids are missing, or the agent left before it got anything.",
    "It is not trained; its span says why. Rising: a parser of the engine's swallows tokens, or agents give up early.",
)  # fmt: skip
tokens = register(
    Counter, "runner", "runner_tokens_total",
    "A model call is recorded: tokens of its `prompt`, tokens of its `completion`.",
    "The throughput of the system. Prompts many times the completions: histories that grow, or are rendered anew.",
    ["type"],
)  # fmt: skip

queue_tasks = register(
    Gauge, "store", "queue_tasks", "Tasks in the queue, those being worked on included; looked up every two seconds.",
    "Rising: more runners, or fewer tasks. 0 while the learner waits: whoever publishes tasks.",
)  # fmt: skip
store_pending_messages = register(
    Gauge, "store", "store_pending_messages", "Messages that were not delivered to the store yet.",
    "Rising: ClickHouse is slow or down. At the bound of the stream, runners wait.",
)  # fmt: skip
rollout_messages_passed = register(
    Counter, "store", "store_rollout_messages_passed_total",
    "Messages of rollouts that a learner will not read: it was behind, filled the stream and held up other learners.",
    "That learner is gone or too slow for the others: start it, or give it more room or fewer groups.", ["model"],
)  # fmt: skip
store_rows_inserted = register(
    Counter, "store", "store_rows_inserted_total", "Rows are in ClickHouse, by table.",
    "Flat while runners finish rollouts: see `lightningbus_store_insert_failures_total`.", ["table"],
)  # fmt: skip
store_bytes = register(
    Counter, "store", "store_bytes_total", "Bytes of the messages whose rows are in ClickHouse.",
    "What disk and retention (`retention_days`) have to be planned for.",
)  # fmt: skip
insert_duration = register(
    Histogram, "store", "store_insert_duration_seconds", "A batch is inserted.",
    "Above `flush_interval_seconds`, with a backlog: ClickHouse is the bottleneck.", buckets=SHORT_BUCKETS,
)  # fmt: skip
insert_failures = register(
    Counter, "store", "store_insert_failures_total", "ClickHouse rejected a batch; it is retried.",
    "Rising: the log and `/readyz` give ClickHouse's words.",
)  # fmt: skip
rollouts_missing = register(
    Gauge, "store", "store_rollouts_missing",
    "Tasks that the broker counts as settled and ClickHouse has no end of; looked up every ten seconds.",
    "Above 0: rows were lost, removed (`retention_days`), or are in another ClickHouse; see the log of the store.",
)  # fmt: skip
alert_firing = register(
    Gauge, "store", "alert_firing",
    "1 while nothing moves: no rollout, or no training step, for `stall_timeout_seconds`.",
    "The label is the role that has no work; `lightningbus status` says why.", ["role"],
)  # fmt: skip

bus_gaps = register(
    Counter, "learner", "bus_gaps_total", "The bus lost messages: tasks without a result are dispatched again.",
    "Rising: the broker loses its disk, or was set back to an older copy; the learner's log says what is missing.",
)  # fmt: skip
rejected_batches = register(
    Counter, "learner", "learner_rejected_batches_total", "A span batch cannot be read, or makes no sense.",
    "Rising: another release of the runners, or a foreign publisher; the learner's log has the reason.",
)  # fmt: skip
steps = register(
    Counter, "learner", "learner_steps_total", "A training step is made.",
    "Flat: the learner waits for rollouts, see `lightningbus_learner_groups_ready`.",
)  # fmt: skip
step_duration = register(
    Histogram, "learner", "learner_step_duration_seconds",
    "As above: how long it took, the wait for rollouts left out.",
    "Long: smaller batches, more GPUs, `ppo_max_token_len_per_gpu`.", buckets=LONG_BUCKETS,
)  # fmt: skip
learner_idle = register(
    Counter, "learner", "learner_idle_seconds_total", "Seconds the learner has waited for rollouts before a step.",
    "Rising as fast as time: rollouts are the bottleneck. Flat: training is.",
)  # fmt: skip
learner_weight_version = register(
    Gauge, "learner", "learner_weight_version", "Version of the weights being trained.",
    "Compare with `lightningbus_inference_weight_version`: the difference is the lag of the nodes.",
)  # fmt: skip
groups_ready = register(
    Gauge, "learner", "learner_groups_ready", "Groups that are complete and wait for a step.",
    "Below `groups_per_step` for long: runners or nodes are short. Far above: training is.",
)  # fmt: skip
reward_mean = register(
    Gauge, "learner", "learner_reward_mean", "Mean reward of the rollouts of the last step.",
    "Falling over many steps: training does harm; see `lightningbus report reward_by_version`.",
)  # fmt: skip
staleness = register(
    Gauge, "learner", "learner_staleness_mean", "Mean lag, in versions, of the tokens of the last step.",
    "Near `max_staleness`: rollouts are longer than steps; see `staleness`.",
)  # fmt: skip
trained_tokens = register(
    Counter, "learner", "learner_trained_tokens_total", "Tokens trained on.",
    "The throughput of training.",
)  # fmt: skip
learner_rollouts = register(
    Counter, "learner", "learner_rollouts_total", "A rollout is accounted for: `trained` or `excluded`.",
    "Many excluded: the table `training_rollouts` has the reason of each.", ["result"],
)  # fmt: skip
weight_broadcasts = register(
    Counter, "learner", "learner_weight_broadcasts_total",
    "A broadcast of a version to engines ends: `sent` or `aborted`.",
    "`aborted` rising: the log names the node that did not join, or the error; those versions are fetched instead.",
    ["result"],
)  # fmt: skip

inference_weight_version = register(
    Gauge, "inference", "inference_weight_version", "Version of the weights the node serves of a model.",
    "Behind the learner's: see the failures to fetch, and the log.", ["model"],
)  # fmt: skip
swap_pause = register(
    Histogram, "inference", "inference_weight_swap_pause_seconds",
    "New weights are swapped in: how long generation stood still.",
    "Long: `weight_sync_interval` above 1, LoRA, or a faster disk.", buckets=SHORT_BUCKETS,
)  # fmt: skip
weight_fetch = register(
    Histogram, "inference", "inference_weight_fetch_seconds",
    "New weights are fetched and verified, while the old ones serve.",
    "Longer than a step: versions are passed over; the network between broker and node.", buckets=LONG_BUCKETS,
)  # fmt: skip
swap_lock_wait = register(
    Histogram, "inference", "inference_swap_lock_wait_seconds", "A node waited for the swap lock, after the fetch.",
    "About the swaps of the other nodes. Longer: `lightningbus status`, for a node in state `canary` or dead.",
    buckets=LONG_BUCKETS,
)  # fmt: skip
canaries = register(
    Counter, "inference", "inference_canaries_total",
    "A canary ran on this node: its version is `approved` or `revoked`.",
    "`revoked`: `lightningbus weights list` says why. The nodes go on with the version before.", ["result"],
)  # fmt: skip
weight_fetch_failures = register(
    Counter, "inference", "inference_weight_fetch_failures_total",
    "A version was not fetched, was not what its digest says, or is none the engine takes.",
    "Rising: the log says why; the node goes on with what it has.",
)  # fmt: skip
inference_requests = register(
    Counter, "inference", "inference_requests_total", "The node's gateway answers; 499: the runner went away.",
    "503: the node is not ready. 409: the call is pinned to another version. Other 4xx: vLLM refused it.", ["status"],
)  # fmt: skip
inference_requests_in_flight = register(
    Gauge, "inference", "inference_requests_in_flight", "Requests the node's gateway handles now.",
    "At `max_num_seqs` for long: vLLM queues; more nodes.",
)  # fmt: skip
engine_starts = register(
    Counter, "inference", "inference_engine_starts_total", "vLLM is started.",
    "Above 1: it died; its log is `vllm.log` in the node's `work_dir`.",
)  # fmt: skip
audited_tokens = register(
    Counter, "auditor", "audited_tokens_total", "The auditor has recomputed tokens.",
    "Not rising while rollouts come: the auditor's log says why.",
)  # fmt: skip
audit_verdicts = register(
    Counter, "auditor", "audit_verdicts_total", "An engine, or a weight version, fails the audit.",
    "Above 0: `lightningbus audit` names it, what is quarantined, and the step to go back to.",
)  # fmt: skip
