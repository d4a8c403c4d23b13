"""Scores of answers to public benchmarks, as functions of a grader: ``lightningbus.graders.benchmark_scores:score``."""

import json
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
CODE_BLOCK = re.compile(r"```([^\n`]*)\n(.*?)(?:```|\Z)", re.DOTALL)
CODE_TAGS = ("", "py", "python", "python3")
FUNCTION = re.compile(r"^(?:async )?def (\w+)", re.MULTILINE)
IGNORED_CHARACTERS = re.compile(r"[ ,./\-_*^]")
CODE_SECONDS = 10.0
CODE_BYTES = 512 * 1024 * 1024
OUTPUT_BYTES = 1024 * 1024
SANDBOX = [
    *("bwrap", "--die-with-parent", "--unshare-all", "--new-session", "--clearenv"),
    *("--proc", "/proc", "--dev", "/dev", "--size", str(CODE_BYTES), "--tmpfs", "/tmp", "--chdir", "/tmp"),
    *(
        word
        for path in ("/usr", "/bin", "/lib", "/lib64", sys.base_prefix, sys.prefix)
        for word in ("--ro-bind-try", path, path)
    ),
]
RUN = """
def run():
    import json, os, resource, sys
    answer = json.load(sys.stdin)
    out, null, write = os.dup(1), os.open(os.devnull, os.O_RDWR), os.write
    for limit, value in (("AS", "max_bytes"), ("FSIZE", "max_output"), ("NPROC", "max_processes")):
        resource.setrlimit(getattr(resource, "RLIMIT_" + limit), (answer[value],) * 2)
    for number in range(3):
        os.dup2(null, number)
    write(out, answer["words"][0].encode() + bytes([10]))
    names, execute = {"__name__": "answer"}, exec
    execute(answer["code"], names)
    execute(answer["tests"], names)
    write(out, answer["words"][1].encode())
run()
"""
"""Writes a word before the code and another one after its tests. What the code prints is dropped."""


def score(input: Any, result: Any, rollout: Mapping[str, Any]) -> float:
    """Score an answer by the benchmark that its task comes from: 1 for a right one, else 0.

    The field ``benchmark`` of the input names it, see `lightningbus.tasks.benchmark_rows`. The answer is what the
    agent returned if that is text, else the last message of the model. A task of no benchmark has the reward that the
    agent gave itself. Raises ValueError where nothing can be scored: the grading has failed then.
    """
    name = input.get("benchmark") if isinstance(input, Mapping) else None
    if name is None:
        if rollout["agent"] is None:
            raise ValueError("the task is of no benchmark, and the agent gave no reward")
        return float(rollout["agent"])
    if name == "bfcl":
        return float(match_calls(_find_answer(rollout).get("tool_calls") or (), input["calls"]))
    if name not in SCORES:
        raise ValueError(f"answers to {name} cannot be scored here: write a function that does")
    text = result if isinstance(result, str) else _find_answer(rollout).get("content")
    return float(isinstance(text, str) and SCORES[name](text, input))


