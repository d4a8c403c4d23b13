"""A small chat model made from demonstrations: ``python model.py --demonstrations FILE [FILE ...] --out DIR``.

A Llama with a tokenizer of its own, trained on prompts an agent's framework really sends and on answers to them. It
stands in for a model that would have to be downloaded: what it can do, and what it does most of the time, is what the
demonstrations say. Of several files one is learned after the other: what can be done, then what mostly is done. A line
is a conversation as Chat Completions has it, ``{"messages": [...], "tools": [...]}``, tools only where there are some;
all that the assistant says in it is learned. Tool calls are written as Hermes and Qwen write them, so an engine reads
them with its parser ``hermes``.
"""

import argparse
import json
import random
import re
import sys
import time
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

PAD, END = "<|pad|>", "<|end|>"
ROLES = [f"<|{role}|>" for role in ("system", "user", "assistant", "tool")]
CALL, CALLED = "<tool_call>", "</tool_call>"
CHAT_TEMPLATE = """\
{%- if tools %}<|system|>
    {%- for tool in tools %}
        {{- tool.function.name ~ '(' ~ tool.function.parameters.properties | join(', ') ~ ')' }}
    {%- endfor %}<|end|>
{%- endif %}
{%- for message in messages %}
    {{- '<|' ~ message.role ~ '|>' ~ (message.content or '') }}
    {%- for call in message.tool_calls or [] %}
        {{- '<tool_call>\n{"name": "' ~ call.function.name ~ '", "arguments": ' }}
        {{- call.function.arguments | tojson ~ '}\n</tool_call>' }}
    {%- endfor %}<|end|>
{%- endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"""
WORDS = r" ?\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""What tokens do not reach across. Numbers are cut into twos: fewer tokens to copy, and all of them common."""
PROMPT = 0.1
"""How much a token that is not the assistant's counts: what it is about is learned sooner."""
Told = list[tuple[str, bool]]
"""A conversation as text, in parts that the assistant is given and, if true, says, with the token that ends it."""
Row = list[tuple[int, float]]
"""Token ids of a conversation, and how much each counts."""
LEARNING_RATE = 5e-3
MATRIX_RATE = 0.02
"""How far a step moves each singular value of a layer's matrix, about."""
MIXED = 4
"""Batches that are drawn together: more would leave less padding, and batches more of one kind."""


def conversation(line: str) -> dict:
    """A line of demonstrations; a tool call's arguments are parsed, as engines do it before they use a template."""
    read = json.loads(line)
    for message in read["messages"]:
        for call in message.get("tool_calls") or ():
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return read


