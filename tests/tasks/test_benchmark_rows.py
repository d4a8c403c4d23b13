"""Files of public benchmarks as tasks, and scores of answers to them."""

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from lightningbus.graders import benchmark_scores
from lightningbus.graders.benchmark_scores import match_calls, match_mathematics, match_number, passes_tests, score
from lightningbus.tasks.benchmark_rows import READERS, find_boxed, read_row
from lightningbus.tasks.errors import TaskFileError
from lightningbus.tasks.task_loading import TaskInput, load_tasks
from lightningbus.tasks.task_source import TaskSource, parse_task_source

PARAMETERS = {
    "type": "dict",
    "required": ["side"],
    "properties": {"side": {"type": "float"}, "unit": {"type": "string"}},
}
SQUARE = {
    "id": "simple_0",
    "question": [[{"role": "user", "content": "Area of a square of side 3?"}]],
    "function": [{"name": "geometry.area", "description": "Area of a square.", "parameters": PARAMETERS}],
}
DOUBLE = 'from typing import List\n\n\ndef double(numbers: List[int]) -> List[int]:\n    """ Double each. """\n'
ROWS: dict[str, dict[str, Any]] = {
    "gsm8k": {"question": "How many?", "answer": "600 and 634.\n#### 1,234"},
    "math": {
        "problem": "Half of one?",
        "solution": r"Of \boxed{1} it is \boxed{\frac{1}{2}}.",
        "level": "Level 1",
        "type": "Algebra",
    },
    "humaneval": {
        "task_id": "HumanEval/0",
        "prompt": DOUBLE,
        "entry_point": "double",
        "canonical_solution": "    return [2 * n for n in numbers]\n",
        "test": "def check(candidate):\n    assert candidate([1, 2]) == [2, 4]\n",
    },
    "mbpp": {
        "task_id": 11,
        "text": "Write a function that adds two numbers.",
        "code": "def add(a, b): return a + b",
        "test_list": ["assert add(1, 2) == 3", "assert add(2, 2) == 4"],
        "test_setup_code": "",
        "challenge_test_list": [],
    },
    "bfcl": {**SQUARE, "ground_truth": [{"geometry.area": {"side": [3], "unit": ["cm", ""]}}]},
    "ifeval": {
        "key": 1000,
        "prompt": "Write 300 words without a comma.",
        "instruction_id_list": ["punctuation:no_comma", "length_constraints:number_words"],
        "kwargs": [{"relation": None}, {"relation": "at least", "num_words": 300}],
    },
}
"""A row of each benchmark, with the fields of its public files."""


def load(name: str, directory: Path) -> TaskInput:
    path = directory / f"{name}.jsonl"
    path.write_text(json.dumps(ROWS[name]) + "\n")
    (task,) = load_tasks(TaskSource(path=str(path), benchmark=name))  # type: ignore[arg-type]
    assert task.input["benchmark"] == name
    return task


def test_each_row_is_a_task_with_what_its_answer_is_scored_by(tmp_path: Path) -> None:
    assert ROWS.keys() == READERS.keys()
    tasks = {name: load(name, tmp_path) for name in ROWS}
    assert [task.id for task in tasks.values()] == ["1", "1", "HumanEval/0", "11", "simple_0", "1000"]
    assert tasks["gsm8k"].input["answer"] == "1234"
    assert tasks["math"].input["answer"] == r"\frac{1}{2}"
    assert tasks["math"].labels == {"level": "Level 1", "type": "Algebra"}
    (tool,) = tasks["bfcl"].input["tools"]
    assert tool["function"]["name"] == "geometry_area" and tool["function"]["parameters"]["type"] == "object"
    assert tool["function"]["parameters"]["properties"]["side"] == {"type": "number"}
    assert tasks["ifeval"].input["instructions"][1]["kwargs"] == {"relation": "at least", "num_words": 300}


