"""Transcript of one rollout: its calls in order, with requests, answers and results."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clickhouse_connect.driver.client import Client
from rich.console import Group
from rich.rule import Rule
from rich.text import Text

from lightningbus.common.printable import printable_json
from lightningbus.run.display.terminal import Terminal, render_html, render_text
from lightningbus.run.errors import UserError
from lightningbus.run.run_data.agent_spans import AGENT_SPANS
from lightningbus.run.run_data.run_names import check_run
from lightningbus.run.run_data.token_texts import read_tokens
from lightningbus.schemas.semconv import attributes
from lightningbus.schemas.semconv.rewards import reward_dimensions
from lightningbus.schemas.semconv.span_kinds import entity_name, kind_of, summarize

ROLLOUT = """
SELECT run_id, rollout_id, execution_id, attempt, mode, evaluation, outcome, reward, rewards, error, num_calls,
    response_tokens, min_weight_version, max_weight_version,
    date_diff('microsecond', started_at, ended_at) / 1e6 AS seconds
FROM rollouts WHERE ({run_id:String} = '' OR run_id = {run_id:String}) AND rollout_id = {rollout_id:String}
ORDER BY started_at
"""
TASK = """
SELECT input, labels FROM tasks WHERE run_id = {run_id:String} AND rollout_id = {rollout_id:String} LIMIT 1
"""
CALLS = """
SELECT c.call AS call, c.role AS role, c.model AS model, c.node AS node, c.finish_reason AS finish_reason,
    p.request AS request, a.response AS response, c.prompt_tokens AS prompt_tokens, c.started_at AS started_at
FROM model_calls AS c INNER JOIN prompts AS p USING (run_id, rollout_id, execution_id, call)
INNER JOIN completions AS a USING (run_id, rollout_id, execution_id, call)
WHERE run_id = {run_id:String} AND rollout_id = {rollout_id:String} AND execution_id = {execution_id:String}
ORDER BY call
"""
TOKENS = """
SELECT call, token_text, token, logprob, version, advantage, staleness FROM token_credit
WHERE run_id = {run_id:String} AND rollout_id = {rollout_id:String} AND execution_id = {execution_id:String}
ORDER BY call, position
"""
SPANS = f"""
SELECT name, status, status_message, attributes, started_at, date_diff('microsecond', started_at,
    ended_at) / 1e6 AS seconds
FROM spans WHERE run_id = {{run_id:String}} AND rollout_id = {{rollout_id:String}}
    AND execution_id = {{execution_id:String}} AND {AGENT_SPANS} ORDER BY started_at
"""
PROMPTS = """
SELECT call, prompt_ids FROM prompts
WHERE run_id = {run_id:String} AND rollout_id = {rollout_id:String} AND execution_id = {execution_id:String}
"""
PRINTED = """
SELECT attributes[{name:String}] AS printed FROM spans
WHERE run_id = {run_id:String} AND rollout_id = {rollout_id:String}
    AND execution_id = {execution_id:String} AND mapContains(attributes, {name:String}) LIMIT 1
"""
NO_REWARDS = ("tool", "agent")
"""Kinds of spans whose summary leaves rewards out."""
RED_TO_GREEN = ("red", "dark_orange", "white", "green_yellow", "green")


@dataclass(frozen=True, slots=True, repr=False)
class Transcript:
    """A rollout's attempt that counts; rows as ClickHouse gave them."""

    rollout: Mapping[str, Any]
    """The attempt, with ``input`` and ``labels`` of its task where the store has it, and what the agent ``printed``."""
    calls: list[Mapping[str, Any]]
    """Model calls in order; ``prompt`` is the text of the tokens that the model read, where `load` was asked for it."""
    tokens: Mapping[int, list[Mapping[str, Any]]]
    """Tokens of each call."""
    spans: list[Mapping[str, Any]]
    """Spans of the agent's own instrumentation, and the events that it reported."""

    @classmethod
    def load(
        cls, client: Client, rollout: str, run: str, *, has_prompts: bool = False, tokenizer: Path | None = None
    ) -> "Transcript":
        """Load the newest such rollout of a run (empty: of any); raise `UserError` when there is none. Blocks.

        ``has_prompts``: load the text of each prompt too, by the tokenizer of the run's model or of the directory
        ``tokenizer``. Raises `UserError` where the tokenizer is not on this machine.
        """
        rows = _rows(client, ROLLOUT, run_id=run, rollout_id=rollout)
        if not rows:
            if run:
                check_run(client, run)
            raise UserError(
                f"no rollout is called {rollout!r}; `lightningbus report slowest_rollouts` has some that are"
            )
        which = {name: rows[-1][name] for name in ("run_id", "rollout_id", "execution_id")}
        tokens: dict[int, list[Mapping[str, Any]]] = {}
        for row in _rows(client, TOKENS, **which):
            tokens.setdefault(row["call"], []).append(row)
        tasks = _rows(client, TASK, run_id=which["run_id"], rollout_id=which["rollout_id"])
        printed = _rows(client, PRINTED, **which, name=attributes.AGENT_OUTPUT)
        calls = _rows(client, CALLS, **which)
        if has_prompts:
            token_ids = {row["call"]: row["prompt_ids"] for row in _rows(client, PROMPTS, **which)}
            calls = [
                {**call, "prompt": read_tokens(which["run_id"], call["model"], token_ids[call["call"]], tokenizer)}
                for call in calls
            ]
        return cls(
            {**rows[-1], **(tasks[0] if tasks else {}), "printed": printed[0]["printed"] if printed else ""},
            calls,
            tokens,
            _rows(client, SPANS, **which),
        )

    def show_json(self) -> None:
        """Print the transcript as one JSON object."""
        calls = [{**call, "tokens": self.tokens.get(call["call"], [])} for call in self.calls]
        print(printable_json({**self.rollout, "model_calls": calls, "spans": self.spans}))

    def show(self, color: str) -> None:
        """Print the transcript; ``color`` chooses what the colour of a token shows."""
        Terminal(highlight=False).print(self.render(color))

    def render(self, color: str = "none") -> Group:
        """Render the output of `show`; rich turns it into HTML too."""
        rollout = self.rollout
        reward = _format_rewards(rollout["reward"], rollout.get("rewards") or {})
        heading = (
            f" of run {rollout['run_id']}: {rollout['outcome']}, reward {reward}, "
            f"{rollout['num_calls']} calls, {rollout['response_tokens']} tokens, {rollout['seconds']:.3f} s, "
            f"attempt {rollout['attempt']}"
        )
        parts: list[Text | Rule] = [Text.assemble((rollout["rollout_id"], "bold"), heading)]
        if "input" in rollout:
            labels = "".join(f" · {name}: {value}" for name, value in rollout["labels"].items())
            parts.append(Text.assemble(("task: ", "bold cyan"), rollout["input"], (labels, "dim")))
        if rollout["error"]:
            parts.append(Text(rollout["error"], "red"))
        num_shown = 0  # messages shown so far
        waiting = list(self.spans)
        for call in self.calls:
            while waiting and waiting[0]["started_at"] < call["started_at"]:
                parts.append(_span(waiting.pop(0)))
            tokens = self.tokens.get(call["call"], [])
            parts.append(Rule(Text(_format_heading(call, tokens)), align="left", style="dim"))
            if "prompt" in call:
                parts.append(Text.assemble(("the model read: ", "bold cyan"), call["prompt"] or "no tokens on record"))
            else:
                messages = _messages(call["request"])
                for role, text in messages[num_shown if num_shown < len(messages) else 0 :]:
                    parts.append(Text.assemble((f"{role}: ", "bold cyan"), text))
                num_shown = len(messages) + 1
            parts.append(Text.assemble(("assistant: ", "bold magenta"), _format_completion(call, tokens, color)))
        parts += map(_span, waiting)
        if rollout.get("printed"):
            parts.append(Text.assemble(("printed: ", "bold cyan"), rollout["printed"].rstrip()))
        return Group(*parts)

    def __repr__(self) -> str:
        return render_text(self.render())

    def _repr_html_(self) -> str:
        return render_html(self.render())


