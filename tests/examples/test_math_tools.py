"""Math with a calculator tool in AutoGen: problems in Calc-X's format, rewards, tool spans that arrive."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from lightningbus.bus.client import Bus
from lightningbus.learner.rollouts.intermediate_rewards import intermediate_rewards
from lightningbus.learner.settings.algorithm import CreditSettings
from lightningbus.schemas.semconv import attributes
from lightningbus.tasks.task_loading import load_tasks
from lightningbus.tasks.task_publisher import TaskPublisher
from tests.examples.endpoint import EXAMPLES, Endpoint, ProgramError, make_problems, module, talk
from tests.examples.math_cases import CASES, DRIVER, NAMES_US, OURS, Policy, imports_of, problem, records, scripted
from tests.examples.warm_start import prompts_asked, prompts_shown
from tests.runners.conftest import calls_of, ended, running, task

MATH = EXAMPLES / "math_tools"
arithmetic, data = module("math_tools", "arithmetic"), module("math_tools", "data")
demonstrations = module("math_tools", "demonstrations")

REAL = [
    {
        "id": "ape210k__00000001",
        "question": "Two thirds of the 75 trees were felled, then 5 more. How many were felled?",
        "question_chinese": "…",
        "chain": '<gadget id="calculator">2 / 3</gadget>\n<output>2/3 = around 0.666667</output>\n\n'
        '<gadget id="calculator">75 * (2/3)</gadget>\n<output>50</output>\n\n'
        '<gadget id="calculator">50 + 5</gadget>\n<output>55</output>\n\n<result>55</result>',
        "result": "55",
        "result_float": 55.0,
        "equation": "x=75*(2/3)+5",
    },
    {
        "id": "gsm8k__00000002",
        "question": "A crate holds 12 jars.\nHow many jars do 1500 crates hold?",
        "chain": 'They hold 1500 * 12 =\n<gadget id="calculator">1500*12</gadget>\n<output>18_000</output>\n'
        "18000 jars.\n<result>18_000</result>",
        "result": "18_000",
        "result_float": 18000.0,
    },
]
"""In the format of Calc-ape210k and Calc-gsm8k."""


def make(directory: Path, *options: str) -> list[list[dict]]:
    assert make_problems("math_tools", directory, *options).returncode == 0
    files = [directory / "train.jsonl", directory / "heldout.jsonl"]
    return [[{"id": item.id, "input": item.input} for item in load_tasks(file)] for file in files]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_the_real_files_are_read_split_by_split(tmp_path: Path, kind: str) -> None:
    for split, record in zip(("train", "test"), REAL, strict=True):
        for folder in ("data", "original-splits"):
            file = tmp_path / "real" / folder / f"{split}-00000-of-00001.{kind}"
            file.parent.mkdir(parents=True, exist_ok=True)
            text = record if folder == "data" else {**record, "id": "leaked"}
            if kind == "jsonl":
                file.write_text(json.dumps(text) + "\n")
            else:
                parquet.write_table(pyarrow.Table.from_pylist([text]), file)
    train, heldout = make(tmp_path, "--real", str(tmp_path / "real"), "--train", "1", "--heldout", "1")
    assert train == [{"id": REAL[0]["id"], "input": {"question": REAL[0]["question"], "result": "55"}}]
    assert heldout == [{"id": REAL[1]["id"], "input": {"question": REAL[1]["question"], "result": "18_000"}}]


CALC_X = {
    "train": [("gsm8k__1", "gsm8k", "18_000"), ("ape210k__1", "ape210k", "2/3"), ("math_qa__1", "math_qa", "B")],
    "validation": [("gsm8k__2", "gsm8k", "7")],
    "test": [("aqua_rat__1", "aqua_rat", "C"), ("svamp__1", "svamp", "145"), ("asdiv_a__1", "asdiv_a", "12")],
}
"""Id, part and result of a made problem, as MU-NLPC/Calc-X has them: `id, question, chain, result, source_ds`."""


def lay_out(folder: Path, layout: str) -> None:
    """Write the made problems as a download from the Hub, as its converted branch, or as `save_to_disk` leaves them."""
    for split, problems in CALC_X.items():
        rows = [
            {"id": id, "question": f"Question {id}?", "chain": f"<result>{result}</result>", "result": result}
            | {"source_ds": part}
            for id, part, result in problems
        ]
        for shard, row in enumerate(rows):
            number = f"{shard:05}-of-{len(rows):05}"
            name = {
                "hub": f"data/{split}-{number}-9f7fe57de4f9b0ad.parquet",
                "converted": f"default/{split}/{shard:04}.parquet",
                "saved": f"{split}/data-{number}.arrow",
            }[layout]
            table = pyarrow.Table.from_pylist([row])
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            if layout == "saved":
                with pyarrow.ipc.new_stream(str(folder / name), table.schema) as stream:
                    stream.write_table(table)
            else:
                parquet.write_table(table, folder / name)
    (folder / "README.md").write_text("train-")
    (folder / "dataset_dict.json").write_text("{}")


@pytest.mark.parametrize("layout", ["hub", "converted", "saved"])
def test_every_part_of_calc_x_is_read_in_every_layout_and_labelled(tmp_path: Path, layout: str) -> None:
    real = tmp_path / "train"  # a folder's own name says nothing about a split
    lay_out(real, layout)
    train, heldout = make(tmp_path, "--real", str(real))
    assert {item["id"]: item["input"]["result"] for item in train} == {id: result for id, _, result in CALC_X["train"]}
    assert {item["id"]: item["input"]["result"] for item in heldout} == {id: result for id, _, result in CALC_X["test"]}
    labels = {item.id: item.labels["part"] for item in load_tasks(tmp_path / "heldout.jsonl")}
    assert labels == {id: part for id, part, _ in CALC_X["test"]}


def test_parts_are_chosen_by_name_and_a_problem_that_stands_twice_is_one(tmp_path: Path) -> None:
    lay_out(tmp_path / "real" / "Calc-X", "hub")
    (svamp := tmp_path / "real" / "Calc-svamp" / "data" / "test.jsonl").parent.mkdir(parents=True)
    svamp.write_text(json.dumps({"id": "svamp__1", "question": "Question svamp__1?", "result": "145"}) + "\n")
    train, heldout = make(tmp_path, "--real", str(tmp_path / "real"), "--parts", "gsm8k", "svamp")
    assert ([item["id"] for item in train], [item["id"] for item in heldout]) == (["gsm8k__1"], ["svamp__1"])


def test_original_splits_are_never_mixed_with_the_others(tmp_path: Path) -> None:
    for name in ("data/test-0.jsonl", "original-splits/train-0.jsonl"):
        (tmp_path / "svamp" / name).parent.mkdir(parents=True)
        (tmp_path / "svamp" / name).write_text(json.dumps({"id": "svamp__1", "question": "?", "result": "1"}) + "\n")
    done = make_problems("math_tools", tmp_path, "--real", str(tmp_path / "svamp"))
    assert done.returncode == 1 and "svamp, train split, has 0 problems" in done.stderr


def test_too_few_real_problems_are_one_sentence(tmp_path: Path) -> None:
    done = make_problems("math_tools", tmp_path, "--real", str(tmp_path), "--train", "4000")
    assert done.returncode == 1 and "train split, has 0 problems; asked for 4000" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_stand_in_has_the_real_format_and_its_chains_come_to_its_results(tmp_path: Path) -> None:
    train, heldout = make(tmp_path, "--train", "60", "--heldout", "20")
    built = [*data.read_records(tmp_path / "standin", "train"), *data.read_records(tmp_path / "standin", "test")]
    assert (len(train), len(heldout), len(built)) == (60, 20, 80)
    assert all(item.keys() == REAL[1].keys() for item in built)
    for item in built:
        steps = module("math_tools", "policy").STEP.findall(item["chain"])
        assert arithmetic.calculate(steps[-1][0]) == item["result"] == str(int(item["result_float"]))
        assert item["chain"].endswith(f"<output>{item['result']}</output>\n\n<result>{item['result']}</result>")


def test_a_seed_makes_the_same_problems_and_no_numbers_occur_twice(tmp_path: Path) -> None:
    assert make(tmp_path / "a", "--seed", "1") == make(tmp_path / "b", "--seed", "1") != make(tmp_path / "c")
    numbers = [tuple(sorted(filter(str.isdecimal, record["question"].replace(",", "").split()))) for record in records]
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("12 * 3", "36"),
        ("(1 + 2) / 4", "0.75"),
        ("0.1 + 0.2", "0.3"),
        ("2 ** 10", "1024"),
        ("6 / 3", "2"),
        ("-7", "-7"),
    ],
)
def test_the_calculator_calculates(expression: str, value: str) -> None:
    assert arithmetic.calculate(expression) == value


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("", "no expression"),
        ("12 *", "no expression"),
        ("x + 1", "no expression"),
        ("'a' * 9", "no expression"),
        ("True + 1", "no expression"),
        ("1 if 1 else 2", "no expression"),
        ("(1).real", "no expression"),
        ("\0", "no expression"),
        ("(" * 90, "no expression"),
        ("1 / 0", "division by zero"),
        ("0 ** -1", "division by zero"),
        ("9 ** 9 ** 9", "too large"),
        ("1e12 ** 60", "too large"),
        ("1e999", "too large"),
        ("(-8) ** 0.5", "too large"),
        ("1 + " * 40 + "1", "too long"),
    ],
)
def test_what_is_no_arithmetic_is_refused_with_a_reason(expression: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"^{reason}$"):
        arithmetic.calculate(expression)


@pytest.mark.parametrize(
    ("text", "result", "reward"),
    [
        ("answer: 42", "42", 1.0),
        ("It is done. Answer: 42.", "42", 1.0),
        ("answer: 7 no, answer: 42.0", "42", 1.0),
        ("answer: 18,000", "18_000", 1.0),
        ("answer: 0.666667", "2/3", 1.0),
        ("answer: 4/6", "2/3", 1.0),
        ("answer: c", "C", 1.0),
        ("answer: C) 6 days", "C", 1.0),
        ("answer: (C).", "C", 1.0),
        ("answer: D)", "C", 0.0),
        ("answer: 43", "42", 0.0),
        ("answer: 0.6667", "2/3", 0.0),
        ("answer: 6*7", "42", 0.0),
        ("answer: 42/0", "42", 0.0),
        ("answer: 1e999999999", "42", 0.0),
        ("answer: " + "9" * 5000, "42", 0.0),
        ("answer:", "42", 0.0),
        ("42", "42", 0.0),
        ("", "42", 0.0),
    ],
)
def test_the_reward_is_for_the_last_answer_in_the_form_asked_for(text: str, result: str, reward: float) -> None:
    assert arithmetic.score(text, result) == reward


def test_the_scripted_policy_reads_real_chains_and_goes_on_from_what_the_tool_said() -> None:
    messages: list[dict] = [{"role": "user", "content": REAL[0]["question"]}]
    wanted = [("2 / 3", "no expression"), ("2 / 3", "0.7"), ("75 * (0.7)", "52.5"), ("52.5 + 5", "57.5")]
    for expression, text in wanted:
        (call,) = Policy(REAL).answer(messages)["tool_calls"]
        assert json.loads(call["function"]["arguments"]) == {"expression": expression}
        messages += [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": text}]
    assert Policy(REAL).answer(messages)["content"] == "answer: 57.5"
    assert Policy(REAL, {"stops": 1.0}).answer(messages[:5])["content"] == "answer: 0.7"


def test_the_flaws_of_the_scripted_policy_are_seeded() -> None:
    arguments = [{"role": "user", "content": REAL[0]["question"]}]
    flaws = {"guess": 0.3, "wrong_sign": 0.3}
    built = [[Policy(REAL, flaws, seed).answer(arguments) for _ in range(9)] for seed in (1, 1, 2)]
    assert built[0] == built[1]
    flawed = Policy(REAL, flaws, seed=0)
    assert len({json.dumps(flawed.answer(arguments)) for _ in range(60)}) > 3
    with pytest.raises(ValueError, match="no such flaw: lazy"):
        Policy(REAL, {"lazy": 1.0})


def test_the_agent_imports_nothing_of_ours_and_does_not_name_us() -> None:
    files = [MATH / "agent.py", MATH / "arithmetic.py", MATH / "prompts.py"]
    assert not set.union(*map(imports_of, files)) & OURS
    assert imports_of(files[0]) == {"os", "autogen_agentchat", "autogen_ext", "opentelemetry", "arithmetic", "prompts"}
    assert not [file for file in files if NAMES_US.search(file.read_text())]


async def test_the_agent_runs_unchanged_against_any_openai_endpoint(environment: Callable[[str], Path]) -> None:
    folder = environment("math_tools")
    async with Endpoint(scripted).serving() as endpoint:
        env = {**os.environ, "OPENAI_BASE_URL": f"{endpoint.url}/v1", "OPENAI_API_KEY": "any", "MODEL": "some-model"}
        env.pop("OTEL_EXPORTER_OTLP_ENDPOINT", None)
        command = [str(folder / ".venv/bin/python"), "-c", DRIVER]
        rewards = await talk(command, folder, env, [problem(case) for case in CASES])
    assert dict(zip(CASES, rewards, strict=True)) == {case: reward for case, (_, reward) in CASES.items()}
    assert {request["model"] for request in endpoint.requests} == {"some-model"}
    assert all(request["tools"][0]["function"]["name"] == "calculator" for request in endpoint.requests)


class Stumbling:
    """Calls the tool with what is no expression, and goes on from its error."""

    def answer(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        began = any(message["role"] == "tool" for message in messages)
        return Policy(records, {} if began else {"broken": 1.0}).answer(messages)


async def test_demonstrations_ask_what_the_agent_asks(environment: Callable[[str], Path], bus: Bus) -> None:
    folder = environment("math_tools")
    agent = {"python_executable": folder / ".venv/bin/python", "entrypoint": "agent:solve", "working_dir": folder}
    node = Endpoint(Stumbling().answer)
    async with node.as_node(bus), running(bus, **agent):
        await TaskPublisher(bus).publish_task(task(input=problem("right")))
        await ended(bus)
    displayed = list(prompts_shown([demonstrations.conversation(problem("right")["question"], Stumbling())]))
    assert list(prompts_asked(node.requests)) == displayed and len(displayed) > 2


async def test_an_endpoint_that_refuses_is_an_error_of_the_agent(environment: Callable[[str], Path]) -> None:
    folder = environment("math_tools")
    async with Endpoint(scripted).serving() as endpoint:
        env = {**os.environ, "OPENAI_BASE_URL": f"{endpoint.url}/nowhere", "OPENAI_API_KEY": "any"}
        with pytest.raises(ProgramError) as failed:
            await talk([str(folder / ".venv/bin/python"), "-c", DRIVER], folder, env, [problem("right")])
    assert "NotFoundError" in failed.value.stderr


async def test_rollouts_are_recorded_with_their_tool_spans(bus: Bus, environment: Callable[[str], Path]) -> None:
    folder = environment("math_tools")
    agent = {
        "python_executable": folder / ".venv/bin/python",
        "entrypoint": "agent:solve",
        "working_dir": folder,
        "env": {"MODEL": "policy:solver"},
    }
    async with Endpoint(scripted).as_node(bus), running(bus, **agent):
        for case in ("right", "broken expression"):
            await TaskPublisher(bus).publish_task(task(id=case, input=problem(case)))
        by_name = {batch.task_id: batch for batch in await ended(bus, 2)}
    ends = {case: (batch.end.outcome, batch.end.reward) for case, batch in by_name.items() if batch.end}
    assert ends == {"right": ("ok", 1.0), "broken expression": ("ok", 0.0)}, by_name
    steps = Policy(records)._steps_of([{"role": "user", "content": problem("right")["question"]}])
    for case, status, tools in (("right", "unset", len(steps)), ("broken expression", "error", None)):
        calls, spans = calls_of(by_name[case]), by_name[case].spans
        assert {call.role for call in calls} == {"solver"} and all(call.response_ids for call in calls)
        used = [span for span in spans if span.attributes.get(attributes.OPERATION) == "execute_tool"]
        requests = [item["id"] for call in calls for item in json.loads(call.response).get("tool_calls") or ()]
        assert [span.attributes[attributes.TOOL_CALL] for span in used] == requests
        assert {span.status for span in used} == {status} and len(used) == (tools or len(used)) > 0
        rewards = intermediate_rewards(spans, "", CreditSettings(method="air").rules_in_force)
        assert sum(reward < 0 for reward in rewards) == (len(used) if status == "error" else 0)
    assert len(calls_of(by_name["right"])) == len(steps) + 1
