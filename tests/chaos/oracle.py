"""Was anything lost, did anything count twice? What the store and the learner hold, against what the tap heard."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from lightningbus.bus.client import Bus
from lightningbus.schemas import subjects
from lightningbus.schemas.codec import decode
from lightningbus.schemas.weights.events import WeightManifest
from tests.chaos.running_system import RunningSystem
from tests.chaos.tap import Tap
from tests.chaos.tokens import flaw
from tests.polling import until_answered

SHOWN = 5


@dataclass
class Verdict:
    """Each entry is a sentence about one thing that should not be."""

    lost: list[str] = field(default_factory=list)
    duplicated: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    """Neither lost nor duplicated, and yet not as promised."""
    counts: dict[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return not (self.lost or self.duplicated or self.wrong)

    def __str__(self) -> str:
        texts = [f"{name}: {item}" for name in ("lost", "duplicated", "wrong") for item in getattr(self, name)[:SHOWN]]
        return "; ".join(texts) or "nothing lost, nothing twice"


AFTER_LAST_STEP = """
SELECT rollout_id FROM rollouts
WHERE ended_at > (SELECT max(started_at) FROM training_steps WHERE model = '{model}')
"""


TOKEN_AGES = """
SELECT u.step, u.rollout_id, u.version - 1 - v AS age, count() FROM training_rollouts AS u
INNER JOIN completions AS c ON u.run_id = c.run_id AND u.rollout_id = c.rollout_id AND u.execution_id = c.execution_id
ARRAY JOIN c.token_versions AS v WHERE u.trained GROUP BY ALL
"""
UNTRAINED = """
SELECT t.rollout_id FROM tasks AS t
LEFT ANTI JOIN (SELECT rollout_id FROM training_rollouts WHERE trained OR exclusion_reason != '') AS u
ON t.rollout_id = u.rollout_id WHERE t.mode = 'train'
"""
REMADE = """
SELECT step, uniqExact(batch_sha256), count() FROM raw_training_steps FINAL WHERE batch_sha256 != '' GROUP BY step
"""


async def judge(system: RunningSystem, request: Iterable[str], vocabulary: int, max_age: int | None = None) -> Verdict:
    """Compare everything; ``request`` are the rollouts the harness published itself.

    ``max_age``: no trained token may be older, in updates of the weights, and every dispatched task is accounted for.

    Where the bus lost acknowledged data, what is missing counts as lost with it; all that is there must still be right.
    """
    sql, tap, verdict = system.sql(), system.tap, Verdict()

    def rows(statement: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in sql.query(statement).result_rows]

    _rollouts(verdict, tap, {*request}, rows("SELECT rollout_id, execution_id, outcome FROM rollouts"))
    _attempts(verdict, tap, rows("SELECT execution_id, count() FROM attempts GROUP BY execution_id"))
    _spans(verdict, tap, rows("SELECT rollout_id, execution_id, span_id, count() FROM spans GROUP BY ALL"))
    for model in sorted(tap.steps_by_model):
        _training(
            verdict,
            tap,
            rows(
                "SELECT rollout_id, sum(trained), countIf(NOT trained AND exclusion_reason = '') "
                f"FROM training_rollouts WHERE model = '{model}' GROUP BY rollout_id"
            ),
            {rollout for (rollout,) in rows(AFTER_LAST_STEP.format(model=model))}
            if len(tap.steps_by_model) > 1
            else set(),
        )
    calls = rows(
        "SELECT rollout_id, prompt_ids, response_ids, logprobs, token_versions FROM completions "
        "INNER JOIN prompts USING (run_id, rollout_id, execution_id, call)"
    )
    _calls(verdict, calls, vocabulary)
    if max_age is not None:
        _ages(verdict, rows(TOKEN_AGES), max_age)
        verdict.lost += [f"dispatched {rollout} was neither trained nor excluded" for (rollout,) in rows(UNTRAINED)]
        _remade(verdict, [] if system.was_set_back else rows(REMADE))
    if system.state_was_lost:
        verdict.counts["lost with the bus"] = len(verdict.lost)
        verdict.lost, verdict.wrong = [], [sentence for sentence in verdict.wrong if "by the rule" not in sentence]
        return verdict
    reported = (
        "SELECT a.execution_id, any(a.num_spans) AS sent, countIf(s.name NOT LIKE 'train %') AS stored "
        "FROM attempts AS a "
        "INNER JOIN spans AS s ON a.execution_id = s.execution_id GROUP BY a.execution_id HAVING sent != stored"
    )
    verdict.wrong += [f"execution {id} had {sent} spans, stored are {stored}" for id, sent, stored in rows(reported)]
    for model in tap.steps_by_model:
        await _versions(verdict, system.bus, model)
    return verdict


def _rollouts(verdict: Verdict, tap: Tap, request: set[str], stored: list[tuple[Any, ...]]) -> None:
    wanted = tap.published | request
    of_rollout = tap.rollout_of()
    by_name = {rollout: execution for rollout, execution, _ in stored}
    verdict.counts |= {"rollouts": len(wanted), "ended": len(by_name)}
    verdict.lost += [f"rollout {rollout} never ended" for rollout in sorted(wanted - by_name.keys())]
    verdict.duplicated += [f"{len(stored) - len(by_name)} rollouts stand twice"] * (len(stored) != len(by_name))
    verdict.wrong += [
        f"rollout {rollout} is {execution} in the store, and {of_rollout[rollout].execution} by the rule"
        for rollout, execution in by_name.items()
        if rollout in of_rollout and of_rollout[rollout].execution != execution
    ]
    noticed = [end for end in tap.ends if end.agent == "default" and end.outcome in ("agent_error", "timeout")]
    verdict.wrong += [f"the agent of {end.rollout} noticed: {end.outcome}: {end.error}" for end in noticed]


def _attempts(verdict: Verdict, tap: Tap, stored: list[tuple[Any, ...]]) -> None:
    by_key = dict(stored)
    verdict.counts["attempts"] = len(by_key)
    verdict.lost += [f"the end of {end.execution}" for end in tap.ends if end.execution not in by_key]
    verdict.duplicated += [f"attempt {item} stands {count} times" for item, count in by_key.items() if count > 1]


def _spans(verdict: Verdict, tap: Tap, stored: list[tuple[Any, ...]]) -> None:
    by_name = {(rollout, execution, span): count for rollout, execution, span, count in stored}
    verdict.counts["spans"] = len(by_name)
    verdict.lost += [f"span {span} of {rollout}" for rollout, execution, span in sorted(tap.spans - by_name.keys())]
    verdict.duplicated += [f"span {key} stands {count} times" for key, count in by_name.items() if count > 1]


def _training(verdict: Verdict, tap: Tap, uses: list[tuple[Any, ...]], later: set[str]) -> None:
    """``later``: rollouts for other learners, which ended when this one made its last step."""
    trained = {rollout: int(times) for rollout, times, _ in uses}
    verdict.counts["trained"] = verdict.counts.get("trained", 0) + sum(1 for times in trained.values() if times)
    verdict.duplicated += [f"rollout {rollout} was trained on {n} times" for rollout, n in trained.items() if n > 1]
    verdict.wrong += [f"rollout {rollout} was not used, without a reason" for rollout, _, silent in uses if silent]
    to_train = {end.rollout for end in tap.rollout_of().values() if end.mode == "train"}
    if trained:
        verdict.lost += [
            f"the learner never accounted for {rollout}" for rollout in sorted(to_train - trained.keys() - later)
        ]


def _ages(verdict: Verdict, ages: list[tuple[Any, ...]], max_age: int) -> None:
    verdict.counts["trained tokens"] = sum(count for *_, count in ages)
    verdict.wrong += ["no token was trained"] * (not ages)
    verdict.wrong += [
        f"step {step} trained {count} tokens of {rollout} that were {age} updates old"
        for step, rollout, age, count in ages
        if not 0 <= age <= max_age
    ]


def _remade(verdict: Verdict, steps: list[tuple[Any, ...]]) -> None:
    """A step that is made again after a stop is made of the same batch, to the bit."""
    verdict.counts["steps made again"] = sum(times - 1 for _, _, times in steps)
    verdict.wrong += [f"step {step} was made of {batches} batches" for step, batches, _ in steps if batches > 1]


def _calls(verdict: Verdict, calls: list[tuple[Any, ...]], vocabulary: int) -> None:
    verdict.counts["model calls"] = len(calls)
    verdict.counts["of mixed versions"] = sum(len(set(versions)) > 1 for *_, versions in calls)
    for rollout, prompt, response, logprobs, versions in calls:
        if text := flaw(prompt, response, logprobs, versions, vocabulary):
            verdict.wrong.append(f"a call of {rollout}: {text}")


async def _versions(verdict: Verdict, bus: Bus, model: str) -> None:
    """Versions only grow; a learner that takes over says the newest one again, the same bytes under its own epoch."""
    state = (await until_answered(lambda: bus.js.stream_info(subjects.WEIGHTS))).state
    last: WeightManifest | None = None
    for sequence in range(state.first_seq, state.last_seq + 1):
        message = await until_answered(partial(bus.js.get_msg, subjects.WEIGHTS, sequence))
        if message.subject != subjects.weights(model):
            continue
        new = decode(WeightManifest, message.data or b"")
        if last is not None:
            claimed = new.version == last.version and new.epoch > last.epoch
            if not (new.version > last.version or (claimed and new.fingerprint == last.fingerprint != "")):
                verdict.wrong.append(
                    f"version {new.version} of epoch {new.epoch} came after {last.version} of {last.epoch}"
                )
        last = new
    verdict.counts["versions"] = verdict.counts.get("versions", 0) + (last.version + 1 if last else 0)
