"""Problems of two steps, and conversations to learn from: ``python problems.py --out work --seed 0``.

The conversations are those of a model that follows the rule if its prompt has it, mostly, and else stops after the
first step, mostly. The problems are those of `examples/math_tools`.
"""

import argparse
import json
import random
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "math_tools"))

import policy as scripted
from arithmetic import calculate
from data import make_records
from rule import OTHERS, RULE, SYSTEM

TOOLS = [{"type": "function", "function": {"name": "calculator", "parameters": {"properties": {"expression": {}}}}}]
ABLE = {"stops": 0.02, "wrong_sign": 0.01}
WITH_RULE = {"stops": 0.03, "wrong_sign": 0.02, "no_form": 0.01}
WITHOUT = {"stops": 0.85, "wrong_sign": 0.05, "no_form": 0.03}
SPLITS = {"train": 600, "heldout": 64, "tried": 24, "compared": 16}
"""Problems to train on, to measure on, to try prompts on, and to compare the best prompt on."""


def use_tool(arguments: str) -> str:
    """What the calculator says, or its error."""
    try:
        return calculate(json.loads(arguments)["expression"])
    except ValueError as error:
        return str(error)


def conversation(system: str, question: str, policy: scripted.Policy) -> dict:
    """One problem, as Chat Completions has it."""
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    while messages[-1]["role"] != "assistant":
        answer = policy.answer(messages)
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": use_tool(call["function"]["arguments"])}
            for call in answer.get("tool_calls", ())
        ]
        messages += [answer, *results]
    return {"messages": messages, "tools": TOOLS}


def system_prompt(rng: random.Random, has_rule: bool) -> str:
    """The agent's prompt with some sentences more."""
    sentences = rng.sample(OTHERS, rng.choice((0, 0, 1, 2, 3))) + ([RULE] if has_rule else [])
    rng.shuffle(sentences)
    return " ".join([SYSTEM, *sentences])


def write(path: Path, lines: list[dict]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--demonstrations", type=int, default=4000)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    rng = random.Random(options.seed)
    count = options.demonstrations + sum(SPLITS.values())
    records = [record for record in make_records(3 * count, options.seed) if record["chain"].count("<gadget") == 2]
    demonstrated, rest = records[: options.demonstrations], records[options.demonstrations :]
    for name, size in SPLITS.items():
        problems, rest = rest[:size], rest[size:]
        inputs = [{"question": each["question"], "result": each["result"], "steps": 2} for each in problems]
        write(options.out / f"{name}.jsonl", [{"id": f"{name}-{n}", "input": each} for n, each in enumerate(inputs)])
    able, with_rule, without = (
        scripted.Policy(demonstrated, flaws, options.seed) for flaws in (ABLE, WITH_RULE, WITHOUT)
    )
    lots: dict[str, list[dict]] = {"able": [], "habit": []}
    for record in demonstrated:
        has_rule = rng.random() < 0.5
        system = system_prompt(rng, has_rule)
        lots["able"].append(conversation(system, record["question"], able))
        lots["habit"].append(conversation(system, record["question"], with_rule if has_rule else without))
    for name, lot in lots.items():
        write(options.out / f"{name}.jsonl", lot)


if __name__ == "__main__":
    main()
