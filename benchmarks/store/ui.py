"""How fast pages and reports answer over a million and over ten million spans: ``make bench-ui``.

A store is filled by SQL: one long run, half of its attempts delivered twice. Every question of a page is asked over
HTTP, and every report as `lightningbus report` asks it: after ClickHouse's caches were dropped, then again and again.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import aiohttp
from clickhouse_connect.driver.client import Client

from benchmarks import before_after
from benchmarks.results import fill_page
from lightningbus.store.clickhouse import migrations
from lightningbus.store.clickhouse.client import DATABASE, connect, connect_readonly, query_row
from lightningbus.store.clickhouse.query_limits import UI
from lightningbus.store.embedded.serving import serve_embedded
from lightningbus.store.reports import REPORTS, Report
from lightningbus.store.ui.client import Reader
from lightningbus.store.ui.server import UiServer, serve

RESULTS = Path(__file__).resolve().parents[1] / "results" / "ui.json"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "ui.md"
BEGIN, END = "<!-- benchmarks.ui: begin -->", "<!-- benchmarks.ui: end -->"
CEILINGS_MS = {100_000: 300.0, 1_000_000: 1000.0}
"""By rollouts of the run."""
REPORT_ROWS = 1000
REPORT_ARGUMENTS = {
    "token_credit": {"rollout_id": "t5000@long.3"},
    "compare": {"a": "long", "b": "long", "version_a": "100", "version_b": "1000"},
}
CALLS = 3
TOOLS = 4
SPANS = 3 + CALLS + TOOLS
"""Of a rollout: published, the agent, its calls and tools, and training."""
TOKENS = 30
GROUP = 64
"""Rollouts of a training step."""
FIRST = "toDateTime64('2026-11-01 00:00:00', 9, 'UTC')"
WORDS = (
    "the sum of two numbers is what you get when they are put together so carry one and write it down again then "
    "check every digit once more before you answer because a wrong digit costs reward"
)
MERGES_SECONDS = 300.0
COLD = 5
WARM = 15

# Of rollout n; every figure is a hash of n, so that the store is the same each time.
ROLLOUT = f"""
    'long' AS run_id,
    concat('t', toString(intDiv(n, 8)), '@long') AS task_id,
    concat('t', toString(intDiv(n, 8)), '@long.', toString(n % 8)) AS rollout_id,
    toUInt16(1) AS attempt,
    lower(hex(cityHash64(n, 1))) AS execution_id,
    lower(concat(hex(cityHash64(n, 2)), hex(cityHash64(n, 3)))) AS trace_id,
    if(n % 20 = 0, 'eval', 'train') AS mode,
    'default' AS agent,
    toUInt32(intDiv(n, {GROUP})) AS version,
    {FIRST} + toIntervalMillisecond(n * 300 + cityHash64(n, 4) % 500) AS begun,
    toUInt64(2000 + cityHash64(n, 5) % 6000) AS took,
    multiIf(cityHash64(n, 6) % 100 < 3, 'agent_error', cityHash64(n, 6) % 100 < 4, 'timeout', 'ok') AS outcome,
    toUInt16(0) AS retention_days
