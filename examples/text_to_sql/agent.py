"""Text to SQL as a LangGraph: a writer, a checker that sees what the query gives, and a rewriter.

Each of them is a chat model of its own name, so whoever serves or trains them can tell them apart. ``MODEL`` in the
environment names one model for all three instead, for an endpoint that knows nothing of roles.
"""

import os
import re
from typing import Literal, TypedDict

import prompts
from database import QueryFailedError, Rows, outcome, run_query, same_result, schema
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from pydantic import ValidationError

MODEL = os.environ.get("MODEL", "policy")
TURNS = int(os.environ.get("TURNS", "3"))
"""Queries that are tried at most."""
MAX_TOKENS = int(os.environ.get("MAX_TOKENS", "256"))
"""Of a query."""
MAX_VERDICT = 120
"""Characters."""
FENCED = re.compile(r"```(?:sql\w*)?\s*(.*?)(?:```|$)", re.DOTALL | re.IGNORECASE)
YES = re.compile(r"\W*yes\b", re.IGNORECASE)

SILENCE = RunnableLambda(lambda request: AIMessage(""))
"""Stands for an answer that LangChain cannot read, such as a tool call whose arguments have no names."""


class State(TypedDict, total=False):
    question: str
    database: str
    schema: str
    query: str
    rows: Rows | None
    outcome: str
    verdict: str
    checked: list[tuple[Rows | None, bool]]
    turns: int


def role(name: str, prompt: str, max_tokens: int) -> Runnable:
    model = ChatOpenAI(model=f"{MODEL}:{name}" if MODEL == "policy" else MODEL, max_tokens=max_tokens)
    fallbacks = model.with_fallbacks([SILENCE], exceptions_to_handle=(ValidationError,))
    return ChatPromptTemplate.from_template(prompt) | fallbacks | StrOutputParser()


writer = role("writer", prompts.WRITER, max_tokens=MAX_TOKENS)
checker = role("checker", prompts.CHECKER, max_tokens=32)
rewriter = role("rewriter", prompts.REWRITER, max_tokens=MAX_TOKENS)


def write(state: State) -> State:
    return {"query": query_in(writer.invoke(state)), "turns": 1}


def execute(state: State) -> State:
    rows, text = outcome(state["database"], state["query"])
    return {"rows": rows, "outcome": text}


def check(state: State) -> State:
    verdict = checker.invoke(state).strip()[:MAX_VERDICT]
    return {"verdict": verdict, "checked": [*state.get("checked", []), (state["rows"], says_yes(verdict))]}


def rewrite(state: State) -> State:
    return {"query": query_in(rewriter.invoke(state)), "turns": state["turns"] + 1}


def after_execution(state: State) -> Literal["checker", "__end__"]:
    return "checker" if state["turns"] < TURNS else END


def after_check(state: State) -> Literal["rewriter", "__end__"]:
    return END if says_yes(state["verdict"]) else "rewriter"


def says_yes(verdict: str) -> bool:
    return YES.match(verdict) is not None


def query_in(text: str) -> str:
    """The query in an answer, with or without a Markdown fence around it."""
    fenced = FENCED.search(text)
    return (fenced[1] if fenced else text).strip().rstrip(";")


builder = StateGraph(State)
builder.add_node("writer", write)
builder.add_node("execute", execute)
builder.add_node("checker", check)
builder.add_node("rewriter", rewrite)
builder.add_edge(START, "writer")
builder.add_edge("writer", "execute")
builder.add_conditional_edges("execute", after_execution)
builder.add_conditional_edges("checker", after_check)
builder.add_edge("rewriter", "execute")
graph = builder.compile()


def solve(task: dict) -> float:
    """Reward of ``{"question", "database", "gold"}``: 1 if the last query gives what the gold query gives, else 0."""
    return solve_and_judge(task)["reward"]


def solve_and_judge(task: dict) -> dict:
    """That reward, and under ``rewards`` the checker's own: the share of its verdicts that the gold query confirms."""
    database, gold = task["database"], task["gold"]
    try:
        expected = run_query(database, gold)
    except QueryFailedError as error:
        raise ValueError(f"the gold query fails on {database}: {error}: {gold}") from error
    start: State = {"question": task["question"], "database": database, "schema": schema(database)}
    last = graph.invoke(start, {"recursion_limit": 3 * TURNS + 2})

    def is_right(rows: Rows | None) -> bool:
        return rows is not None and same_result(gold, expected, rows)

    confirmed = [is_right(rows) == said_yes for rows, said_yes in last.get("checked", [])]
    named = {"rewards": {"checker": sum(confirmed) / len(confirmed)}} if confirmed else {}
    return {"reward": float(is_right(last["rows"])), **named}
