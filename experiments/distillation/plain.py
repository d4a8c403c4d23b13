"""The calculator job without lightningbus: right chats, supervised steps in plain torch, accuracy by transformers."""

import json
import math
import operator
import random
import re
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow.parquet
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

OPERATORS = {"plus": "+", "minus": "-", "times": "*"}
FUNCTIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
QUESTION = re.compile(r"(\d+) (plus|minus|times) (\d+)")
CALL = re.compile(r"<call>(\d{1,6})([-+*])(\d{1,6})</call>")
NUMBER = re.compile(r"-?\d+")
MAX_TOKENS = 12


def build_chat(question: str) -> list[dict[str, str]]:
    """Build the conversation of an agent that calls the calculator and answers with its result."""
    left, word, right = QUESTION.search(question).groups()  # type: ignore[union-attr]
    call = f"<call>{left}{OPERATORS[word]}{right}</call>"
    result = _use_tool(call)
    roles = ("user", "assistant", "user", "assistant")
    texts = (question, call, result, result.removeprefix("result "))
    return [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]


def measure_accuracy(model_path: Path, held_out: Path, samples: int, seed: int) -> float:
    """Return the share of right answers to held-out problems, sampled at temperature 1."""
    torch.manual_seed(seed)
    tokenizer: Any = AutoTokenizer.from_pretrained(model_path, padding_side="left")
    model: Any = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32).eval()
    tasks = [json.loads(line)["input"] for line in held_out.read_text().splitlines()] * samples
    chats = [[{"role": "user", "content": task["question"]}] for task in tasks]
    for chat, text in zip(chats, _sample(model, tokenizer, chats), strict=True):
        chat += [{"role": "assistant", "content": text}, {"role": "user", "content": _use_tool(text)}]
    numbers = [NUMBER.search(text) for text in _sample(model, tokenizer, chats)]
    right = [each is not None and each[0] == task["answer"] for each, task in zip(numbers, tasks, strict=True)]
    return sum(right) / len(right)


def train_on_answers(model_path: Path, data: Path, out: Path, *, epochs: int, batch: int, lr: float, seed: int) -> None:
    """Train on recorded answers in float32 by AdamW, the mean loss over a batch's answered tokens.

    The learning rate falls to a tenth by a cosine. ``data``: Parquet with a row a model call: rollout, call,
    prompt_ids, response_ids. Writes a model directory.
    """
    rng = random.Random(seed)
    rows = pyarrow.parquet.read_table(data).to_pylist()
    rollouts = [list(calls) for _, calls in groupby(rows, key=lambda row: row["rollout"])]
    model: Any = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.999), weight_decay=0.01)
    num_steps = epochs * math.ceil(len(rollouts) / batch)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 0.55 + 0.45 * math.cos(math.pi * step / num_steps)
    )
    for _ in range(epochs):
        rng.shuffle(rollouts)
        for first in range(0, len(rollouts), batch):
            calls = [call for rollout in rollouts[first : first + batch] for call in rollout]
            ids, labels = _pad(calls)
            optimizer.zero_grad()
            model(input_ids=ids, labels=labels).loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(model_path).save_pretrained(out)


def _pad(calls: list[dict[str, Any]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Pad ids and labels on the right: ``int64[calls, longest]`` each; only answers have labels."""
    longest = max(len(call["prompt_ids"]) + len(call["response_ids"]) for call in calls)
    ids, labels = torch.zeros(len(calls), longest, dtype=torch.int64), torch.full((len(calls), longest), -100)
    for row, call in enumerate(calls):
        prompt, response = (torch.tensor(call[name], dtype=torch.int64) for name in ("prompt_ids", "response_ids"))
        end = len(prompt) + len(response)
        ids[row, :end] = torch.cat([prompt, response])
        labels[row, len(prompt) : end] = response
    return ids, labels


def _use_tool(text: str) -> str:
    call = CALL.search(text)
    if call is None:
        return "so the answer is ?"
    left, sign, right = call.groups()
    return f"result {FUNCTIONS[sign](int(left), int(right))}"


def _sample(model: Any, tokenizer: Any, chats: list[list[dict[str, str]]]) -> list[str]:
    encoded = tokenizer.apply_chat_template(
        chats, add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
    )
    with torch.inference_mode():
        ids = model.generate(
            input_ids=encoded["input_ids"],
            attention_mask=encoded["attention_mask"],
            do_sample=True,
            temperature=1.0,
            top_k=0,
            max_new_tokens=MAX_TOKENS,
        )
    answers: list[str] = tokenizer.batch_decode(ids[:, encoded["input_ids"].shape[1] :], skip_special_tokens=True)
    return answers
