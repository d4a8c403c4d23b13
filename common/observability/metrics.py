"""All metrics, with the events that move them and advice. Each is updated by the module where the event happens.

docs/operations.md has them as a table, which `python -m docs.reference` writes.
"""

from prometheus_client import Counter, Gauge, Histogram

from lightningbus.common.observability.metric_registry import register

SHORT_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
LONG_BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)

ready = register(
    Gauge, "common", "ready", "1 while `/readyz` answers 200, else 0.",
    "0 for long: `/readyz` gives the reason in a sentence.",
)  # fmt: skip
reconnects = register(
    Counter, "common", "bus_reconnects_total", "The connection to the bus was lost and made again.",
    "Rising on one role: check its network. On all roles: the broker restarts or is overloaded; see its log.",
)  # fmt: skip
certificate_expires_at = register(
    Gauge, "common", "certificate_expires_at_seconds",
    "Expiry of each certificate of the bus connection, in Unix seconds; updated at connect and once a day.",
    "Less than 30 days away for `own`, `authority` or `server`: `lightningbus bus rotate`.", ["certificate"],
)  # fmt: skip
publish_duration = register(
    Histogram, "common", "bus_publish_duration_seconds", "Seconds from publishing an event until the stream has "
    "stored it.",
    "Slow: a slow disk of the broker (`sync_interval: always`), or a full stream.", buckets=SHORT_BUCKETS,
)  # fmt: skip
publishes_blocked = register(
    Gauge, "common", "bus_publishes_blocked", "Events that wait because their stream or the server's storage is full.",
    "Above 0: a reader of that stream is slow or gone: the store or the learner for rollouts, runners for TASKS. "
    "`lightningbus status` names full storage.",
)  # fmt: skip
dead_letters = register(
    Counter, "common", "dead_letters_total", "A message that cannot be processed is kept as a dead letter.",
    "Rising: `lightningbus dlq list` gives the reasons; after a fix, `lightningbus dlq replay`.", ["stream"],
)  # fmt: skip
unreadable_entries = register(
    Counter, "common", "unreadable_entries_total", "An entry of the weights' bucket cannot be read and is skipped.",
    "Rising: another program than the learner writes into the bucket; the log names the blob.",
)  # fmt: skip
faults = register(
    Counter, "common", "faults_total",
    "A message meets an unexpected error: a task is retried, any other is skipped or becomes a dead letter.",
    "Above 0: report it; the role's log has the traceback.",
)  # fmt: skip

messages_skipped = register(
    Counter, "common", "messages_skipped_total",
    "A weight version, decision or swap lock is skipped: it is unreadable, or its signer has no right to it.",
    "Rising: an unauthorised process writes there; the log gives the reason. `lightningbus weights repair` "
    "removes such "
    "messages.",
    ["kind"],
)  # fmt: skip

disk_free = register(
    Gauge, "common", "disk_free_bytes", "Bytes free on the disk of a role's `store` or `checkpoints`.",
    "Below `disk_free_mib` the role is not ready and an alert is raised: free disk space.", ["disk"],
)  # fmt: skip