def test_rows_of_the_five_hundred_and_of_sanitized_files_are_read_too() -> None:
    row = {"problem": "p", "solution": "s", "answer": "7", "subject": "Algebra", "level": 2, "unique_id": "test/a.json"}
    task = read_row("math", row)
    assert (task["id"], task["input"]["answer"]) == ("test/a.json", "7")
    assert task["labels"] == {"level": "2", "subject": "Algebra"}
    sanitized = {"task_id": 2, "prompt": "Add.", "test_imports": ["import math"], "test_list": ["assert math"]}
    assert read_row("mbpp", sanitized)["input"]["tests"] == "import math\nassert math"


def test_files_may_be_packed_and_answers_may_lie_beside(tmp_path: Path) -> None:
    packed = tmp_path / "test.jsonl.gz"
    packed.write_bytes(gzip.compress(json.dumps(ROWS["gsm8k"]).encode()))
    assert len(load_tasks(TaskSource(path=str(packed), benchmark="gsm8k"))) == 1
    packed.write_bytes(packed.read_bytes()[:-9])
    with pytest.raises(TaskFileError, match="cannot be read"):
        load_tasks(TaskSource(path=str(packed), benchmark="gsm8k"))
    path = tmp_path / "BFCL_v4_simple.json"
    path.write_text(json.dumps(SQUARE) + "\n")
    source = TaskSource(path=str(path), benchmark="bfcl")
    with pytest.raises(TaskFileError, match="line 1: its right calls are missing: they are in possible_answer"):
        load_tasks(source)
    (tmp_path / "possible_answer").mkdir()
    answers = {"id": "simple_0", "ground_truth": ROWS["bfcl"]["ground_truth"]}
    (tmp_path / "possible_answer" / path.name).write_text(json.dumps(answers) + "\n")
    (task,) = load_tasks(source)
    assert task.input["calls"] == [{"name": "geometry_area", "arguments": {"side": [3], "unit": ["cm", ""]}}]
    assert read_row("bfcl", {**SQUARE, "id": "irrelevance_3"})["input"]["calls"] == []


@pytest.mark.parametrize("name", ROWS)
def test_other_rows_are_refused_in_a_sentence(name: str) -> None:
    for row in ({}, {"input": "x"}, dict.fromkeys(ROWS[name], 3), dict.fromkeys(ROWS[name])):
        with pytest.raises(ValueError, match=f"it is no row of {name}|it has several turns"):
            read_row(name, row)


def test_a_benchmark_says_what_the_columns_are() -> None:
    with pytest.raises(ValueError, match="leave out columns, id and labels"):
        parse_task_source({"path": "a.jsonl", "benchmark": "gsm8k", "columns": {"question": "q"}})


@pytest.mark.parametrize(
    ("text", "boxed"),
    [(r"\boxed{1} \boxed{a{b}c}", "a{b}c"), (r"\boxed{1", None), ("1", None), (r"\boxed{\boxed{2}}", "2")],
)
def test_the_last_box_counts(text: str, boxed: str | None) -> None:
    assert find_boxed(text) == boxed


def test_the_last_number_of_a_text_counts() -> None:
    assert match_number("2 and 3 make 1,234.", "1234") and match_number("It is -5.0", "-5")
    assert not match_number("1234 or 1235", "1234") and not match_number("none", "1")


def test_calls_are_right_with_any_value_that_is_allowed() -> None:
    wanted = read_row("bfcl", ROWS["bfcl"])["input"]["calls"]

    def is_right(*calls: tuple[str, Any]) -> bool:
        return match_calls(
            [{"function": {"name": name, "arguments": json.dumps(args)}} for name, args in calls], wanted
        )

    name = "geometry_area"
    assert is_right((name, {"side": 3})) and is_right((name, {"side": 3.0, "unit": "CM"}))
    for wrong in ({"side": 4}, {}, {"side": 3, "colour": "red"}, {"side": "3"}, {"side": 3, "unit": "m"}, [3], None):
        assert not is_right((name, wrong)), wrong
    assert (
        not is_right(("other", {"side": 3}))
        and not is_right((name, {"side": 3}), (name, {"side": 3}))
        and not is_right()
    )
    assert not match_calls([{"function": {"name": name, "arguments": "{"}}], wanted) and not match_calls([{}], wanted)
    nested: list[Any] = [{"name": "f", "arguments": {"place": [{"city": ["Rome"], "zip": ["", 1]}], "all": [[1, 2]]}}]
    call = {"function": {"name": "f", "arguments": json.dumps({"place": {"city": "rome"}, "all": [1, 2]})}}
    assert match_calls([call], nested)
    nested[0]["arguments"]["place"][0]["city"] = "Rome"
    assert match_calls([call], nested) and not match_calls(
        [{"function": {"name": "f", "arguments": json.dumps({"place": {"zip": 1}, "all": [1, 2]})}}], nested
    )


