"""`make gpu`: its steps, its record and its tables; a dry run takes the same steps with tiny models on the CPU."""

import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu import child, models, training
from benchmarks.gpu.context import Context
from benchmarks.gpu.plan import NAMES, STEPS, Step, choose_steps, time_limit
from benchmarks.gpu.record import Outcome, Record, read, render
from benchmarks.gpu.sizes import DRY_RUN, REAL, SHORT, Scale
from benchmarks.gpu.steps import agreement, demo, loop, machine, pretrained
from benchmarks.results import RESULTS, Result
from lightningbus.inference.engine.vllm_command import has_gpu
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.transitions.sequences import CONTEXT
from lightningbus.run.preflight.job_checks import parse_job
from lightningbus.run.settings.run_file import RunSettings, validate_settings
from tests.commands import ROOT

MACHINE = {
    "gpu": "G", "num_gpus": 1, "gpu_memory": "80 GiB", "driver": "580", "cpu": "C", "num_cores": 16,
    "memory_gib": 128.0, "versions": {"vllm": "1", "torch": "2"},
}  # fmt: skip
FAILING = Step("failing", "Fails", "no_such_module:measure", 30)


def test_the_page_shows_the_last_run() -> None:
    page = (ROOT / "benchmarks" / "README.md").read_text()
    assert page == gpu.rewrite(page, read(RESULTS / "gpu.json"))


def test_every_step_names_a_function_that_takes_its_arguments_and_is_in_the_page() -> None:
    assert len(set(NAMES)) == len(NAMES)
    page = (ROOT / "benchmarks" / "README.md").read_text()
    for step in STEPS:
        module, _, function = step.measure.partition(":")
        source = (ROOT / "benchmarks" / "gpu" / f"{module.replace('.', '/')}.py").read_text()
        (signature,) = [line for line in source.splitlines() if line.startswith(f"def {function}(")]
        assert all(f"{name}:" in signature for name in step.arguments), step.name
        family = "-".join(step.name.split("-")[:2])
        assert f"`{step.name}`" in page or f"`{family}-…`" in page, step.name


def test_the_page_of_model_size_names_tests_settings_and_steps_that_there_are() -> None:
    """And says of each row whether its step ran on a GPU."""
    page = (ROOT / "docs" / "scale.md").read_text()
    rows = page.split("<!-- tested: begin -->\n")[1].split("\n<!-- tested: end -->")[0].splitlines()[2:]
    ran = {step["name"] for step in read(RESULTS / "gpu.json").get("steps", []) if not step["error"]}
    for _, settings, tests, step, state in (row.strip("| ").split(" | ") for row in rows):
        for setting in re.findall(r"`(\w+)\.(\w+)`", settings):
            section = LearnerSettings.model_fields[setting[0]].annotation
            assert setting[1] in section.model_fields, setting  # type: ignore[union-attr]
        for module, name in re.findall(r"`(\w+\.py)::(\w+)`", tests):
            assert f"def {name}(" in (ROOT / "tests" / "learner" / module).read_text(), name
        names = re.findall(r"`([a-z-]+)`", step)
        assert set(names) <= set(NAMES) and (names or step.startswith("none"))
        assert state == ("yes" if set(names) & ran else "not yet"), f"{step} ran: say so"


def test_a_step_is_not_begun_without_time_and_goes_no_further_than_the_budget() -> None:
    step = Step("s", "S", "m:f", 300)
    assert (time_limit(step, 1000), time_limit(step, 100), time_limit(step, 59)) == (300, 100, None)
    assert time_limit(step, 1000, factor=2) == 600 and time_limit(step, 1000, factor=0.5) == 150
    assert (time_limit(step, 31, factor=0.5), time_limit(step, 29, factor=0.5)) == (31, None)
    assert [each.name for each in choose_steps({"demo", "machine"}, {"machine"})] == ["demo"]
    assert choose_steps((), NAMES) == []