"""
NAMES = "run_id, task_id, rollout_id, attempt, execution_id"
TEXT = f"arrayMap(i -> splitByChar(' ', '{WORDS}')[1 + cityHash64(n, call, i) % 37], range(24))"

FILL = {
    "raw_tasks": f"""
        SELECT run_id, task_id, rollout_id, toUInt32(n % 8) AS sample_index, 8 AS group_size, mode, agent,
            'policy' AS model, map() AS weight_versions, map() AS role_models,
            '{{}}' AS input, '{{}}' AS sampling_params, 60. AS deadline, 3 AS max_attempts,
            begun AS enqueued_at, retention_days
        FROM (SELECT number AS n, {ROLLOUT} FROM numbers({{rollouts:UInt64}}))
    """,
    "raw_attempts": f"""
        SELECT {NAMES}, trace_id, toUInt32(n % 8) AS sample_index, 8 AS group_size, mode, agent,
            concat('runner-', toString(n % 16)) AS runner, 'final' AS resolution, outcome,
            if(outcome = 'ok', toFloat64(cityHash64(n, 7) % 1562 < version + 200), NULL) AS reward, '' AS reward_span,
            if(outcome = 'ok', '', concat('ValueError: no number in answer ', toString(n))) AS error,
            toString(reward) AS result, {SPANS} AS num_spans, {CALLS} AS num_calls, 300 AS prompt_tokens,
            {CALLS * TOKENS} AS response_tokens, n % 9 = 0 AS num_truncated, version AS min_weight_version,
            version AS max_weight_version,
            map('policy', version) AS newest_versions, map() AS rewards,
            took * 0.0007 AS model_seconds, took * 0.0002 AS tool_seconds,
            begun AS enqueued_at, begun + toIntervalMillisecond(150) AS started_at,
            begun + toIntervalMillisecond(150 + took) AS ended_at, ended_at + toIntervalMillisecond(3) AS stored_at,
            n AS stream_sequence, retention_days
        FROM (SELECT number AS n, {ROLLOUT} FROM numbers({{rollouts:UInt64}}))
    """,
    "raw_spans": f"""
        SELECT run_id, task_id, rollout_id, if(place = 0, 0, attempt) AS attempt,
            if(place = 0, '', execution_id) AS execution_id,
            trace_id, lower(hex(cityHash64(n, 'span', place))) AS span_id,
            if(place = 0, '', lower(hex(cityHash64(n, 'span', least(place - 1, 1))))) AS parent_span_id,
            multiIf(place = 0, 'publish default', place = 1, 'invoke_agent default', place < 2 + {CALLS}, 'chat policy',
                place < 2 + {CALLS + TOOLS}, 'execute_tool add', 'train policy') AS name,
            multiIf(place = 0, 'producer', place = 1, 'consumer', place < 2 + {CALLS}, 'client', 'internal') AS kind,
            multiIf(place = 0, begun, place = 1, begun + toIntervalMillisecond(150),
                place = {SPANS - 1}, begun + toIntervalMillisecond(150 + took + 5000),
                begun + toIntervalMillisecond(200 + intDiv((place - 2) * took, {CALLS + TOOLS}))) AS started_at,
            multiIf(place = 0, begun + toIntervalMillisecond(1), place = 1, begun + toIntervalMillisecond(150 + took),
                started_at + toIntervalMillisecond(intDiv(took, {CALLS + TOOLS}))) AS ended_at,
            if(cityHash64(n, 8, place) % 50 = 0, 'error', 'ok') AS status, '' AS status_message,
            if(place BETWEEN 2 + {CALLS} AND {SPANS - 2}, 'agent', 'lightningbus') AS scope,
            map('gen_ai.operation.name', name, 'lightningbus.rollout.id', rollout_id, 'lightningbus.run', run_id,
                'gen_ai.usage.output_tokens', '{TOKENS}') AS attributes,
            map('service.name', 'agent') AS resource, '' AS events, '' AS links, ended_at AS stored_at,
            retention_days
        FROM (SELECT number AS n, {ROLLOUT} FROM numbers({{rollouts:UInt64}}))
        ARRAY JOIN range({SPANS}) AS place
    """,
    "raw_model_calls": f"""
        SELECT {NAMES}, toUInt32(call) AS call, lower(hex(cityHash64(n, 'span', call + 2))) AS span_id, mode, agent,
            if(call % 2 = 0, 'writer', 'checker') AS role, 'policy' AS model,
            concat('node-', toString(cityHash64(n, call) % 4)) AS node, 100 AS prompt_tokens,
            30 AS prompt_suffix_tokens,
            {TOKENS} AS response_tokens, version AS min_weight_version, version AS max_weight_version,
            -0.4 AS mean_logprob,
            'stop' AS finish_reason, '{{}}' AS sampling_params, 'question' AS request_preview,
            'answer' AS response_preview,
            begun + toIntervalMillisecond(200 + intDiv(call * took, {CALLS + TOOLS})) AS started_at,
            started_at + toIntervalMillisecond(intDiv(took, {CALLS + TOOLS})) AS ended_at, retention_days
        FROM (SELECT number AS n, {ROLLOUT} FROM numbers({{rollouts:UInt64}})) ARRAY JOIN range({CALLS}) AS call
    """,
    "raw_call_payloads": f"""
        SELECT {NAMES}, toUInt32(call) AS call, [] AS prompt_prefix_refs, range(toUInt32(30)) AS prompt_ids,
            toFixedString('', 32) AS prompt_sha256,
            arrayMap(i -> toUInt32(cityHash64(n, call, i) % 30000), range({TOKENS})) AS response_ids,
            arrayMap(i -> toFloat32(-(cityHash64(n, i) % 300) / 100), range({TOKENS})) AS logprobs,
            arrayMap(i -> version, range({TOKENS})) AS token_versions,
            arrayMap(i -> concat({TEXT}[1 + i % 24], ' '), range({TOKENS})) AS token_texts, [] AS request_prefix_refs,
            concat('{{"model":"policy","messages":[{{"role":"user","content":"question ', toString(n), ' ',
                toString(call), ': ', arrayStringConcat({TEXT}, ' '), if(n % 5000 = 7, ' heureka', ''),
                '"}}]}}') AS request,
            concat('{{"role":"assistant","content":"', arrayStringConcat({TEXT}, ' '), '"}}') AS response,
            begun + toIntervalMillisecond(200 + intDiv(call * took, {CALLS + TOOLS})) AS started_at, retention_days
        FROM (SELECT number AS n, {ROLLOUT} FROM numbers({{rollouts:UInt64}})) ARRAY JOIN range({CALLS}) AS call
    """,
    "raw_training_steps": f"""
        SELECT 'long' AS run_id, 'policy' AS model, toUInt32(number + 1) AS step, 1 AS epoch,
            toUInt32(number + 1) AS version,
            {FIRST} + toIntervalMillisecond((number + 1) * {GROUP * 300}) AS started_at,
            started_at + toIntervalMillisecond(4000) AS ended_at,
            map('staleness/mean', 0.8, 'staleness/max', 2,
                'off_policy/ess', 0.97 - 0.1 * (cityHash64(number) % 100) / 100,
                'response_length/clip_ratio', 0.02,
                'rollout_corr/k3_kl', 1e-4 * (1 + cityHash64(number) % 5), 'actor/ppo_kl', 1e-4,
                'actor/pg_clipfrac', 0.01, 'actor/grad_norm', 0.5, 'actor/entropy', 1.2) AS metrics,
            '' AS batch_sha256, '{{}}' AS settings
        FROM numbers(intDiv({{rollouts:UInt64}}, {GROUP}))
    """,
    "raw_training_rollouts": f"""
        SELECT run_id, 'policy' AS model, version + 1 AS step, 1 AS epoch, version + 1 AS version, rollout_id, task_id,
            attempt, execution_id, outcome, if(outcome = 'ok', 1., NULL) AS reward, 0.3 AS advantage,
            outcome = 'ok' AS trained,
            '' AS exclusion_reason, {CALLS * TOKENS} AS tokens, 1 AS max_staleness, 0 AS batch_index,
            [0.3, 0.3, -0.2] AS call_advantages, ['writer', 'checker', 'writer'] AS call_roles,
            [{TOKENS}, {TOKENS}, {TOKENS}] AS call_tokens, map(version, {CALLS * TOKENS}) AS version_tokens
        FROM (SELECT number AS n, {ROLLOUT} FROM numbers({{rollouts:UInt64}})) WHERE mode = 'train'
    """,
    "raw_weight_versions": f"""
        SELECT 'long' AS run_id, 'policy' AS model, toUInt32(number) AS version, 1 AS epoch, NULL AS parent, 'full' AS
            kind, 'bus' AS transport, toUInt32(number) AS step, 1000000 AS bytes,
            {FIRST} + toIntervalMillisecond(number * {GROUP * 300}) AS created_at
        FROM numbers(intDiv({{rollouts:UInt64}}, {GROUP}))
    """,
    "raw_weight_activations": f"""
        SELECT concat('node-', toString(place)) AS node, 'policy' AS model, toUInt32(number) AS version,
            0.05 AS fetch_seconds, 0.02 AS pause_seconds,
            {FIRST} + toIntervalMillisecond(number * {GROUP * 300} + 90 + place * 10) AS activated_at
        FROM numbers(intDiv({{rollouts:UInt64}}, {GROUP})) ARRAY JOIN range(4) AS place
    """,
}


def fill(client: Client, rollouts: int) -> None:
    """Write the run; half of its attempts twice, as a bus delivers them that may deliver again."""
    for table, select in FILL.items():
        began = time.monotonic()
        columns = client.query(f"SELECT * FROM ({select}) LIMIT 0", parameters={"rollouts": 1}).column_names
        into = f"INSERT INTO {table} ({', '.join(columns)}) {select}"
        client.command(into, parameters={"rollouts": rollouts})
        if table == "raw_attempts":
            client.command(into, parameters={"rollouts": rollouts // 2})
        (count,) = query_row(client, f"SELECT count() FROM {table}")
        print(f"{table}: {count:,} rows, {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)


CASES = {
    "runs": ("runs", {}),
    "run: change token": ("run/change_token", {}),
    "run: state": ("run/state", {}),
    "run: summary": ("run/summary", {}),
    "run: choices of the filters": ("run/choices", {}),
    "run: rewards": ("run/rewards", {}),
    "run: metrics": ("run/metrics", {"names": "staleness/mean,off_policy/ess,actor/ppo_kl,actor/grad_norm"}),
    "run: time": ("run/time", {}),
    "run: throughput": ("run/throughput", {}),
    "run: idle nodes": ("run/idle_nodes", {}),
    "run: versions served": ("run/served", {}),
    "rollouts: newest": ("run/rollouts", {}),
    "rollouts: slowest, page 1000": ("run/rollouts", {"sort": "slowest", "page": "1000"}),
    "rollouts: five filters": (
        "run/rollouts",
        {"mode": "train", "outcome": "ok", "name": "t50", "reward_from": "0.5", "version_from": "100"},
    ),
    "rollouts: a tool": ("run/rollouts", {"tool": "add"}),
    "rollouts: a rare word": ("run/rollouts", {"words": "heureka"}),
    "rollouts: two words in every call": ("run/rollouts", {"words": "sum digit"}),
    "rollout": ("rollout", {"rollout_id": "t5000@long.3"}),
}
DROP = ("SYSTEM DROP MARK CACHE", "SYSTEM DROP UNCOMPRESSED CACHE", "SYSTEM DROP QUERY CONDITION CACHE")


Ask = Callable[[], Awaitable[None]]


async def measure(client: Client, pages: Client, reports: Client, rollouts: int) -> list[dict[str, Any]]:
    """Milliseconds of each question, cold (ClickHouse's own caches dropped) and warm; ``pages`` has their limits."""
    rows = []
    server = UiServer(Reader(pages), "127.0.0.1", lambda: "no bus")
    async with serve(server, "127.0.0.1", 0) as site, aiohttp.ClientSession(site) as session:
        for case, ask in {**page_questions(session), **report_questions(reports)}.items():
            cold = []
            for _ in range(COLD):
                for statement in DROP:
                    await asyncio.to_thread(client.command, statement)
                cold.append(await took(ask))
            warm = [await took(ask) for _ in range(WARM)]
            for state, times in (("cold", cold), ("warm", warm)):
                rows.append(row(f"{case}, {state} p50", statistics.median(times), rollouts))
                rows.append(row(f"{case}, {state} p95", percentile(times, 0.95), rollouts))
            print(f"{case}: {rows[-2]['value']} ms, {rows[-1]['value']} ms", file=sys.stderr, flush=True)
    return rows


def page_questions(session: aiohttp.ClientSession) -> dict[str, Ask]:
    """Every question of `CASES`, over HTTP."""

    async def ask(address: str) -> None:
        async with session.get(address) as response:
            body = await response.read()
            assert response.status == 200, body

    return {
        case: partial(ask, f"/api/{path}?{urlencode({'run_id': 'long', **request})}")
        for case, (path, request) in CASES.items()
    }


def report_questions(client: Client) -> dict[str, Ask]:
    """Every report about the run."""

    async def ask(report: Report) -> None:
        sql = report.query(DATABASE, REPORT_ROWS)
        values = report.values(REPORT_ARGUMENTS.get(report.name, {}), "long")
        await asyncio.to_thread(client.query, sql, values)

    return {f"report {name}": partial(ask, report) for name, report in REPORTS.items()}


async def took(ask: Ask) -> float:
    """Milliseconds to the last byte of an answer."""
    began = time.perf_counter()
    await ask()
    return 1000 * (time.perf_counter() - began)


def percentile(values: list[float], share: float) -> float:
    """The smallest value that so large a share is not above."""
    return sorted(values)[max(0, -int(-share * len(values) // 1) - 1)]


def row(case: str, value: float, rollouts: int) -> dict[str, Any]:
    """A figure as the other results have it; nobody else's page is measured."""
    ceiling = CEILINGS_MS.get(rollouts)
    ratio = None if ceiling is None else round(value / ceiling, 3)
    figures = {"value": round(value, 1), "unit": "ms", "ceiling": ceiling, "ratio_to_ceiling": ratio}
    return {"case": case, "rollouts": rollouts, **figures, "peer": None, "ratio_to_peer": None}


def printed(rows: list[dict[str, Any]]) -> str:
    """The table of a README: a line per question, the figures of each size side by side."""
    sizes = sorted({item["rollouts"] for item in rows})
    by_case: dict[str, dict[tuple[int, str], float]] = {}
    for item in rows:
        case, _, figure = item["case"].rpartition(", ")
        by_case.setdefault(case, {})[item["rollouts"], figure] = item["value"]
    names = ("cold p50", "cold p95", "warm p50", "warm p95")
    heads = [f"{rollouts * SPANS // 1_000_000}M spans: {name}" for rollouts in sizes for name in names]
    lines = [f"| question, ms | {' | '.join(heads)} |", "|---|" + "---|" * len(heads)]
    lines += [
        f"| {case} | {' | '.join(f'{figures[size, name]:.0f}' for size in sizes for name in names)} |"
        for case, figures in by_case.items()
    ]
    return "\n".join(lines)


async def wait_for_merges(client: Client) -> None:
    """Until ClickHouse has merged what was filled: merges would take a core of the first questions."""
    async with asyncio.timeout(MERGES_SECONDS):
        while (await asyncio.to_thread(query_row, client, "SELECT count() FROM system.merges"))[0]:
            await asyncio.sleep(0.5)


async def measure_size(path: Path, rollouts: int) -> list[dict[str, Any]]:
    """Fill the store at ``path`` unless it is filled, and measure."""
    is_filled = path.is_dir() and any(path.iterdir())
    async with serve_embedded(path) as (_, url):
        if not is_filled:
            bare = await asyncio.to_thread(connect, url, None)
            await asyncio.to_thread(migrations.migrate, bare, DATABASE)
        client = await asyncio.to_thread(connect, url)
        await asyncio.to_thread(migrations.create_views, client, DATABASE)
        if not is_filled:
            await asyncio.to_thread(fill, client, rollouts)
            await wait_for_merges(client)
        pages = await asyncio.to_thread(connect_readonly, url, limits=UI)
        return await measure(client, pages, await asyncio.to_thread(connect_readonly, url), rollouts)


async def main() -> None:
    """Fill, ask, print and keep."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.store.ui", description=__doc__)
    parser.add_argument("--rollouts", type=int, nargs="+", default=list(CEILINGS_MS), help=f"of {SPANS} spans each")
    parser.add_argument("--path", type=Path, help="where stores are kept, to be used again")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="lightningbus-ui-") as temporary:
        for rollouts in args.rollouts:
            rows += await measure_size((args.path or Path(temporary)) / str(rollouts), rollouts)
    print(printed(rows))
    if args.rollouts == list(CEILINGS_MS):
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
        PAGE.write_text(fill_page(PAGE.read_text(), BEGIN, printed(rows), END))
        print(before_after.compare(["ui"]))


if __name__ == "__main__":
    asyncio.run(main())
