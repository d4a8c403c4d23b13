"""Conversations to learn from: what the agent asks, with the answers of a beginner.

``python demonstrations.py --records FOLDER --out demonstrations.jsonl``; ``data.py --out DIR`` leaves records of the
stand-in in ``DIR/standin``.
"""

import argparse
import json
from pathlib import Path

from arithmetic import calculate
from data import read_records
from policy import Policy
from prompts import SYSTEM

FLAWS = {"stops": 0.7, "wrong_sign": 0.1, "no_form": 0.1, "guess": 0.05}
"""A beginner stops after the first step, mostly."""
TOOLS = [{"type": "function", "function": {"name": "calculator", "parameters": {"properties": {"expression": {}}}}}]


def conversation(question: str, policy: Policy) -> dict:
    """One problem, as Chat Completions has it."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    while messages[-1]["role"] != "assistant":
        answer = policy.answer(messages)
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": used(call["function"]["arguments"])}
            for call in answer.get("tool_calls", ())
        ]
        messages += [answer, *results]
    return {"messages": messages, "tools": TOOLS}


def used(arguments: str) -> str:
    """What the agent's framework says of a tool: what it returned, or its error."""
    try:
        return calculate(json.loads(arguments)["expression"])
    except ValueError as error:
        return str(error)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--flawed", type=float, default=1.0, help="how much of the flaws is shown, from 0 to 1")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    records = list(read_records(options.records, "train"))
    policy = Policy(records, {flaw: options.flawed * rate for flaw, rate in FLAWS.items()}, options.seed)
    lines = [json.dumps(conversation(record["question"], policy)) + "\n" for record in records]
    options.out.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
