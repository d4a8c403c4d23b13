"""Prompt optimisation of two jobs whose policy is scripted: the examples' `policy.py` behind Chat Completions."""

import asyncio
import json
import os
import random
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from experiments.prompts.files import example_module, make_problems, problem_files, read_inputs
from experiments.prompts.tables import Row

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
MATH, SQL = ROOT / "examples" / "prompts_math", ROOT / "examples" / "text_to_sql"
FOLLOWED, IGNORED = 0.1, 0.75
"""How often a query has the beginner's mistake, with the rule in the prompt and without."""
BUDGET = 150

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Job:
    """An agent whose prompt lacks a rule."""

    name: str
    agent: Path
    system: Path
    rule: str
    symptom: re.Pattern[str]
    """What its feedback says where the rule was not followed."""
    make_policy: Callable[[Path, int], Callable[[list[Message]], Message]]


def math_policy(work: Path, seed: int) -> Callable[[list[Message]], Message]:
    """That of `examples/math_tools`: with the rule it takes every step, mostly, else it stops after the first."""
    problems, policies = example_module(MATH, "problems"), example_module(MATH.parent / "math_tools", "policy")
    records = [json.loads(line) for line in (work / "records.jsonl").read_text().splitlines()]
    follows = policies.Policy(records, problems.WITH_RULE, seed)
    ignores = policies.Policy(records, problems.WITHOUT, seed)
    return lambda messages: (follows if MATH_JOB.rule in messages[0]["content"] else ignores).answer(messages)


def sql_policy(work: Path, seed: int) -> Callable[[list[Message]], Message]:
    """That of `examples/text_to_sql`: the gold query, or without the rule mostly a beginner's mistake."""
    policies, rng = example_module(SQL, "policy"), random.Random(seed)
    tasks = {task["question"]: task for name in problem_files(work) for task in read_inputs(name)}

    def answer(messages: list[Message]) -> Message:
        question = messages[-1]["content"].rpartition("Question: ")[2]
        mistakes = FOLLOWED if SQL_JOB.rule in messages[0]["content"] else IGNORED
        task = tasks[question]
        text = policies.habit(task) if rng.random() < mistakes else task["gold"]
        return {"role": "assistant", "content": text}

    return answer


MATH_JOB = Job(
    "math_tools", MATH / "agent.py", MATH / "system.txt", "Take every step before you answer.",
    re.compile(r"answered after \d+ of \d+ steps"), math_policy,
)  # fmt: skip
SQL_JOB = Job(
    "text_to_sql", HERE / "sql_agent.py", HERE / "sql_system.txt", "Keep every condition of the question.",
    re.compile(r"gives \d+ rows; right are \d+"), sql_policy,
)  # fmt: skip
JOBS = {job.name: job for job in (MATH_JOB, SQL_JOB)}


@contextmanager
def serving(server: ThreadingHTTPServer) -> Iterator[str]:
    """The URL of a server while the block runs."""
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()


def policy_server(answer: Callable[[list[Message]], Message]) -> ThreadingHTTPServer:
    """Chat Completions on loopback; one answer at a time, so that a seed says what is drawn."""
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                message = answer(body["messages"])
            finish = "tool_calls" if message.get("tool_calls") else "stop"
            choice = {"index": 0, "finish_reason": finish, "message": message}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            content = {"id": "c", "object": "chat.completion", "created": 1, "model": body["model"], "usage": usage}
            text = json.dumps({**content, "choices": [choice]}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: object) -> None:
            pass

    return ThreadingHTTPServer(("127.0.0.1", 0), Handler)


async def measure(job: Job, seed: int, work: Path) -> Row:
    """Optimise the prompt of a job, and ask the policy with the agent's prompt, the right one, and the one found."""
    work = work / f"{job.name}-{seed}"
    work.mkdir(parents=True, exist_ok=True)
    await make_problems(job.name, work, seed)
    reflecting = example_module(MATH, "reflecting").make_server(0, seed, job.rule, job.symptom)
    with serving(reflecting) as reflecting_url, serving(policy_server(job.make_policy(work, seed))) as policy_url:
        path = write_run_file(job, seed, work, reflecting_url, policy_url)
        resume = ["--resume"] if (work / "runs").exists() else []
        out = await output_of("-m", "lightningbus", "optimize", "-c", path, "--json", *resume, cwd=work)
        result = json.loads(out)
        texts = {
            "start": job.system.read_text(),
            "right": f"{job.system.read_text()} {job.rule}",
            "found": result["texts"]["solver"] if result["released"] else job.system.read_text(),
        }
        rewards = {name: await reward_of(job, work, policy_url, name, text) for name, text in texts.items()}
    row = {"mode": "scripted", "job": job.name, "seed": seed, "rollouts": result["rollouts"], "rewards": rewards}
    return {**row, "is_released": result["released"], "candidates": result["candidates"]}


def write_run_file(job: Job, seed: int, work: Path, reflecting_url: str, policy_url: str) -> Path:
    """The run file of `lightningbus optimize`: no node, the policy answers as an endpoint."""
    fields = {
        "name": f"{job.name}-{seed}",
        "bus": {"port": 0},
        "store": {"http_port": 0, "flush_interval_seconds": 0.1},
        "runners": [
            {
                "entrypoint": f"{job.agent.stem}:solve", "working_dir": str(job.agent.parent), "concurrency": 4,
                "endpoints": {"policy": {"url": policy_url, "model": "scripted"}},
            }
        ],
        "optimize": {
            "prompts": {"solver": {"file": str(job.system)}},
            "tasks": str(work / "tried.jsonl"),
            "heldout": str(work / "compared.jsonl"),
            "budget": BUDGET,
            "max_iterations": 20,
            "seed": seed,
            "reflection": {"url": reflecting_url, "model": "reflecting"},
        },
    }  # fmt: skip
    path = work / "optimize.yaml"
    path.write_text(yaml.safe_dump(fields))
    return path


async def reward_of(job: Job, work: Path, policy_url: str, name: str, text: str) -> float:
    """The mean reward of a prompt on problems that neither search nor comparison had, without lightningbus."""
    file = work / f"{name}.txt"
    file.write_text(text)
    variables = {"OPENAI_BASE_URL": policy_url, "OPENAI_API_KEY": "none", "SYSTEM_FILE": str(file)}
    out = await output_of(HERE / "ask.py", job.agent, work / "measured.jsonl", cwd=work, **variables)
    return float(out)


async def output_of(*arguments: str | Path, cwd: Path, **variables: str) -> str:
    """What a script that ends well prints."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), **variables}
    process = await asyncio.create_subprocess_exec(
        sys.executable, *map(str, arguments), cwd=cwd, env=environment, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    if process.returncode:
        raise SystemExit(f"{arguments[0]} ended with {process.returncode}")
    return out.decode()
