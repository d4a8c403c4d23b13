"""The example whose prompt lacks a rule: problems, what its model learns from, and the stand-in for a large model."""

import json
import random
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import yaml

from lightningbus.run.preflight.job_checks import parse_job
from lightningbus.run.settings.run_file import RunSettings, load_run_settings, validate_settings
from tests.examples.endpoint import EXAMPLES, module

HERE = EXAMPLES / "prompts_math"
rule, reflecting, problems = (module("prompts_math", name) for name in ("rule", "reflecting", "problems"))


def test_the_agents_prompt_lacks_the_rule() -> None:
    assert (HERE / "system.txt").read_text() == rule.SYSTEM and rule.RULE not in rule.SYSTEM
    assert rule.RULE not in rule.OTHERS


def test_who_has_the_rule_takes_every_step_mostly(tmp_path: Path) -> None:
    script = [sys.executable, HERE / "problems.py", "--out", tmp_path, "--demonstrations", "400"]
    subprocess.run([*map(str, script)], check=True)
    conversations = [json.loads(line)["messages"] for line in (tmp_path / "habit.jsonl").read_text().splitlines()]
    steps: dict[bool, list[int]] = {True: [], False: []}
    for system, *rest in conversations:
        steps[rule.RULE in system["content"]].append(sum(message["role"] == "tool" for message in rest))
    whole = {has_rule: sum(each >= 2 for each in counts) / len(counts) for has_rule, counts in steps.items()}
    assert whole[True] > 0.7 and whole[False] < 0.3 and min(map(len, steps.values())) > 150
    questions: list[str] = []
    for name, size in problems.SPLITS.items():
        lines = (tmp_path / f"{name}.jsonl").read_text().splitlines()
        assert len(lines) == size
        questions += [json.loads(line)["input"]["question"] for line in lines]
    questions += {messages[1]["content"] for messages in conversations}
    assert len(set(questions)) == len(questions), "nothing is in two sets"


def test_the_rule_is_proposed_only_where_the_feedback_asks_for_it() -> None:
    asks, does_not = "It answered after 1 of 2 steps.", "The result is 3, and not what it said: '4'"

    def share(feedback: str) -> float:
        rng = random.Random(0)
        request = f"```\n{rule.SYSTEM}\n``` {feedback}"
        return sum(rule.RULE in reflecting.propose(request, rng) for _ in range(200)) / 200

    assert share(does_not) == 0 and 0.4 < share(asks) < 0.6


def test_the_stand_in_answers_as_an_endpoint_does() -> None:
    server = reflecting.make_server(0, 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        content = f"```\n{rule.SYSTEM}\n``` {'It answered after 1 of 2 steps.'}"
        body = {"model": "m", "messages": [{"role": "user", "content": content}]}
        request = urllib.request.Request(
            f"http://127.0.0.1:{server.server_address[1]}/v1/chat/completions", json.dumps(body).encode()
        )
        with urllib.request.urlopen(request) as response:
            text = json.load(response)["choices"][0]["message"]["content"]
    finally:
        server.shutdown()
        server.server_close()
    assert text.startswith(f"```\n{rule.SYSTEM} ") and text.endswith("\n```")


def test_the_run_files_are_jobs() -> None:
    settings = validate_settings(RunSettings, yaml.safe_load((HERE / "train.yaml").read_text()), "train.yaml")
    assert settings.optimizes_in_turns and parse_job(settings, "train.yaml").learner.max_steps
    alone = load_run_settings(HERE / "optimize.yaml")
    assert alone.optimize is not None and alone.optimize.every is None
