"""A small chat model made from demonstrations: ``python model.py --demonstrations FILE --out DIR``.

A Qwen2 with a tokenizer of its own, trained on prompts an agent's framework really sends and on answers to them. It
stands in for a model that would have to be downloaded: what it can do, and what it does most of the time, is what the
demonstrations say. A line of the file is a conversation as Chat Completions has it, ``{"messages": [...], "tools":
[...]}``, tools only where there are some; its last message is what is learned. Tool calls are written as Hermes and
Qwen write them, so an engine reads them with its parser ``hermes``.
"""

import argparse
import json
import random
import re
import sys
import time
from pathlib import Path

import torch
from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

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
IGNORE = -100
PROMPT = 0.2
"""How much a token of the prompt counts beside one of the answer: what it is about is learned sooner."""


def conversation(line: str) -> dict:
    """A line of demonstrations; a tool call's arguments are parsed, as engines do it before they use a template."""
    read = json.loads(line)
    for message in read["messages"]:
        for call in message.get("tool_calls") or ():
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return read


def make_tokenizer(conversations: list[dict], vocabulary: int, context: int) -> Qwen2Tokenizer:
    """Qwen2's kind of tokenizer (byte-level BPE), trained on the conversations, so that their boilerplate is short."""
    blank = Qwen2Tokenizer(eos_token=END, pad_token=PAD)
    blank.chat_template = CHAT_TEMPLATE
    marks = re.compile("|".join(map(re.escape, (*ROLES, END, CALL, CALLED))))
    texts = (part for one in conversations for part in marks.split("".join(asked_and_answered(blank, one))))
    tokenizer = blank.train_new_from_iterator(texts, vocabulary, new_special_tokens=ROLES, show_progress=False)
    tokenizer.add_tokens([CALL, CALLED])
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.model_max_length = context
    return tokenizer


def make_model(tokenizer: Qwen2Tokenizer, hidden: int, layers: int, context: int) -> Qwen2ForCausalLM:
    """An untrained Qwen2, float32."""
    config = Qwen2Config(
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
    return Qwen2ForCausalLM(config)


def asked_and_answered(tokenizer: Qwen2Tokenizer, one: dict) -> tuple[str, str]:
    """A conversation as text: what the model is given, and its last message with the token that ends it."""
    messages, tools = one["messages"], one.get("tools")
    asked = tokenizer.apply_chat_template(messages[:-1], tools=tools, tokenize=False, add_generation_prompt=True)
    whole = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False)
    return asked, whole.removeprefix(asked)


def encoded(tokenizer: Qwen2Tokenizer, one: dict) -> tuple[list[int], int]:
    """Token ids of a conversation, and where its last message begins."""
    texts = asked_and_answered(tokenizer, one)
    asked, answered = (tokenizer(text, add_special_tokens=False).input_ids for text in texts)
    return asked + answered, len(asked)


def batch(rows: list[tuple[list[int], int]], pad: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``[rows, longest]``, padded on the right: ids, labels, and how much each label counts."""
    longest = max(len(ids) for ids, _ in rows)
    ids = torch.tensor([ids + [pad] * (longest - len(ids)) for ids, _ in rows])
    labels = torch.tensor([ids + [IGNORE] * (longest - len(ids)) for ids, _ in rows])
    weights = torch.tensor([[PROMPT] * start + [1.0] * (longest - start) for _, start in rows])
    return ids, labels, weights


def train(
    model: Qwen2ForCausalLM, rows: list[tuple[list[int], int]], steps: int, size: int, rng: random.Random
) -> float:
    """Supervised steps; returns the last loss in nats per token."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps, pct_start=0.1)
    loss, started = torch.zeros(()), time.monotonic()
    model.train()
    for step in range(1, steps + 1):
        ids, labels, weights = batch(rng.choices(rows, k=size), model.config.pad_token_id)
        logits = model(input_ids=ids).logits[:, :-1].flatten(0, 1)
        losses = torch.nn.functional.cross_entropy(
            logits, labels[:, 1:].flatten(), ignore_index=IGNORE, reduction="none"
        )
        weights = weights[:, 1:].flatten() * (labels[:, 1:].flatten() != IGNORE)
        loss = (losses * weights).sum() / weights.sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0 or step == steps:
            said = f"step {step}/{steps}, loss {loss.item():.3f}, {time.monotonic() - started:.0f} s"
            print(f"warm start: {said}", file=sys.stderr, flush=True)
    return float(loss.item())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--demonstrations", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=128, help="a multiple of 64")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--vocabulary", type=int, default=1024)
    parser.add_argument("--context", type=int, default=512, help="tokens")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    conversations = [conversation(line) for line in options.demonstrations.read_text(encoding="utf-8").splitlines()]
    tokenizer = make_tokenizer(conversations, options.vocabulary, options.context)
    model = make_model(tokenizer, options.hidden, options.layers, options.context)
    tokenizer.save_pretrained(options.out)
    rows = [encoded(tokenizer, one) for one in conversations]
    train(model, rows, options.steps, options.batch, random.Random(options.seed))
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=True
    )
    model.save_pretrained(options.out)


if __name__ == "__main__":
    main()