def test_a_record_goes_on_on_the_same_machine_and_begins_anew_on_another(tmp_path: Path) -> None:
    path = tmp_path / "results" / "gpu.json"
    first = Record(path, MACHINE)
    first.add(Outcome("a", "A", 1.0, results=[Result("x", 1.0, "s").as_json()]))
    first.add(Outcome("b", "B", 1.0, "out of memory"))
    second = Record(path, {**MACHINE, "driver": "590"})
    assert second.completed == {"a"} and not second.was_of_another_machine
    second.add(Outcome("b", "B", 2.0))
    assert [step["name"] for step in read(path)["steps"]] == ["a", "b"] and Record(path, MACHINE).completed == {
        "a",
        "b",
    }
    other = Record(path, {**MACHINE, "gpu": "H"})
    assert other.was_of_another_machine and other.completed == set()


def test_the_tables_have_a_heading_for_each_kind_of_step_and_name_what_failed() -> None:
    row = Result("x, 4 streams", 90.0, "tokens/s", 100.0).as_json()
    steps = [
        Outcome("g-small", "Generation", 3.0, results=[row]),
        Outcome("t", "Training", 3.0, "ended with 1: OutOfMemoryError: 80 GiB"),
        Outcome("g-large", "Generation", 3.0, results=[{**row, "case": "y"}]),
    ]
    text = render({"machine": MACHINE, "steps": [vars_of(step) for step in steps]})
    assert text.startswith("G, 80 GiB, driver 580; C, 16 cores, 128 GiB; vllm 1, torch 2.\n\n**Generation**")
    assert text.count("**") == 2 and text.index("| x, 4 streams | 90 |") < text.index("| y |")
    assert text.endswith("- `t`, after 3 s: ended with 1: OutOfMemoryError: 80 GiB")
    assert render({}) == "No run has been made yet."


def vars_of(outcome: Outcome) -> dict[str, Any]:
    return {name: getattr(outcome, name) for name in outcome.__dataclass_fields__}


def test_figures_count_up_to_the_line_that_was_cut_off() -> None:
    rows, error = child.split_lines('{"case": "a"}\n{"error": "E: no"}\n{"case": "b')
    assert (rows, error) == ([{"case": "a"}], "E: no")
    assert child.last_line("Traceback\nValueError: x\n\n") == "ValueError: x"
    group = ExceptionGroup("several", [ExceptionGroup("inner", [ValueError("a\nb")])])
    assert child.describe_error(group) == "ValueError: a b"


def test_gpus_are_what_nvidia_smi_lists() -> None:
    text = "NVIDIA H100 80GB HBM3, 81559 MiB, 580.95.05\n"
    assert machine.parse_gpus(text) == [
        {"name": "NVIDIA H100 80GB HBM3", "memory.total": "81559 MiB", "driver_version": "580.95.05"}
    ]
    assert machine.parse_gpus("") == []


