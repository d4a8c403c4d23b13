"""Text to SQL in one call, with a system prompt that lacks a rule; problems and database of `examples/text_to_sql`."""

import os
import sys
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "text_to_sql"
sys.path.append(str(EXAMPLE))

from database import QueryFailedError, run_query, same_result, schema  # noqa: E402
from openai import OpenAI  # noqa: E402
from prompts import WRITER  # noqa: E402

SYSTEM_FILE = os.environ.get("SYSTEM_FILE", str(Path(__file__).resolve().parent / "sql_system.txt"))
SYSTEM = Path(SYSTEM_FILE).read_text()

client = OpenAI()


def solve(task: dict[str, Any]) -> dict[str, Any]:
    """Reward 1 if the query gives what the gold query gives, else 0; ``why`` says what was wrong."""
    request = WRITER.format(schema=schema(task["database"]), question=task["question"])
    messages: Any = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": request}]
    answer = client.chat.completions.create(model="policy", messages=messages, max_tokens=256)
    query = (answer.choices[0].message.content or "").strip()
    expected = run_query(task["database"], task["gold"])
    try:
        rows = run_query(task["database"], query)
    except QueryFailedError as error:
        return {"reward": 0.0, "why": f"The query fails: {error}"}
    if same_result(task["gold"], expected, rows):
        return {"reward": 1.0, "why": ""}
    return {"reward": 0.0, "why": f"It gives {len(rows)} rows; right are {len(expected)}."}
