"""A scripted policy: what a good model would answer to the agent's prompts, or one with the flaws it is told to have.

It knows the problems. Serving it to the agent gives conversations to learn from, with the very prompts that the
framework sends.
"""

import random
import re
from collections.abc import Iterable, Iterator, Mapping

import prompts
from database import QueryFailedError, outcome, run_query, same_result, schema


def _pattern(prompt: str) -> re.Pattern:
    return re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>.*?)", re.escape(prompt)), re.DOTALL)


ROLES = {role: _pattern(getattr(prompts, role.upper())) for role in ("writer", "checker", "rewriter")}
TABLE = re.compile(r"^(\w+)\((.*)\)$", re.MULTILINE)
TOKEN = re.compile(r"\w+|\s+|[^\w\s]+")
SWAPPED = {"max": "min", "min": "max", "avg": "max", ">": "<", "<": ">", "=": "!=", "desc": "ASC", "asc": "DESC"}
CLAUSES = ("WHERE", "GROUP BY", "ORDER BY", "LIMIT")


class Policy:
    """Answers each role; ``flaws`` says how often a role errs, e.g. ``{"writer": 0.6, "checker": 0.1}``."""

    def __init__(self, tasks: Iterable[dict], flaws: Mapping[str, float] | None = None, seed: int = 0) -> None:
        """``tasks`` are the inputs of task lines; no two may ask the same."""
        self._tasks: dict[str, dict] = {}
        for task in tasks:
            if self._tasks.setdefault(task["question"], task) != task:
                raise ValueError(f"asked of two databases: {task['question']}")
        self._flaws = flaws or {}
        self._rng = random.Random(seed)

    def answer(self, messages: list[dict]) -> dict:
        """The assistant's message to a request's messages."""
        for role, pattern in ROLES.items():
            if match := pattern.fullmatch(messages[-1]["content"]):
                task = self._tasks[match["question"]]
                errs = self._rng.random() < self._flaws.get(role, 0.0)
                if role == "checker":
                    text = "no" if is_right(task, match["query"]) == errs else "yes"
                else:
                    text = flawed(task, self._rng) if errs else task["gold"]
                return {"role": "assistant", "content": text}
        raise ValueError(f"no role is asked like this: {messages[-1]['content']}")


def is_right(task: dict, query: str) -> bool:
    """Whether a query gives what the gold query gives."""
    try:
        actual = run_query(task["database"], query)
    except QueryFailedError:
        return False
    return same_result(task["gold"], run_query(task["database"], task["gold"]), actual)


def flawed(task: dict, rng: random.Random) -> str:
    """The gold query with one mistake that shows in its result, each sort of mistake as likely as the others."""
    gold = task["gold"]
    tables = _tables(task)
    sorts = [list(_wrong_columns(gold, tables)), list(_wrong_tables(gold, tables)), _swapped(gold), list(_cut(gold))]
    sorts = [[query for query in sort if query != gold and not is_right(task, query)] for sort in sorts]
    broken = gold.partition(" ")[2]  # without its SELECT
    return rng.choice(rng.choice([sort for sort in [*sorts, [broken]] if sort]))


def habit(task: dict) -> str:
    """A beginner's mistake: the first that fits, in the order of a list, so the same for problems of a kind."""
    gold = task["gold"]
    mistakes = [*_cut(gold), *_swapped(gold), *_wrong_columns(gold, _tables(task)), gold.partition(" ")[2]]
    return next(query for query in mistakes if query != gold and not is_right(task, query))


def twin(task: dict) -> str | None:
    """The query of another table with the same columns that gives no rows: only those say which table is right.

    None where there is no such table.
    """
    others = (query for query in _wrong_tables(task["gold"], _tables(task)) if query != task["gold"])
    return next((query for query in others if outcome(task["database"], query)[0] == []), None)


def _tables(task: dict) -> dict[str, list[str]]:
    return {table: _columns(columns) for table, columns in TABLE.findall(schema(task["database"]))}


def _columns(listed: str) -> list[str]:
    return [column.partition(" -> ")[0] for column in listed.split(", ")]


def _wrong_columns(query: str, tables: dict[str, list[str]]) -> Iterator[str]:
    for table, columns in tables.items():
        if _renamed(query, table, "") != query:
            for column in columns:
                yield from (_renamed(query, column, other) for other in columns)


def _wrong_tables(query: str, tables: dict[str, list[str]]) -> Iterator[str]:
    for table in tables:
        yield from (_renamed(query, table, other) for other in tables)


def _renamed(query: str, name: str, other: str) -> str:
    return "".join(other if token == name else token for token in TOKEN.findall(query))


def _swapped(query: str) -> list[str]:
    """Each operator in its place turned into another."""
    tokens = TOKEN.findall(query)
    places = [place for place, token in enumerate(tokens) if token.lower() in SWAPPED]
    return ["".join([*tokens[:at], SWAPPED[tokens[at].lower()], *tokens[at + 1 :]]) for at in places]


def _cut(query: str) -> Iterator[str]:
    """The query up to one of its clauses."""
    for clause in CLAUSES:
        kept, actual, _ = query.partition(f" {clause} ")
        if actual:
            yield kept
