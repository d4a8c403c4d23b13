"""Runs a function that grades: a line of JSON in, a line of JSON out. Standard library alone.

It runs in the interpreter of the function, which may lack lightningbus. What a function prints goes to standard error.
"""

import asyncio
import decimal
import importlib
import inspect
import json
import numbers
import os
import sys
from collections.abc import Callable
from typing import Any

WITH_ROLLOUT = 3
"""Arguments of a function that takes the rollout too."""


def load(path: str) -> Callable[..., Any]:
    """Import ``module:function`` from the working directory."""
    sys.path[0] = os.getcwd()  # noqa: PTH109 - in place of this script's own directory
    module, _, name = path.partition(":")
    function = getattr(importlib.import_module(module), name)
    if not callable(function):
        raise TypeError(f"{path} is no function")
    return function  # type: ignore[no-any-return]


def count_arguments(function: Callable[..., Any]) -> int:
    """Count the positional arguments that a function takes: two, or the rollout as a third."""
    parameters = inspect.signature(function).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    takes_all = any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters)
    num_positional = sum(parameter.kind in kinds for parameter in parameters)
    return WITH_ROLLOUT if takes_all or num_positional >= WITH_ROLLOUT else WITH_ROLLOUT - 1


def grade(function: Callable[..., Any], arguments: list[Any]) -> dict[str, Any]:
    """Call the function, which may use or start an event loop, and return its value or its error."""
    loop = asyncio.new_event_loop()  # The call before may have closed or removed its own.
    asyncio.set_event_loop(loop)
    try:
        value = function(*arguments)
        if inspect.isawaitable(value):
            value = asyncio.run(_wait(value))
        if getattr(value, "shape", None) == () and hasattr(value, "item"):  # a scalar of NumPy or torch
            value = value.item()
        is_number = isinstance(value, (numbers.Real, decimal.Decimal))
        return {"value": float(value) if is_number else repr(value)[:80]}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:500]}
    finally:
        loop.close()


async def _wait(value: Any) -> Any:
    return await value


def main(path: str) -> None:
    """Serve until standard input ends."""
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)
        try:
            function = load(path)
            wanted = count_arguments(function)
        except Exception as error:
            print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=out, flush=True)
            return
        print(json.dumps({"takes_rollout": wanted == WITH_ROLLOUT}), file=out, flush=True)
        for line in sys.stdin:
            print(json.dumps(grade(function, json.loads(line)[:wanted])), file=out, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
