"""The agent of `examples/text_to_sql`, whose queries are reported as calls of a tool: `air` rewards what it can see."""

import json
import os
import sys
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "text_to_sql"))
import agent

outcome = agent.outcome


def report_outcome(database: str, query: str) -> object:
    """What a query gives, after it was reported with its status."""
    rows, text = outcome(database, query)
    event = {"name": "query", "kind": "tool", "output": text, "status": "error" if rows is None else "ok"}
    request = urllib.request.Request(
        f"{os.environ['OPENAI_BASE_URL']}/events",
        data=json.dumps(event).encode(),
        headers={"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"},
    )
    urllib.request.urlopen(request, timeout=30).close()
    return rows, text


agent.outcome = report_outcome
solve = agent.solve
