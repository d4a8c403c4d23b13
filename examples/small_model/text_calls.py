"""Conversations whose tool calls are text: ``python text_calls.py --demonstrations FILE --count 256 --out FILE``.

For a model whose chat template renders content alone, such as that of SmolLM2: a call becomes text as Hermes writes it.
A runner sends calls to such a model so too, and an engine reads them with its parser ``hermes``. `lightningbus sft`
takes the file.
"""

import argparse
import json
import random
from pathlib import Path
from typing import Any


def write_calls(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message with its tool calls in its content; arguments are JSON in a string."""
    texts = [message["content"]] if message.get("content") else []
    for call in message.get("tool_calls", ()):
        function = call["function"]
        fields = {"name": function["name"], "arguments": json.loads(function["arguments"])}
        texts.append(f"<tool_call>\n{json.dumps(fields, ensure_ascii=False)}\n</tool_call>")
    return {"role": message["role"], "content": "\n".join(texts)}


def main() -> None:
    """Convert by command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--demonstrations", type=Path, required=True)
    parser.add_argument("--count", type=int, required=True, help="how many conversations, by chance")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    lines = options.demonstrations.read_text(encoding="utf-8").splitlines()
    if len(lines) < options.count:
        parser.error(f"{options.demonstrations} has {len(lines)} conversations; asked for {options.count}")
    with options.out.open("w", encoding="utf-8") as out:
        for line in random.Random(options.seed).sample(lines, options.count):
            messages = [write_calls(message) for message in json.loads(line)["messages"]]
            out.write(json.dumps({"messages": messages}, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