@pytest.mark.integration
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_code_passes_its_tests_in_a_sandbox(tmp_path: Path) -> None:
    task, right = load("humaneval", tmp_path), ROWS["humaneval"]["canonical_solution"]
    whole = f"Here it is:\n```python\n{DOUBLE.replace('from typing import List', '')}{right}```\nDone."
    texts = {
        right: 1.0,
        whole: 1.0,
        "    return numbers\n": 0.0,
        "    import os\n    os._exit(0)\n": 0.0,
        "    raise SystemExit\n": 0.0,
        "no code": 0.0,
        "    while True:\n        print('x' * 10**6)\n": 0.0,
        "    import __main__\n    print(__main__.answer['words'][1], flush=True)\n    raise SystemExit\n": 0.0,
        "    import os\n    return numbers if os.fork() else []\n": 0.0,
        f"```bash\npip install x\n```\nThen:\n```Python\n{DOUBLE}{right}```": 1.0,
        f"    open({str(tmp_path / 'written')!r}, 'w')\n": 0.0,
    }
    rollout = {"agent": None, "messages": []}
    assert {text: score(task.input, text, rollout) for text in texts} == texts
    assert not (tmp_path / "written").exists()
    answer = {"messages": [{"role": "assistant", "content": ROWS["mbpp"]["code"]}], "agent": None}
    assert score(load("mbpp", tmp_path).input, {"any": 1}, answer) == 1.0, "the model's last message"


@pytest.mark.integration
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_a_sandbox_that_does_not_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark_scores, "SANDBOX", ["sleep", "60"])
    monkeypatch.setattr(benchmark_scores, "CODE_SECONDS", 0.2)
    with pytest.raises(ValueError, match="bubblewrap cannot run code here"):
        passes_tests("1", "", "assert True")


@pytest.mark.integration
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_helpers_of_the_start_are_there_for_a_whole_answer() -> None:
    start = 'import math\n\n\ndef half(x):\n    return x / 2\n\n\ndef quarter(x):\n    """A quarter."""\n'
    whole = "```python\ndef quarter(x):\n    return half(half(x))\n```"
    assert passes_tests(whole, start, "assert quarter(math.pow(2, 3)) == 2 and half(2) == 1")


def test_code_is_not_run_without_a_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ValueError, match="bubblewrap is not installed"):
        passes_tests("1", "", "assert True")


def test_what_cannot_be_scored_is_an_error_and_never_0() -> None:
    agent = {"messages": [], "agent": 0.25}
    assert score({"question": "x"}, "y", agent) == 0.25, "the agent's reward"
    with pytest.raises(ValueError, match="of no benchmark, and the agent gave no reward"):
        score({"question": "x"}, "y", {**agent, "agent": None})
    with pytest.raises(ValueError, match="answers to ifeval cannot be scored here"):
        score({"benchmark": "ifeval"}, "y", agent)
    gsm8k, irrelevance = {"benchmark": "gsm8k", "answer": "1"}, {"benchmark": "bfcl", "calls": []}
    for task in (gsm8k, irrelevance):
        for messages in ([], [{"role": "user", "content": "too long"}]):
            with pytest.raises(ValueError, match="there is no answer of the model"):
                score(task, None, {**agent, "messages": messages})
    empty = {**agent, "messages": [{"role": "assistant", "content": None}]}
    assert (score(gsm8k, None, empty), score(irrelevance, None, empty)) == (0.0, 1.0)


def test_mathematics_is_compared_by_value() -> None:
    pytest.importorskip("math_verify")
    assert match_mathematics(r"so \boxed{0.5}", r"\frac{1}{2}") and not match_mathematics("3", "4")
