"""The views of `docs/store.md`, read over ClickHouse's HTTP interface."""

import json
import time
import urllib.error
import urllib.request
from array import array
from typing import Any

from tests.history.history import Attempt, Call, Record, Step, Task, Use, Version

START_SECONDS = 240.0
"""A store that was killed answers again by then."""
ATTEMPTS = "SELECT rollout_id, execution_id, toString(resolution) AS resolution, outcome, reward FROM {view}"
CALLS = """
SELECT execution_id, call, span_id, prompt_ids, lower(hex(prompt_sha256)) AS prompt_sha256, response_ids, logprobs,
    token_versions
FROM completions
INNER JOIN prompts USING (run_id, rollout_id, execution_id, call)
INNER JOIN (SELECT run_id, rollout_id, execution_id, call, span_id FROM model_calls) AS m
USING (run_id, rollout_id, execution_id, call)
"""
STEPS = "SELECT model, step, version, epoch, batch_sha256 FROM training_steps ORDER BY step"
USES = """
SELECT model, step, rollout_id, execution_id, trained, exclusion_reason, reward, version_tokens
FROM training_rollouts ORDER BY rollout_id
"""


class Views:
    """The database of a store that answers at a URL."""

    def __init__(self, url: str) -> None:
        self._url = f"{url}/?database=lightningbus"

    def ask(self, statement: str) -> list[dict[str, Any]]:
        """Return the rows of a statement."""
        question = f"{statement} FORMAT JSONEachRow SETTINGS output_format_json_quote_64bit_integers = 0"
        request = urllib.request.Request(self._url, question.encode())
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                with urllib.request.urlopen(request) as answer:
                    return [json.loads(line) for line in answer]
            except urllib.error.HTTPError as error:
                raise AssertionError(error.read().decode()) from error
            except OSError:  # a store that was killed is being started again
                assert time.monotonic() < deadline, f"no store at {self._url} within {START_SECONDS:g} s"
                time.sleep(0.2)

    def read(self) -> Record:
        """Read the views that hold what is on the wire."""
        return Record(
            tasks=[Task(**row) for row in self.ask("SELECT rollout_id, mode FROM tasks")],
            span_ids=[row["span_id"] for row in self.ask("SELECT span_id FROM spans")],
            attempts=[Attempt(**row) for row in self.ask(ATTEMPTS.format(view="attempts"))],
            calls=[_call(row) for row in self.ask(CALLS)],
            steps=self._read_steps(),
            versions=[
                Version(**row, fingerprint="")
                for row in self.ask("SELECT model, version, epoch FROM weight_versions ORDER BY version, epoch")
            ],
        )

    def read_rollouts(self) -> list[Attempt]:
        """Read the attempt that counts for each rollout."""
        return [Attempt(**row) for row in self.ask(ATTEMPTS.format(view="rollouts"))]

    def read_dead_letters(self) -> list[str]:
        """Read the reasons of dead letters."""
        return [f"{row['stream']}: {row['reason']}" for row in self.ask("SELECT stream, reason FROM dead_letters")]

    def _read_steps(self) -> list[Step]:
        uses: dict[tuple[str, int], list[Use]] = {}
        for row in self.ask(USES):
            uses.setdefault((row["model"], row["step"]), []).append(
                Use(
                    rollout_id=row["rollout_id"],
                    execution_id=row["execution_id"],
                    is_trained=bool(row["trained"]),
                    exclusion_reason=row["exclusion_reason"],
                    reward=row["reward"],
                    version_tokens=tuple(sorted((int(key), num) for key, num in row["version_tokens"].items())),
                )
            )
        return [Step(**row, uses=tuple(uses.get((row["model"], row["step"]), ()))) for row in self.ask(STEPS)]


def _call(row: dict[str, Any]) -> Call:
    return Call(
        execution_id=row["execution_id"],
        index=row["call"],
        span_id=row["span_id"],
        prompt_ids=tuple(row["prompt_ids"]),
        prompt_sha256=row["prompt_sha256"],
        response_ids=tuple(row["response_ids"]),
        logprobs=tuple(array("f", row["logprobs"])),
        versions=tuple(row["token_versions"]),
    )
