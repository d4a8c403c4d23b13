"""Train the demo's agent with TRL's `GRPOTrainer`, in an environment that has TRL, and write its curve.

``python grpo.py --model DIR --tasks FILE --heldout FILE --seed 0 --out FILE``. The agent of one call is TRL's prompt,
completion and reward function here. It imports nothing of lightningbus.
"""

import argparse
import json
import operator
import re
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
CALL = re.compile(r"<call>(\d{1,6})([-+*])(\d{1,6})</call>")


def score(text: str, answer: str) -> float:
    """Return 1 for a call whose result is the answer, else 0."""
    call = CALL.search(text)
    if call is None:
        return 0.0
    left, sign, right = call.groups()
    return float(str(OPERATORS[sign](int(left), int(right))) == answer)


class Curve(TrainerCallback):
    """Keep seconds and mean reward of each step; the clock starts with training."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        self.started = time.monotonic()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **rest: Any) -> None:
        if "reward" in logs:
            seconds = time.monotonic() - self.started
            self.rows.append({"step": state.global_step, "seconds": seconds, "reward": logs["reward"]})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("model", "tasks", "heldout", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--lr", type=float, default=8e-5)
    parser.add_argument("--min_lr_ratio", type=float, default=0.1)
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--bf16", action="store_true", help="compute in bfloat16, with weights in float32")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    tasks, heldout = (_read(path) for path in (options.tasks, options.heldout))

    def reward(completions: list[Any], answer: list[str], **rest: Any) -> list[float]:
        return [score(text[0]["content"], right) for text, right in zip(completions, answer, strict=True)]

    curve = Curve()
    config = GRPOConfig(
        output_dir=str(options.out.parent / "trl"),
        use_cpu=True,
        bf16=options.bf16,
        seed=options.seed,
        learning_rate=options.lr,
        lr_scheduler_type="cosine_with_min_lr",
        lr_scheduler_kwargs={"min_lr_rate": options.min_lr_ratio},
        max_steps=options.steps,
        # TRL counts completions: a step has `groups` prompts with `samples` completions each.
        per_device_train_batch_size=options.groups * options.samples,
        num_generations=options.samples,
        max_completion_length=16,
        gradient_checkpointing=False,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        model_init_kwargs={"dtype": torch.float32},
    )
    trainer = GRPOTrainer(
        model=str(options.model), reward_funcs=reward, args=config, train_dataset=tasks, callbacks=[curve]
    )
    before = _evaluate(trainer, heldout)
    trainer.train()
    after = _evaluate(trainer, heldout)
    options.out.write_text(json.dumps({"curve": curve.rows, "heldout_before": before, "heldout_after": after}))


def _read(path: Path) -> Dataset:
    inputs = [json.loads(line)["input"] for line in path.read_text("utf-8").splitlines()]
    rows = [
        {"prompt": [*each["examples"], {"role": "user", "content": each["question"]}], "answer": each["answer"]}
        for each in inputs
    ]
    return Dataset.from_list(rows)


def _evaluate(trainer: GRPOTrainer, tasks: Dataset) -> float:
    """Return the mean reward of one sampled answer to each task."""
    tokenizer, model = trainer.processing_class, trainer.model
    texts = [
        tokenizer.apply_chat_template(each, tokenize=False, add_generation_prompt=True) for each in tasks["prompt"]
    ]
    batch = tokenizer(texts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False)
    with torch.no_grad():
        answers = model.generate(
            **batch, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=16,
            pad_token_id=tokenizer.pad_token_id,
        )  # fmt: skip
    completions = tokenizer.batch_decode(answers[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
    rewards = [score(text, right) for text, right in zip(completions, tasks["answer"], strict=True)]
    return sum(rewards) / len(rewards)


if __name__ == "__main__":
    main()