def test_shapes_are_those_of_the_models_they_are_named_after() -> None:
    """Counted without weights: 494,032,768, 1,543,714,304 and 3,212,749,824 parameters, as their cards have them."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config

    for shape, kind, count in (
        (REAL.shapes["small"], Qwen2Config, 494_032_768),
        (SHORT.shapes["large"], Qwen2Config, 1_543_714_304),
        (REAL.shapes["large"], LlamaConfig, 3_212_749_824),
    ):
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(kind(**shape.fields))
        assert sum(part.numel() for part in model.parameters()) == count


def test_a_model_made_on_the_spot_has_a_text_for_each_id(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    shape = DRY_RUN.shapes["small"]
    path = models.make_model(shape, "float32", tmp_path)
    assert models.make_model(shape, "float32", tmp_path) == path
    tokenizer, vocabulary = AutoTokenizer.from_pretrained(path), shape.fields["vocab_size"]
    assert len(tokenizer) == vocabulary
    assert tokenizer.decode(tokenizer("add 2", add_special_tokens=False).input_ids) == "add 2"
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert chat == "<|user|>hi<|end|><|assistant|>"


def test_a_model_made_on_the_spot_samples_with_the_entropy_it_was_made_for(tmp_path: Path) -> None:
    """The real widths with fewer layers and tokens: a tiny model repeats its input."""
    import torch
    from transformers import AutoModelForCausalLM

    small, vocabulary = REAL.shapes["small"], 4096
    shape = replace(small, name="short", fields={**small.fields, "num_hidden_layers": 4, "vocab_size": vocabulary})
    path = models.make_model(shape, "float32", tmp_path)
    ids = torch.randint(10, vocabulary, (2, 64), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(path)(input_ids=ids).logits.flatten(0, 1)
    entropy = float(torch.distributions.Categorical(logits=logits).entropy().mean())
    assert logits.std(-1).mean() == pytest.approx(math.sqrt(1.5 * math.log(vocabulary)), rel=0.05)
    assert math.log(vocabulary) / 4 < entropy < math.log(vocabulary) / 2


def test_rows_of_a_step_are_half_context_and_as_long_as_said() -> None:
    rows = training.make_sequences(DRY_RUN, 512)
    lengths = [len(row.token_ids) for row in rows]
    assert len(rows) == DRY_RUN.num_rows and max(lengths) == lengths[0] == DRY_RUN.row_tokens
    assert min(lengths) >= DRY_RUN.row_tokens // 2
    assert all((row.call_index[: len(row.token_ids) // 2] == CONTEXT).all() for row in rows)
    batch = training.make_batch(rows)
    assert sum(batch.num_tokens.values()) == sum(row.num_tokens for row in rows)
    assert sorted({float(batch.token_advantages(row)[-1]) for row in rows}) == [-1.0, 1.0]


def test_agreement_is_of_the_sampled_tokens_alone() -> None:
    row = training.make_sequences(DRY_RUN, 512)[0]
    actual = np.where(row.trained, np.float32(0.2), np.float32(9.0)).astype(np.float32)
    actual[-1] = 0.0
    figures = {name.split(" of ")[0]: value for name, value, _ in agreement.compare([row], [actual])}
    count = row.num_tokens
    assert figures["mean abs(d)"] == pytest.approx(0.2 * (count - 1) / count)
    assert figures["largest abs(d)"] == pytest.approx(0.2) and figures["share"] == pytest.approx((count - 1) / count)
    assert figures["k3"] == pytest.approx((math.exp(0.2) - 1.2) * (count - 1) / count, rel=1e-5)


def test_the_demo_is_summed_up_by_its_results_file() -> None:
    figures = {
        "seconds": 60.0, "steps": 36, "rollouts": 9, "rollouts_lost": 0, "greedy_before": 0.2, "greedy_after": 0.9,
        "sampled_before": 0.1, "sampled_after": 0.8,
    }  # fmt: skip
    assert [(each.value, each.ceiling) for each in demo.summarize(figures)] == [(60.0, None), (0.9, 0.2), (0.8, 0.1)]


def test_a_loop_is_summed_up_by_the_seconds_of_its_phases_and_its_counts() -> None:
    figures = {"seconds": 9.0, "seconds_by_phase": {"train": 6.0}, "mean_staleness": None}
    figures |= dict.fromkeys(("steps", "rollouts", "rollouts_lost", "tokens_sampled", "tokens_trained"), 2)
    rows = {each.case: each.value for each in loop.summarize(figures)}
    assert rows["the run, from start to end"] == 9.0 and rows["seconds: train"] == 6.0
    assert rows["rollouts lost"] == 2.0 and rows["mean staleness"] is None


def test_the_run_file_of_a_loop_is_one_that_train_takes(tmp_path: Path) -> None:
    context = Context(DRY_RUN, tmp_path, "loop-small", lambda result: None)
    fields = json.loads(json.dumps(loop.make_settings(context, "small", tmp_path), default=str))
    job = parse_job(validate_settings(RunSettings, fields, "run.yaml"), "run.yaml")
    assert job.learners[0].max_steps == DRY_RUN.loop_steps


@pytest.mark.parametrize("scale", [DRY_RUN, SHORT], ids=["dry-run", "short"])
def test_the_run_file_of_the_pretrained_model_is_the_examples_with_a_right_answer_alone_rewarded(
    tmp_path: Path, scale: Scale
) -> None:
    context = Context(scale, tmp_path, "pretrained", lambda result: None)
    example = yaml.safe_load((pretrained.EXAMPLE / "small.yaml").read_text())
    settings = pretrained.make_settings(context, example, tmp_path / "model", sys.executable, tmp_path)
    fields = json.loads(json.dumps(settings, default=str))
    job = parse_job(validate_settings(RunSettings, fields, "run.yaml"), "run.yaml")
    (learner,) = job.learners
    assert learner.max_steps == scale.pretrained_steps and learner.actor.optim.lr == 3e-5
    assert learner.seq_len == fields["inference"][0]["max_model_len"] == (128 if scale.is_pretrained else 512)
    assert [each["env"] for each in fields["runners"]] == 2 * [{"MAX_TOKENS": "8", "RIGHT_ONLY": "1"}]


def test_a_pretrained_run_is_summed_up_by_each_evaluation() -> None:
    evaluations = [
        {"version": version, "label": "sampled", "mean_reward": reward} for version, reward in ((0, 0.1), (40, 0.8))
    ]
    figures = {"seconds": 9.0, "seconds_by_phase": {}, "evaluations": evaluations}
    figures |= dict.fromkeys(("steps", "rollouts", "rollouts_lost"), 2)
    rows = {each.case: each.value for each in pretrained.summarize(figures)}
    assert rows["held-out reward of version 40, sampled"] == 0.8 and len(rows) == 3


def test_a_step_whose_time_is_over_names_the_call_that_it_was_in() -> None:
    log = (
        'Loading\nTimeout (0:01:14)!\nThread 0x1 (most recent call first):\n  File "a.py", line 1 in wait\n\n'
        'Thread 0x2 (most recent call first):\n  File "/x/lib/python3.12/site-packages/b.py", line 2 in log_softmax\n'
        '  File "c.py", line 3 in main\n'
    )
    assert child.find_call(log) == 'File "b.py", line 2 in log_softmax'
    assert child.find_call("Loading\n") == ""


def test_figures_of_another_machine_are_taken_in_with_a_table_beside_them(tmp_path: Path) -> None:
    """The figures of a step in a later file replace those of an earlier one."""
    paths = [tmp_path / "1.json", tmp_path / "2.json"]
    for number, path in enumerate(paths):
        record = Record(path, MACHINE)
        record.add(Outcome("both", "Both", 1.0, results=[Result(f"x{number}", 1.0, "s").as_json()]))
        record.add(Outcome(f"only-{number}", "One", 1.0))
    results = tmp_path / "gpu.json"
    gpu.add_results(paths, results)
    assert gpu.show(results) == read(results)
    assert [step["name"] for step in read(results)["steps"]] == ["both", "only-0", "only-1"]
    table = (tmp_path / "gpu.md").read_text()
    assert "| x1 |" in table and "| x0 |" not in table


@pytest.mark.integration
@pytest.mark.long
async def test_a_step_that_fails_or_takes_too_long_is_an_outcome_and_the_next_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps are processes: what they reported before counts."""
    monkeypatch.setattr(child, "STOP_SECONDS", 1.0)
    steps = [step for step in STEPS if step.name in ("machine", "weights-nccl")]
    kept = Record(tmp_path / "results.json", {**MACHINE, "num_gpus": 0})
    assert await gpu.run_steps(steps, kept, tmp_path, scale="dry-run", minutes=10) == []
    kept.add(await child.run_step(steps[0], tmp_path, "dry-run", limit_seconds=0.2))
    late = read(kept.path)["steps"][0]
    assert late["name"] == "machine" and late["error"].startswith("not done after 0 s")
    outcomes = {each["name"]: each for each in read(kept.path)["steps"]}
    (left_out,) = outcomes["weights-nccl"]["results"]
    assert (left_out["value"], left_out["note"]) == (None, "left out: it needs 2 GPUs")
    now = iter([0.0, 10.0, 590.0])
    rest = await gpu.run_steps(steps[:1] * 2, kept, tmp_path, scale="dry-run", minutes=10, clock=lambda: next(now))
    assert [step.name for step in rest] == ["machine"] and kept.completed == {"machine", "weights-nccl"}
    (memory, product, copy) = read(kept.path)["steps"][0]["results"]
    assert product["value"] > 0 and (memory["value"] is None) == (copy["value"] is None) == (not has_gpu())