def _rows(client: Client, sql: str, **parameters: Any) -> list[Mapping[str, Any]]:
    return list(client.query(sql, parameters=parameters).named_results())


def _format_heading(call: Mapping[str, Any], tokens: list[Mapping[str, Any]]) -> str:
    parts = [f"call {call['call']}", call["role"], f"{call['prompt_tokens']} + {len(tokens)} tokens"]
    versions = sorted({token["version"] for token in tokens})
    parts.append("version " + ", ".join(map(str, versions)) if versions else "")
    trained = [token for token in tokens if token["advantage"] is not None]
    if trained:
        behind = max(token["staleness"] for token in trained)
        parts.append(f"advantage {trained[0]['advantage']:+.3g}, {behind} behind")
    parts.append(f"ended by {call['finish_reason']}")
    return " · ".join(filter(None, parts))


def _messages(request: str) -> list[tuple[str, str]]:
    try:
        body = json.loads(request)
    except ValueError:
        return [("request", request)]
    if "messages" not in body:
        return [("prompt", _plain(body.get("prompt")))]
    return [
        (str(message.get("role")), _plain(message.get("content") or message.get("tool_calls")))
        for message in body["messages"]
    ]


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _format_completion(call: Mapping[str, Any], tokens: list[Mapping[str, Any]], color: str) -> Text:
    if any(token["token_text"] for token in tokens):
        return Text.assemble(*((token["token_text"], _style(token, color)) for token in tokens))
    try:
        answer = json.loads(call["response"])
    except ValueError:  # a call that came to no answer
        return Text(call["response"])
    return Text(_plain(answer.get("content") or answer) if isinstance(answer, dict) else _plain(answer))


def _style(token: Mapping[str, Any], color: str) -> str:
    value = token.get(color)
    if value is None:
        return ""
    if color == "staleness":
        return RED_TO_GREEN[max(0, 4 - int(value))]
    return RED_TO_GREEN[int(2 + 2 * max(-1.0, min(1.0, value)))]


def _format_rewards(reward: float | None, by_name: Mapping[str, float]) -> str:
    """Format the main reward, and all by name where there are others."""
    main = "none" if reward is None else f"{reward:.4g}"
    named = ", ".join(f"{name} {value:.4g}" for name, value in sorted(by_name.items()))
    return f"{main} ({named})" if named else main


def _span(span: Mapping[str, Any]) -> Text:
    bad = span["status"] == "error"
    name, values = span["name"], span["attributes"]
    kind, entity = kind_of(name, values), entity_name(name, values)
    called = [kind if kind != "other" else "", name, entity if entity not in name else ""]
    text = Text(f"  [{' '.join(filter(None, called))} {span['seconds']:.3f} s", "red" if bad else "yellow")
    text.append(f": {span['status_message']}]" if bad and span["status_message"] else "]")
    rewards = [f"{reward} {value}" for reward, value in reward_dimensions(values)] if kind in NO_REWARDS else []
    return text.append(f" {', '.join(filter(None, (summarize(name, values), *rewards)))}".rstrip(), "dim")
