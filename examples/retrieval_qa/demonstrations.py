"""Conversations to learn from: a beginner's, who mostly answers with what the first search gave.

``python demonstrations.py --records train_records.jsonl --corpus corpus --out demonstrations.jsonl``, in the agent's
environment: its prompts and its searches are what the beginner answers. A line is a conversation, as
``{"messages", "tools"}`` of Chat Completions; what the assistant says is learned.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from agent import LENGTH, PASSAGES, agent, search
from policy import Policy
from retrieval import Retriever

HABITS = {"stops": 0.7, "untagged": 0.3}
"""Share of the first searches that are thought to be enough, and of the answers without their form."""


def conversations(records: list[dict], policy: Policy, retriever: Retriever) -> Iterator[dict]:
    """Each question as the agent goes about it."""
    function = {
        "name": search.name,
        "description": search.description,
        "parameters": search.params_json_schema,
        "strict": search.strict_json_schema,
    }
    tools = [{"type": "function", "function": function}]
    for record in records:
        messages = [
            {"role": "system", "content": agent.instructions},
            {"role": "user", "content": record["question"].strip()},
        ]
        while messages[-1]["role"] != "assistant":
            messages.append(policy.answer(messages))
            for call in messages[-1].get("tool_calls", ()):
                query = json.loads(call["function"]["arguments"])["query"]
                (hits,) = retriever.search([query], PASSAGES)
                text = "\n".join(hit.text[:LENGTH] for hit in hits)
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})
        yield {"messages": messages, "tools": tools}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=Path, required=True)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--flawed", type=float, default=1.0, help="how much of the habits is shown, from 0 to 1")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with options.records.open(encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines]
    policy = Policy(records, {flaw: options.flawed * rate for flaw, rate in HABITS.items()}, options.seed)
    with options.out.open("w", encoding="utf-8") as out:
        for line in conversations(records, policy, Retriever(options.corpus)):
            out.write(json.dumps(line, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
