"""An agent in LangGraph with one tool, a calculator.

OPENAI_BASE_URL and OPENAI_API_KEY come from the runner. Every call is recorded, token by token.
"""

import os
import re

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.errors import GraphRecursionError
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

SYSTEM = "Use the calculator. Then say only the number."


@tool
def calculate(left: int, sign: str, right: int) -> str:
    """Calculate a sum (+), a difference (-) or a product (*)."""
    results = {"+": left + right, "-": left - right, "*": left * right}
    return str(results.get(sign, "unknown sign"))


model = ChatOpenAI(model=os.environ.get("MODEL", "policy"), max_tokens=512).bind_tools([calculate])


def call_model(state: MessagesState) -> dict:
    return {"messages": [model.invoke([("system", SYSTEM), *state["messages"]])]}


builder = StateGraph(MessagesState)
builder.add_node("model", call_model)
builder.add_node("tools", ToolNode([calculate]))
builder.add_edge(START, "model")
builder.add_conditional_edges("model", tools_condition)
builder.add_edge("tools", "model")
graph = builder.compile()


def solve(task: dict) -> float:
    """Answer one task, the ``input`` of its line in tasks.jsonl. Return its reward: 1 for the right result, else 0."""
    try:
        state = graph.invoke({"messages": [("user", task["question"])]}, {"recursion_limit": 10})
    except GraphRecursionError:
        return 0.0
    numbers = re.findall(r"-?\d+", str(state["messages"][-1].content))
    return float(numbers[-1:] == [task["answer"]])