tasks_received = register(
    Counter, "runner", "runner_tasks_received_total", "A runner received a task from the queue.",
    "Flat while `lightningbus_queue_tasks` is above 0: no slot is free, or the runners are of another agent.",
)  # fmt: skip
tasks_nacked = register(
    Counter, "runner", "runner_tasks_nacked_total", "A task returns to the queue because its runner stops or "
    "lost the bus.",
    "Rising without deployments: check the bus, or raise `drain_timeout_seconds`.",
)  # fmt: skip
attempts = register(
    Counter, "runner", "runner_attempts_total", "An attempt at a rollout ends.",
    "`agent_error`, `timeout`: check the agent. `reward_timeout`, `grading_failed`: check the reward function. "
    "`infra_error`, `poison`: the infrastructure failed; the runner's log gives the reason.",
    ["outcome"],
)  # fmt: skip
attempt_duration = register(
    Histogram, "runner", "runner_attempt_duration_seconds", "Duration of each attempt at a rollout, in seconds.",
    "Near the deadline of the tasks: add nodes, use fewer slots, or set a longer deadline.", buckets=LONG_BUCKETS,
)  # fmt: skip
slots = register(
    Gauge, "runner", "runner_slots",
    "Rollouts this runner may run at once; it changes while the runner works, unless `concurrency` is set.",
    "The sum over runners is the load that the nodes must sustain.",
)  # fmt: skip
slots_in_use = register(
    Gauge, "runner", "runner_slots_in_use", "Rollouts this runner runs now.",
    "At `slots` while tasks are queued: add runners, if the nodes keep up. Low: too few tasks are published.",
)  # fmt: skip
upstream_calls_waiting = register(
    Gauge, "runner", "runner_upstream_calls_waiting", "Model calls that wait for a node now.",
    "Above 0 for long: no node is ready, or all are full; see `lightningbus status`.",
)  # fmt: skip
upstream_retries = register(
    Counter, "runner", "runner_upstream_retries_total", "A node rejected a call, broke off or was not reached.",
    "Each call is retried. Rising steadily: a node fails; see the nodes' own metrics.",
)  # fmt: skip
chats_begun_anew = register(
    Counter, "runner", "runner_chats_begun_anew_total",
    "A chat that continues is rendered anew, because its template changed the `prompt` or the `answer` before the new "
    "messages; `unknown`: the node does not say.",
    "Rising: such a turn is trained as a conversation of its own. A template that keeps earlier turns avoids it.",
    ["change"],
)  # fmt: skip
gateway_requests = register(
    Counter, "runner", "runner_gateway_requests_total",
    "The runner's gateway answers an agent; 499: the agent disconnected.",
    "4xx: the agent's requests are wrong. 5xx: no node answered before the rollout's deadline.", ["status"],
)  # fmt: skip
spans_refused = register(
    Counter, "runner", "runner_spans_refused_total",
    "A span, log record or event of an agent is not kept: its `id`, `form`, `time` or `size`, or no `room` is left.",
    "Rising: fix the agent's instrumentation; the answer to its exporter names the error (`partialSuccess`).",
    ["reason"],
)  # fmt: skip
calls_without_tokens = register(
    Counter, "runner", "runner_calls_without_tokens_total",
    "A model call is recorded as text alone: token ids are missing, or the agent disconnected before the answer.",
    "Such calls are not trained; their spans give the reason. Rising: a parser of the engine drops tokens, or "
    "agents give "
    "up early.",
)  # fmt: skip
tokens = register(
    Counter, "runner", "runner_tokens_total",
    "Tokens of recorded model calls, by `prompt` and `completion`.",
    "The throughput of the system. Many more prompt tokens than completion tokens: histories grow, or are rendered "
    "again.",
    ["type"],
)  # fmt: skip

