"""The parts of the text-to-SQL example that its tests share."""

from functools import partial
from pathlib import Path
from typing import Any

from lightningbus.tasks.task_loading import load_tasks
from tests.examples.endpoint import EXAMPLES, make_problems, module

TEXT_TO_SQL = EXAMPLES / "text_to_sql"
policies = module("text_to_sql", "policy")
databases = module("text_to_sql", "database")
demonstrations = module("text_to_sql", "demonstrations")
make = partial(make_problems, "text_to_sql")


def tasks_of(path: Path) -> list[dict[str, Any]]:
    """What the agent is given, line by line."""
    return [problem.input for problem in load_tasks(path)]