@pytest.mark.integration
def test_an_error_of_a_step_is_in_its_file(tmp_path: Path) -> None:
    figures = tmp_path / "figures.jsonl"
    with pytest.raises(ModuleNotFoundError):
        child.measure(FAILING, figures, tmp_path, "dry-run")
    rows, error = child.split_lines(figures.read_text())
    assert rows == [] and error == "ModuleNotFoundError: No module named 'benchmarks.gpu.no_such_module'"


@pytest.mark.integration
@pytest.mark.skipif(has_gpu(), reason="there is a GPU")
def test_without_a_gpu_one_sentence_says_what_to_run_instead() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and done.stdout == ""
    (sentence,) = done.stderr.splitlines()
    assert sentence.startswith("make gpu needs an NVIDIA GPU") and "python -m benchmarks.gpu --dry-run" in sentence


def dry_run(work: Path, *names: str) -> dict[str, dict[str, Any]]:
    """The steps of a dry run by name, as a user starts it; each has all of its figures."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--dry-run", "--work", str(work), "--limit-factor", "3"]
    only = ["--only", ",".join(names)] if names else []
    done = subprocess.run([*command, *only], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    steps = {each["name"]: each for each in json.loads((work / "results.json").read_text())["steps"]}
    assert {name: each["error"] for name, each in steps.items() if each["error"]} == {}
    assert all(f"| {row['case']}" in done.stdout for each in steps.values() for row in each["results"])
    return steps


def values(step: dict[str, Any]) -> dict[str, float | None]:
    """Figures by case."""
    return {row["case"]: row["value"] for row in step["results"]}


@pytest.mark.integration
@pytest.mark.long
def test_a_dry_run_trains_as_the_learner_does_and_as_verl_does(tmp_path: Path) -> None:
    steps = dry_run(tmp_path, "verl-small", "training-small-lora")
    for name, case in (
        ("verl-small", "verl alone with sdpa and fused kernels"),
        ("training-small-lora", "LoRA of rank 32"),
    ):
        figures = values(steps[name])
        rate, memory = figures[f"a tiny Qwen2, {case}"], figures[f"a tiny Qwen2, {case}: memory"]
        assert rate is not None and rate > 0 and (memory is None) != has_gpu()


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.timeout(3600)
def test_a_dry_run_takes_every_step(tmp_path: Path) -> None:
    """But the one for two GPUs."""
    names = [step.name for step in STEPS if not step.min_gpus]
    steps = dry_run(tmp_path, *names)
    assert list(steps) == names
    assert all(row["value"] > 0 and row["ceiling"] > 0 for row in steps["generation-large"]["results"])
    k3 = {row["case"]: row["value"] for row in steps["swap-recompute"]["results"] if "k3" in row["case"]}
    assert all(value < 1e-9 for value in k3.values())
    assert values(steps["agreement-small"])["a tiny Qwen2: share of tokens with abs(d) above 0.1"] == 0.0