queue_tasks = register(
    Gauge, "store", "queue_tasks", "Tasks in the queue, including those in progress; read every two seconds.",
    "Rising: add runners, or publish fewer tasks. 0 while the learner waits: check the publisher of tasks.",
)  # fmt: skip
store_pending_messages = register(
    Gauge, "store", "store_pending_messages", "Messages that the store has not received yet.",
    "Rising: ClickHouse is slow or down. At the stream's limit runners wait.",
)  # fmt: skip
rollout_messages_passed = register(
    Counter, "store", "store_rollout_messages_passed_total",
    "Messages of rollouts that a learner will not read: it was behind, filled the stream and held up other learners.",
    "The learner of that model is gone or too slow for the others: start it, or give it more room or fewer "
    "groups.", ["model"],
)  # fmt: skip
store_rows_inserted = register(
    Counter, "store", "store_rows_inserted_total", "Rows inserted into ClickHouse, by table.",
    "Flat while runners finish rollouts: see `lightningbus_store_insert_failures_total`.", ["table"],
)  # fmt: skip
store_bytes = register(
    Counter, "store", "store_bytes_total", "Bytes of messages whose rows were inserted into ClickHouse.",
    "Plan disk and retention (`retention_days`) by it.",
)  # fmt: skip
insert_duration = register(
    Histogram, "store", "store_insert_duration_seconds", "Duration of each insert of a batch, in seconds.",
    "Above `flush_interval_seconds` with a backlog: ClickHouse is the bottleneck.", buckets=SHORT_BUCKETS,
)  # fmt: skip
insert_failures = register(
    Counter, "store", "store_insert_failures_total", "ClickHouse rejected a batch; it is retried.",
    "Rising: the log and `/readyz` quote ClickHouse's error.",
)  # fmt: skip
rollouts_missing = register(
    Gauge, "store", "store_rollouts_missing",
    "Tasks that the broker counts as settled, without a result in ClickHouse; read every ten seconds. NaN: unknown, as "
    "the bus is an older copy of itself, or another bus uses the database too.",
    "Above 0: rows were lost, removed (`retention_days`), or are in another ClickHouse; see the log of the store.",
)  # fmt: skip
alert_firing = register(
    Gauge, "store", "alert_firing",
    "1 while no rollout, or no training step, has ended for `stall_timeout_seconds`.",
    "The label names the role without work; `lightningbus status` gives the reason.", ["role"],
)  # fmt: skip

bus_gaps = register(
    Counter, "learner", "bus_gaps_total", "The bus lost messages: tasks without a result are dispatched again.",
    "Rising: the broker loses its disk, or was restored from an older copy; the learner's log names the gap.",
)  # fmt: skip
rejected_batches = register(
    Counter, "learner", "learner_rejected_batches_total", "A span batch cannot be read, or is inconsistent.",
    "Rising: the runners are of another release, or a foreign program publishes; the learner's log has the reason.",
)  # fmt: skip
steps = register(
    Counter, "learner", "learner_steps_total", "A training step ends.",
    "Flat: the learner waits for rollouts; see `lightningbus_learner_groups_ready`.",
)  # fmt: skip
step_duration = register(
    Histogram, "learner", "learner_step_duration_seconds",
    "Duration of each training step in seconds, without the wait for rollouts.",
    "Long: use smaller batches or more GPUs, or raise `ppo_max_token_len_per_gpu`.", buckets=LONG_BUCKETS,
)  # fmt: skip
learner_idle = register(
    Counter, "learner", "learner_idle_seconds_total", "Seconds that the learner has waited for rollouts before "
    "its steps.",
    "Rising by one per second: rollouts are the bottleneck. Flat: training is the bottleneck.",
)  # fmt: skip
learner_weight_version = register(
    Gauge, "learner", "learner_weight_version", "Version of the weights being trained.",
    "The difference to `lightningbus_inference_weight_version` is the lag of the nodes.",
)  # fmt: skip
groups_ready = register(
    Gauge, "learner", "learner_groups_ready", "Complete groups that wait for a step.",
    "Below `groups_per_step` for long: add runners or nodes. Far above: training is the bottleneck.",
)  # fmt: skip
reward_mean = register(
    Gauge, "learner", "learner_reward_mean", "Mean reward of the rollouts of the last step.",
    "Falling over many steps: training makes the model worse; see `lightningbus report reward_by_version`.",
)  # fmt: skip
staleness = register(
    Gauge, "learner", "learner_staleness_mean", "Mean lag, in versions, of the tokens of the last step.",
    "Near `max_staleness`: rollouts take longer than steps; see the settings of `staleness`.",
)  # fmt: skip
trained_tokens = register(
    Counter, "learner", "learner_trained_tokens_total", "Tokens that training has used.",
    "The rate is the throughput of training.",
)  # fmt: skip
learner_rollouts = register(
    Counter, "learner", "learner_rollouts_total", "The learner is done with a rollout: `trained` or `excluded`.",
    "Many excluded: the table `training_rollouts` has each reason.", ["result"],
)  # fmt: skip
weight_broadcasts = register(
    Counter, "learner", "learner_weight_broadcasts_total",
    "A broadcast of a version to the engines ends: `sent` or `aborted`.",
    "`aborted` rising: the log names the node that did not join, or the error; those versions are fetched instead.",
    ["result"],
)  # fmt: skip