def _find_answer(rollout: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the last message of the model; raise ValueError where there is none."""
    last: Mapping[str, Any] = next(reversed(rollout["messages"]), {})
    if last.get("role") != "assistant":
        raise ValueError("there is no answer of the model: the agent asked for none, or it is too long to be graded")
    return last


def match_number(text: str, answer: str) -> bool:
    """Return whether the last number of a text is the answer; thousands may have commas."""
    numbers = NUMBER.findall(text)
    return bool(numbers) and float(numbers[-1].replace(",", "")) == float(answer)


def match_mathematics(text: str, answer: str) -> bool:
    """Return whether a text has the mathematical value of the answer, by math-verify, a package of its own."""
    try:
        from math_verify import parse, verify
    except ModuleNotFoundError as error:
        raise ValueError("answers to math are compared by math-verify: pip install math-verify") from error
    return bool(verify(parse(f"${answer}$"), parse(text)))


def passes_tests(text: str, start: str, tests: str) -> bool:
    """Return whether the code in a text passes tests, in bubblewrap and within seconds.

    The code is the last block of Python in backticks, else the whole text. It goes on after ``start``. Code that ends
    its process early has not passed. The tests run in the process of the code, so code that looks for them can cheat:
    take this to measure, and watch a policy that is trained on it. Raises ValueError where bubblewrap is missing or
    cannot run code.
    """
    if shutil.which("bwrap") is None:
        raise ValueError("bubblewrap is not installed: code of a model is run in nothing else")
    words = secrets.token_hex(16), secrets.token_hex(16)
    fields = {"code": _join_code(text, start), "tests": tests, "words": words}
    limits = {"max_bytes": CODE_BYTES, "max_output": OUTPUT_BYTES, "max_processes": 0}
    command = [*SANDBOX, sys.executable, "-I", "-c", RUN]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        request = json.dumps(fields | limits).encode()
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(command, input=request, stdout=out, stderr=errors, timeout=CODE_SECONDS, check=False)
        printed, problem = (_read_start(file).split("\n") for file in (out, errors))
    if printed[0] != words[0]:
        raise ValueError(f"bubblewrap cannot run code here: {' '.join(problem).strip()[-300:] or 'it does not start'}")
    return printed[1:] == [words[1]]


def _join_code(text: str, start: str) -> str:
    """Return the program of an answer: ``start``, then its code; a whole function replaces that of ``start``."""
    blocks = [code for tag, code in CODE_BLOCK.findall(text) if tag.strip().lower() in CODE_TAGS]
    code = blocks[-1] if blocks else text
    functions = FUNCTION.findall(start)
    is_whole = not functions or functions[-1] in FUNCTION.findall(code)
    return f"{start}\n{code}" if is_whole else start + code


def _read_start(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(4096).decode(errors="replace")


def match_calls(calls: Sequence[Mapping[str, Any]], wanted: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether tool calls are those wanted, in any order: each with a value that is allowed for each argument.

    ``wanted``: name, and the allowed values by argument; an empty text among them allows the argument to be left out.
    Numbers are equal by value; texts without regard to case, blanks and some punctuation, as BFCL compares them.
    """
    left = list(wanted)
    if len(calls) != len(wanted):
        return False
    for call in calls:
        function = call.get("function")
        fitting = (each for each in left if isinstance(function, Mapping) and _is_call(function, each))
        match = next(fitting, None)
        if match is None:
            return False
        left.remove(match)
    return True


def _is_call(function: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    try:
        arguments = json.loads(function.get("arguments") or "{}")
    except (TypeError, ValueError):
        return False
    is_object = function.get("name") == wanted["name"] and isinstance(arguments, dict)
    return is_object and _are_allowed(arguments, wanted["arguments"])


def _are_allowed(fields: Mapping[str, Any], allowed: Mapping[str, Any]) -> bool:
    """Return whether each field has an allowed value, and each that is left out may be."""
    choices = {name: values if isinstance(values, list) else [values] for name, values in allowed.items()}
    return fields.keys() <= choices.keys() and all(
        any(_is_equal(fields[name], each) for each in values) if name in fields else "" in values
        for name, values in choices.items()
    )


def _is_equal(value: Any, wanted: Any) -> bool:
    """Compare an argument with an allowed value; a field of an object has one value or a list of allowed ones."""
    if isinstance(value, str) and isinstance(wanted, str):
        return _simplify(value) == _simplify(wanted)
    if isinstance(value, bool) or isinstance(wanted, bool):
        return value is wanted
    if isinstance(value, dict) and isinstance(wanted, dict):
        return _are_allowed(value, wanted)
    if isinstance(value, list) and isinstance(wanted, list):
        return len(value) == len(wanted) and all(map(_is_equal, value, wanted))
    return bool(value == wanted)


def _simplify(text: str) -> str:
    return IGNORED_CHARACTERS.sub("", text).lower().replace("'", '"')


SCORES: Mapping[str, Callable[[str, Mapping[str, Any]], bool]] = {
    "gsm8k": lambda text, input: match_number(text, input["answer"]),
    "math": lambda text, input: match_mathematics(text, input["answer"]),
    "humaneval": lambda text, input: passes_tests(text, input["start"], input["tests"]),
    "mbpp": lambda text, input: passes_tests(text, input["start"], input["tests"]),
}
"""Score of a text, by the name of the benchmark."""