def make_tokenizer(conversations: Iterable[Told], vocabulary: int, context: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE trained on the conversations, so that their boilerplate is short."""
    marks = re.compile("|".join(map(re.escape, (*ROLES, END, CALL, CALLED))))
    texts = (text for reported in conversations for part, _ in reported for text in marks.split(part))
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(WORDS), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[PAD, END, *ROLES],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    tokenizer = chatting(backend, context)
    tokenizer.add_tokens([CALL, CALLED])  # not special: they are part of what the model says
    return tokenizer


def chatting(backend: Tokenizer, context: int) -> PreTrainedTokenizerFast:
    """With the template that makes a text of a chat."""
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token=END, pad_token=PAD, chat_template=CHAT_TEMPLATE, model_max_length=context
    )


def make_model(tokenizer: PreTrainedTokenizerFast, hidden: int, layers: int, context: int) -> LlamaForCausalLM:
    """An untrained Llama, float32."""
    config = LlamaConfig(
        vocab_size=64 * -(-len(tokenizer) // 64),
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 32,
        num_key_value_heads=hidden // 64,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    return LlamaForCausalLM(config)


def parts(tokenizer: PreTrainedTokenizerFast, item: dict) -> Told:
    """A conversation in its parts, up to the last the assistant says; of the tokenizer only the template counts."""
    messages, tools, done, reported = item["messages"], item.get("tools"), "", []
    for at, message in enumerate(messages):
        if message["role"] == "assistant":
            template = tokenizer.apply_chat_template(
                messages[:at], tools=tools, tokenize=False, add_generation_prompt=True
            )
            whole = tokenizer.apply_chat_template(messages[: at + 1], tools=tools, tokenize=False)
            reported += [(template.removeprefix(done), False), (whole.removeprefix(template), True)]
            done = whole
    return reported


def encoded(tokenizer: PreTrainedTokenizerFast, reported: Told) -> Row:
    """Its tokens."""
    return [
        (token, 1.0 if learned else PROMPT)
        for text, learned in reported
        for token in tokenizer(text, add_special_tokens=False).input_ids
    ]


def batches(rows: list[Row], size: int, rng: random.Random) -> Iterator[list[Row]]:
    """Rows by chance, without end; those of a batch are about as long as each other, which saves padding."""
    while True:
        drawn = sorted(rng.choices(rows, k=MIXED * size), key=len)
        yield from rng.sample([drawn[first : first + size] for first in range(0, len(drawn), size)], MIXED)


def batch(rows: list[Row], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """``[rows, longest]``, padded on the right: ids, and how much each counts, padding nothing."""
    longest = max(map(len, rows))
    padded = [row + [(pad, 0.0)] * (longest - len(row)) for row in rows]
    ids, weights = ([[pair[part] for pair in row] for row in padded] for part in (0, 1))
    return torch.tensor(ids), torch.tensor(weights)


class Muon(torch.optim.Optimizer):
    """Momentum made orthogonal, for the matrices of layers: copying is learned in a quarter of AdamW's steps.

    After https://kellerjordan.github.io/posts/muon/. PyTorch's own computes in bfloat16, which many CPUs emulate.
    """

    def __init__(self, matrices: list[torch.nn.Parameter], lr: float, momentum: float = 0.95) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for matrix in group["params"]:
                momentum = self.state[matrix].setdefault("momentum", torch.zeros_like(matrix))
                momentum.lerp_(matrix.grad, 1 - group["momentum"])
                ahead = orthogonal(matrix.grad.lerp(momentum, group["momentum"]))
                matrix.sub_(ahead, alpha=group["lr"] * max(1.0, matrix.shape[0] / matrix.shape[1]) ** 0.5)


def orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """About the nearest matrix whose singular values are all 1: five Newton-Schulz iterations, coefficients thence."""
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    wide = wide / (wide.norm() + 1e-7)
    for _ in range(5):
        gram = wide @ wide.T
        wide = 3.4445 * wide + (-4.7750 * gram + 2.0315 * gram @ gram) @ wide
    return wide if matrix.shape[0] <= matrix.shape[1] else wide.T


def optimizers(model: LlamaForCausalLM) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for the rest."""
    matrices = [weight for weight in model.model.layers.parameters() if weight.ndim == 2]
    rest = [weight for weight in model.parameters() if not any(weight is matrix for matrix in matrices)]
    return [Muon(matrices, MATRIX_RATE), torch.optim.AdamW(rest, LEARNING_RATE, (0.9, 0.98), weight_decay=0.01)]


def train(model: LlamaForCausalLM, lots: list[list[Row]], steps: list[int], size: int, rng: random.Random) -> float:
    """So many supervised steps on each lot; returns the last loss in nats per token."""
    last = sum(steps)
    stepping = optimizers(model)
    schedules = [
        torch.optim.lr_scheduler.OneCycleLR(item, item.defaults["lr"], last, pct_start=0.1, cycle_momentum=False)
        for item in stepping
    ]
    loss, started = torch.zeros(()), time.monotonic()
    model.train()
    chosen = (islice(batches(rows, size, rng), count) for rows, count in zip(lots, steps, strict=True))
    for step, rows in enumerate(chain.from_iterable(chosen), 1):
        ids, weights = batch(rows, model.config.pad_token_id)
        logits = model(input_ids=ids).logits[:, :-1].flatten(0, 1)
        losses = torch.nn.functional.cross_entropy(logits, ids[:, 1:].flatten(), reduction="none")
        weights = weights[:, 1:].flatten()
        loss = (losses * weights).sum() / weights.sum()
        model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for item in (*stepping, *schedules):
            item.step()
        if step % 50 == 0 or step == last:
            text = f"step {step}/{last}, loss {loss.item():.3f}, {time.monotonic() - started:.0f} s"
            print(f"warm start: {text}", file=sys.stderr, flush=True)
    return float(loss.item())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--demonstrations", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, nargs="+", default=[300, 60], help="on each file")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=128, help="a multiple of 64")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--vocabulary", type=int, default=1024)
    parser.add_argument("--context", type=int, default=512, help="tokens")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    if len(options.steps) != len(options.demonstrations):
        parser.error(f"--steps: {len(options.steps)} numbers for {len(options.demonstrations)} files of demonstrations")
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    files = [path.read_text(encoding="utf-8").splitlines() for path in options.demonstrations]
    blank = chatting(Tokenizer(models.BPE()), options.context)
    lots = [[parts(blank, conversation(line)) for line in lines] for lines in files]
    tokenizer = make_tokenizer(chain.from_iterable(lots), options.vocabulary, options.context)
    model = make_model(tokenizer, options.hidden, options.layers, options.context)
    tokenizer.save_pretrained(options.out)
    rows = [[encoded(tokenizer, reported) for reported in lot] for lot in lots]
    train(model, rows, options.steps, options.batch, random.Random(options.seed))
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=True
    )
    model.save_pretrained(options.out)


if __name__ == "__main__":
    main()