inference_weight_version = register(
    Gauge, "inference", "inference_weight_version", "Weight version of a model that the node serves.",
    "Behind `lightningbus_learner_weight_version`: see `lightningbus_inference_weight_fetch_failures_total`, "
    "and the log.", ["model"],
)  # fmt: skip
swap_pause = register(
    Histogram, "inference", "inference_weight_swap_pause_seconds",
    "Pause of generation during each swap of weights, in seconds.",
    "Long: set `weight_sync_interval` above 1, train LoRA adapters, or use a faster disk.", buckets=SHORT_BUCKETS,
)  # fmt: skip
weight_fetch = register(
    Histogram, "inference", "inference_weight_fetch_seconds",
    "Seconds to fetch and verify new weights, while the old ones serve.",
    "Longer than a step: versions are skipped; check the network between broker and node.", buckets=LONG_BUCKETS,
)  # fmt: skip
swap_lock_wait = register(
    Histogram, "inference", "inference_swap_lock_wait_seconds", "Seconds that a node waited for the swap lock, "
    "after the fetch.",
    "Normally as long as the swaps of the other nodes. Longer: look for a node in state `canary` or dead in "
    "`lightningbus "
    "status`.",
    buckets=LONG_BUCKETS,
)  # fmt: skip
canaries = register(
    Counter, "inference", "inference_canaries_total",
    "A canary on this node ends: its version is `approved` or `revoked`.",
    "`revoked`: `lightningbus weights list` gives the reason; nodes keep the version before.", ["result"],
)  # fmt: skip
weight_fetch_failures = register(
    Counter, "inference", "inference_weight_fetch_failures_total",
    "A version could not be fetched, did not match its digest, or was rejected by the engine.",
    "Rising: the log gives the reason; the node keeps its version.",
)  # fmt: skip
inference_requests = register(
    Counter, "inference", "inference_requests_total", "The node's gateway answers a request; 499: the runner "
    "disconnected.",
    "503: the node is not ready. 409: the call is pinned to another version. Other 4xx: vLLM rejected the "
    "request.", ["status"],
)  # fmt: skip
inference_requests_in_flight = register(
    Gauge, "inference", "inference_requests_in_flight", "Requests the node's gateway handles now.",
    "At `max_num_seqs` for long: vLLM queues requests; add nodes.",
)  # fmt: skip
engine_starts = register(
    Counter, "inference", "inference_engine_starts_total", "The node starts vLLM.",
    "Above 1: vLLM died; its log is `vllm.log` in the node's `work_dir`.",
)  # fmt: skip
grades = register(
    Counter, "grader", "grades_total", "An attempt is graded, or grading it has failed for good.",
    "`grading_failed`: `lightningbus dlq` has the reason. Flat while rollouts end: the grader's log gives the reason.",
    ["outcome"],
)  # fmt: skip
judge_calls = register(
    Counter, "grader", "judge_calls_total", "A judge's answer is used; source: the endpoint, or the cache.",
    "Rising without rollouts: each is asked more often than `max_opponents` suggests.", ["source"],
)  # fmt: skip
judge_cost = register(
    Counter, "grader", "judge_cost_total", "Price of the judges' calls, by their settings.",
    "Faster than planned: lower `max_opponents` or `max_chars`, or set `max_calls`.",
)  # fmt: skip
audited_tokens = register(
    Counter, "auditor", "audited_tokens_total", "Tokens that the auditor has recomputed.",
    "Flat while rollouts end: the auditor's log gives the reason.",
)  # fmt: skip
audit_verdicts = register(
    Counter, "auditor", "audit_verdicts_total", "An engine, or a weight version, fails the audit.",
    "Above 0: `lightningbus audit` names it, the quarantined tokens, and the step to return to.",
)  # fmt: skip
