"""An agent whose conversation fills the context, and how it ends then; a program of the same kind."""

import json
import os
import sys
import urllib.error
import urllib.request

LONG = {"role": "user", "content": "x" * 99}


def call(messages):
    """Ask the model; raise HTTPError where it refuses."""
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": "policy", "messages": messages}).encode(),
        {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as response:
        return json.load(response)


def solve(task):
    short = {"role": "user", "content": "hi"}
    call([short])
    try:
        call([short, LONG])
    except urllib.error.HTTPError as error:
        if task["then"] == "fail":
            raise RuntimeError("the harness ended with 1") from error
        if task["then"] == "compact":
            call([short])
            raise RuntimeError("a fault of its own") from error
    return task.get("reward")


def grade(task, result):
    return 0.5


if __name__ == "__main__":
    json.dump({"reward": solve(json.load(sys.stdin))}, sys.stdout)
