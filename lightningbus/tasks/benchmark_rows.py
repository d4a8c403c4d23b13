"""Rows of public benchmarks in the form of their files, as tasks. Pure.

A task's input has ``question``, or ``messages`` and ``tools``, for the agent. Beside it are the name of the benchmark
and what an answer is scored by.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

Row = Mapping[str, Any]
GSM8K_MARK = "####"
JSON_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": "string"}
"""Types of JSON Schema by those names of BFCL's that it does not have."""


def read_row(name: str, row: Row, answer: Any = None) -> dict[str, Any]:
    """Map a row of the benchmark ``name`` to the fields of a task; raise ValueError naming what the row lacks.

    ``answer``: what another file of the benchmark says of the row.
    """
    try:
        task = READERS[name](row if answer is None else {**row, "ground_truth": answer})
        return {**task, "input": {"benchmark": name, **task["input"]}}
    except KeyError as error:
        raise ValueError(f"it is no row of {name}: it lacks {error.args[0]!r}") from None
    except (AttributeError, TypeError, IndexError) as error:
        raise ValueError(f"it is no row of {name}: {error}") from None


def find_boxed(text: str) -> str | None:
    r"""Return the content of the last ``\boxed{...}`` of a text; None without one."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth, begin = 0, start + len("\\boxed{")
    for position in range(begin, len(text)):
        if text[position] == "}" and depth == 0:
            return text[begin:position]
        depth += {"{": 1, "}": -1}.get(text[position], 0)
    return None


def name_function(name: str) -> str:
    """Return a function's name as an API takes it: with ``_`` in place of a dot and other characters."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)


def _read_gsm8k(row: Row) -> dict[str, Any]:
    _, mark, number = row["answer"].rpartition(GSM8K_MARK)
    if not mark:
        raise ValueError(f"it is no row of gsm8k: its answer has no {GSM8K_MARK}")
    return {"input": {"question": row["question"], "answer": number.strip().replace(",", "")}}


def _read_math(row: Row) -> dict[str, Any]:
    answer = row["answer"] if "answer" in row else find_boxed(row["solution"])
    if answer is None:
        raise ValueError("it is no row of math: its solution has no \\boxed{}")
    task = {"input": {"question": row["problem"], "answer": answer}, "labels": _pick(row, "level", "type", "subject")}
    return {**task, "id": row["unique_id"]} if "unique_id" in row else task


def _read_humaneval(row: Row) -> dict[str, Any]:
    tests = row["test"].rstrip() + f"\n\ncheck({row['entry_point']})\n"
    return {"id": row["task_id"], "input": {"question": row["prompt"], "start": row["prompt"], "tests": tests}}


def _read_mbpp(row: Row) -> dict[str, Any]:
    question = row["prompt"] if "prompt" in row else row["text"]
    setup = row.get("test_imports") or [row.get("test_setup_code") or ""]
    tests = "\n".join([*setup, *row["test_list"]]).strip()
    example = row["test_list"][0]
    return {
        "id": row["task_id"],
        "input": {"question": f"{question}\nYour code should pass this test:\n{example}", "start": "", "tests": tests},
    }


def _read_bfcl(row: Row) -> dict[str, Any]:
    if len(row["question"]) != 1:
        raise ValueError("it has several turns: only the sets of a single turn can be read")
    is_irrelevant = "irrelevance" in row["id"]  # no function helps: a right answer calls none
    if "ground_truth" not in row and not is_irrelevant:
        raise ValueError("its right calls are missing: they are in possible_answer beside the file")
    tools = [
        {"type": "function", "function": {**each, "name": name_function(each["name"]), "parameters": parameters}}
        for each in row["function"]
        for parameters in [_convert_schema(each["parameters"])]
    ]
    calls = [
        {"name": name_function(name), "arguments": arguments}
        for call in row.get("ground_truth", [])
        for name, arguments in call.items()
    ]
    return {"id": row["id"], "input": {"messages": row["question"][0], "tools": tools, "calls": calls}}


def _read_ifeval(row: Row) -> dict[str, Any]:
    instructions = [
        {"id": id, "kwargs": {name: value for name, value in kwargs.items() if value is not None}}
        for id, kwargs in zip(row["instruction_id_list"], row["kwargs"], strict=True)
    ]
    return {"id": row["key"], "input": {"question": row["prompt"], "instructions": instructions}}


def _convert_schema(schema: Any) -> Any:
    """Convert BFCL's types to those of JSON Schema, wherever they stand."""
    if isinstance(schema, Mapping):
        converted = {name: _convert_schema(value) for name, value in schema.items()}
        if isinstance(schema.get("type"), str):
            converted["type"] = JSON_TYPES.get(schema["type"], schema["type"])
        return converted
    return [_convert_schema(each) for each in schema] if isinstance(schema, list) else schema


def _pick(row: Row, *names: str) -> dict[str, str]:
    return {name: str(row[name]) for name in names if row.get(name) is not None}


READERS: Mapping[str, Callable[[Row], dict[str, Any]]] = {
    "gsm8k": _read_gsm8k,
    "math": _read_math,
    "humaneval": _read_humaneval,
    "mbpp": _read_mbpp,
    "bfcl": _read_bfcl,
    "ifeval": _read_ifeval,
}
"""Reader of a row, by the name of the benchmark."""
